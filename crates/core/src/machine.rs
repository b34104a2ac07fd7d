//! The life of a lease as a pure state machine: events with times in, actions out.
//!
//! It reads no clock, does no I/O and knows no runtime; the watchdog and the simulator drive
//! the same code. The rules it carries: T1 (what a deadline counts from), L1 to L3 (loss), R1 (when to renew).

use std::time::Duration;

use crate::{
    claim::{Grant, LossReason, Renewal},
    clock::{Moment, Sent},
};

/// What a lease gives up of its TTL so that a client whose clock runs slow, or a store whose clock runs fast,
/// does not believe longer than the store grants: one hundredth and two milliseconds.
pub fn drift_allowance(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Something that happened to a lease.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Time passed. Renewals due within `ahead` are wanted now, so that many leases share one command.
    Tick {
        /// How much earlier than due a renewal may be asked for.
        ahead: Duration,
    },
    /// The holder looks how the lease stands. Time passed as with a tick, but nobody is there to send a renewal.
    Looked,
    /// The renewal asked for was answered; `None` when the answer is unknown or the store was out of reach.
    Answered(Option<Renewal>),
    /// The store reported the loss by itself (L4).
    Revoked(LossReason),
    /// The store has reason to doubt every grant (L4): a renewal is due now, since its answer tells.
    Doubted,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until [`LeaseMachine::wake_at`].
    Nothing,
    /// Send one renewal and feed its answer back. There is never a second one under way.
    Renew,
    /// Tell the holder. The record may still be ours and is to be freed in the background (L3).
    Lose(LossReason),
}

/// A grant that came after its own deadline (T1): no grant, to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// How long the answer took.
    pub took: Duration,
}

/// How one lease shall be looked after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Upkeep {
    /// The holder renews by hand.
    pub manual: bool,
    /// The longest time that the lease may be held altogether.
    pub max_hold: Option<Duration>,
}

/// One lease, from its grant to its loss.
#[derive(Clone, Debug)]
pub struct LeaseMachine {
    granted_ttl: Option<Duration>,
    deadline: Option<Moment>,
    renew_at: Option<Moment>,
    hold_until: Option<Moment>,
    manual: bool,
    in_flight: bool,
    /// Doubted while a renewal was under way, whose answer may be of the time before.
    doubted: bool,
    failures: u32,
    lost: Option<LossReason>,
}

impl LeaseMachine {
    /// Begins the life of a grant that was answered at `now`. `jitter` is a random number from 0 up to 1.
    ///
    /// # Errors
    /// [`Late`] when its deadline has already passed.
    pub fn begin(now: Moment, grant: &Grant, upkeep: Upkeep, jitter: f64) -> Result<Self, Late> {
        let sent = grant.counted_from;
        let mut machine = Self {
            granted_ttl: None,
            deadline: None,
            renew_at: None,
            hold_until: upkeep.max_hold.map(|span| now.after(span)),
            manual: upkeep.manual,
            in_flight: false,
            doubted: false,
            failures: 0,
            lost: None,
        };
        if let Some(ttl) = grant.ttl {
            machine.extend(sent, ttl, jitter);
        }
        if machine.deadline.is_some_and(|deadline| now >= deadline) {
            return Err(Late { took: now.since(sent.moment()) });
        }
        Ok(machine)
    }

    /// Feeds an event that happened at `now`.
    pub fn on(&mut self, now: Moment, event: Event, jitter: f64) -> Action {
        if self.lost.is_some() {
            return Action::Nothing; // L3: no renewal after a loss, and it is told once
        }
        if let Event::Answered(answer) = event {
            self.in_flight = false;
            match answer {
                Some(Renewal::Lost(reason)) => return self.lose(self.first_of(now, reason)),
                Some(Renewal::Renewed { counted_from, ttl }) => {
                    self.failures = 0;
                    self.extend(counted_from, ttl, jitter);
                    if std::mem::take(&mut self.doubted) {
                        self.renew_at = self.renew_at.map(|_| now);
                    }
                }
                None => self.retry_soon(now, jitter), // the deadline stays where it was (T1)
            }
        }
        if let Event::Revoked(reason) = event {
            return self.lose(self.first_of(now, reason));
        }
        if event == Event::Doubted {
            self.doubted = self.in_flight;
            self.renew_at = self.renew_at.map(|at| at.min(now));
            return Action::Nothing; // the tick that is due now renews many leases at once
        }
        if self.hold_until.is_some_and(|until| now >= until) {
            return self.lose(LossReason::HeldTooLong);
        }
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            return self.lose(LossReason::Expired);
        }
        // Only a tick asks for a renewal: whoever feeds an answer does not look whether there is a next one to send.
        let Event::Tick { ahead } = event else { return Action::Nothing };
        if !self.in_flight && self.renew_at.is_some_and(|at| now.after(ahead) >= at) {
            self.in_flight = true;
            return Action::Renew;
        }
        Action::Nothing
    }

    /// When the lease ends unless it is renewed; `None` where grants do not expire and no limit is set.
    pub fn deadline(&self) -> Option<Moment> {
        match (self.deadline, self.hold_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// When to tick next; `None` when nothing will happen by itself.
    pub fn wake_at(&self) -> Option<Moment> {
        if self.lost.is_some() {
            return None;
        }
        let renewal = if self.in_flight { None } else { self.renew_at };
        [renewal, self.deadline()].into_iter().flatten().min()
    }

    /// Why it is lost, once it is.
    pub fn lost(&self) -> Option<LossReason> {
        self.lost
    }

    /// Counts from the sending, by the TTL that was granted, less the drift allowance (T1). The deadline never
    /// moves back, since an older answer can overtake a newer one.
    fn extend(&mut self, sent: Sent, ttl: Duration, jitter: f64) {
        let deadline = sent.moment().after(ttl.saturating_sub(drift_allowance(ttl)));
        self.deadline = Some(self.deadline.map_or(deadline, |current| current.max(deadline)));
        self.granted_ttl = Some(ttl);
        if !self.manual {
            // A third of the TTL, up to a tenth of that earlier.
            self.renew_at = Some(sent.moment().after((ttl / 3).mul_f64(1.0 - jitter / 10.0)));
        }
    }

    /// From 1/60 of the TTL doubling up to a sixth, so that several tries fit before the deadline (R1).
    fn retry_soon(&mut self, now: Moment, jitter: f64) {
        if self.manual {
            return;
        }
        let ttl = self.granted_ttl.unwrap_or_default();
        let pause = (ttl / 60).saturating_mul(1 << self.failures.min(6)).min(ttl / 6);
        self.failures += 1;
        self.renew_at = Some(now.after(pause.mul_f64(0.5 + jitter / 2.0)));
    }

    /// A process that was paused past its deadline hears late of what happened to its record since: the lease was over
    /// before that.
    fn first_of(&self, now: Moment, reason: LossReason) -> LossReason {
        if self.deadline.is_some_and(|deadline| now >= deadline) { LossReason::Expired } else { reason }
    }

    fn lose(&mut self, reason: LossReason) -> Action {
        self.lost = Some(reason);
        Action::Lose(reason)
    }
}

#[cfg(test)]
mod tests;

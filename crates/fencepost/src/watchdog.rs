//! One watchdog for each client (R1): it renews every lease in batches and tells holders of their loss (L1).
//!
//! The schedule lies behind a mutex and the task is woken only when an alarm must come earlier than the one it
//! sleeps for. A message for each acquire and release would cost two task switches on the fastest path.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::jitter,
    claim::{Claim, LossReason, Renewal},
    clock::{self, Clock, Moment},
    limits::Ttl,
    machine::{Action, Event, LeaseMachine},
    owner::Owner,
    store::{LossReporter, Store},
};
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc},
};

use crate::cleaner::{Cleaner, Trace};

/// Leases renewed by one call of the store.
const BATCH: usize = 250;
/// Losses kept for a grant whose answer is still on its way to its holder.
const EARLY_LOSSES: usize = 256;

#[derive(Debug)]
pub(crate) struct Watchdog(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    cleaner: Cleaner,
    schedule: Mutex<Schedule>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Schedule {
    leases: HashMap<Owner, Watched>,
    due: BTreeSet<(Moment, Owner)>,
    /// The moment the task sleeps for.
    alarm: Option<Moment>,
    early_losses: VecDeque<(Owner, LossReason)>,
    closed: bool,
}

#[derive(Debug)]
struct Watched {
    machine: LeaseMachine,
    held: Arc<Held>,
    due: Option<Moment>,
}

/// What a lease and its watchdog share.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) claim: Arc<Claim>,
    deadline: Mutex<Option<Moment>>,
    lost: OnceLock<LossReason>,
    told: Notify,
}

impl Held {
    fn of(claim: Arc<Claim>, machine: &LeaseMachine) -> Arc<Self> {
        let deadline = Mutex::new(machine.deadline());
        Arc::new(Self { claim, deadline, lost: OnceLock::new(), told: Notify::new() })
    }

    /// When the lease ends unless it is renewed.
    pub(crate) fn deadline(&self) -> Option<Moment> {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn loss(&self) -> Option<LossReason> {
        self.lost.get().copied()
    }

    /// Completes when the lease is lost. Cancel safe.
    pub(crate) async fn lost(&self) -> LossReason {
        loop {
            let told = self.told.notified();
            tokio::pin!(told);
            told.as_mut().enable();
            if let Some(reason) = self.loss() {
                return reason;
            }
            told.await;
        }
    }

    fn set_deadline(&self, deadline: Option<Moment>) {
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    fn tell(&self, reason: LossReason) {
        // The first reason stands.
        let _ = self.lost.set(reason);
        self.told.notify_waiters();
    }
}

impl Watchdog {
    pub(crate) fn start(
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        cleaner: Cleaner,
        losses: mpsc::UnboundedReceiver<(Owner, LossReason)>,
        doubts: LossReporter,
        runtime: &Handle,
    ) -> Self {
        let shared = Arc::new(Shared { store, clock, cleaner, schedule: Mutex::default(), changed: Notify::new() });
        runtime.spawn(shared.clone().watch(losses, doubts));
        Self(shared)
    }

    /// Looks after a lease from now on.
    pub(crate) fn add(&self, machine: LeaseMachine, claim: Arc<Claim>) -> Arc<Held> {
        let held = Held::of(claim, &machine);
        let owner = *held.claim.owner();
        let mut schedule = self.0.lock();
        schedule.leases.insert(owner, Watched { machine, held: held.clone(), due: None });
        schedule.plan(owner, &self.0.changed);
        let early = schedule.early_losses.iter().find(|(lost, _)| *lost == owner).map(|(_, reason)| *reason);
        if let Some(reason) = early {
            self.0.feed(&mut schedule, owner, Event::Revoked(reason));
        } else if schedule.closed {
            self.0.feed(&mut schedule, owner, Event::Revoked(LossReason::Closed));
        }
        held
    }

    /// Looks after the same grant as another claim from now on; `None` when it is lost, or was given back.
    pub(crate) fn exchange(&self, claim: Arc<Claim>) -> Option<Arc<Held>> {
        let mut schedule = self.0.lock();
        let watched = schedule.leases.get_mut(claim.owner())?;
        watched.held = Held::of(claim, &watched.machine);
        Some(watched.held.clone())
    }

    /// Stops looking after a lease: it is never renewed again (R2).
    pub(crate) fn forget(&self, owner: &Owner) {
        self.0.lock().remove(owner);
    }

    /// Judges a lease by the clock now, without waiting for the task to run (L1).
    pub(crate) fn settle(&self, owner: &Owner) {
        self.0.feed(&mut self.0.lock(), *owner, Event::Looked);
    }

    /// Feeds the answer to a renewal that the holder sent by hand.
    pub(crate) fn renewed_by_hand(&self, owner: &Owner, answer: Renewal) {
        self.0.feed(&mut self.0.lock(), *owner, Event::Answered(Some(answer)));
    }

    pub(crate) fn lose_all(&self, reason: LossReason) {
        let mut schedule = self.0.lock();
        schedule.closed = true;
        let owners: Vec<_> = schedule.leases.keys().copied().collect();
        for owner in owners {
            self.0.feed(&mut schedule, owner, Event::Revoked(reason));
        }
        drop(schedule);
        self.0.changed.notify_one();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Schedule> {
        // Every change leaves the schedule whole before anything that could panic.
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn watch(self: Arc<Self>, mut losses: mpsc::UnboundedReceiver<(Owner, LossReason)>, doubts: LossReporter) {
        loop {
            let (batches, alarm) = {
                let mut schedule = self.lock();
                if schedule.closed {
                    return;
                }
                let batches = self.collect_due(&mut schedule);
                schedule.alarm = schedule.due.first().map(|(at, _)| *at);
                (batches, schedule.alarm)
            };
            for claims in batches {
                tokio::spawn(self.clone().renew(claims));
            }
            tokio::select! {
                () = self.changed.notified() => {}
                () = self.clock.sleep_until(alarm.unwrap_or(Moment::END)) => {}
                Some((owner, reason)) = losses.recv() => self.revoked(owner, reason),
                () = doubts.doubted() => self.doubt_all(),
            }
        }
    }

    /// Ticks everything that is due, and renews what is due soon along with it: one batch for each TTL, so that a
    /// long limit never delays the retry of a short lease.
    fn collect_due(&self, schedule: &mut Schedule) -> Vec<Vec<Arc<Claim>>> {
        let now = self.clock.now();
        let Some(first) = schedule.due.first().filter(|(at, _)| *at <= now) else { return Vec::new() };
        // What comes due within the first one's slack shares its command; the rest is not even looked at.
        let slack = schedule.leases.get(&first.1).map_or(Duration::ZERO, |watched| watched.held.claim.ttl.get() / 30);
        let soon: Vec<_> = schedule.due.iter().take_while(|(at, _)| *at <= now.after(slack)).copied().collect();
        let mut wanted: BTreeMap<Ttl, Vec<Arc<Claim>>> = BTreeMap::new();
        for (at, owner) in soon {
            let Some(claim) = schedule.leases.get(&owner).map(|watched| watched.held.claim.clone()) else { continue };
            let ahead = claim.ttl.get() / 30;
            if at > now.after(ahead) {
                continue;
            }
            if self.feed(schedule, owner, Event::Tick { ahead }) == Action::Renew {
                wanted.entry(claim.ttl).or_default().push(claim);
            }
        }
        wanted.into_values().flat_map(|claims| claims.chunks(BATCH).map(<[_]>::to_vec).collect::<Vec<_>>()).collect()
    }

    async fn renew(self: Arc<Self>, claims: Vec<Arc<Claim>>) {
        // A third of the TTL leaves time for more tries; the store's own limit may be shorter.
        let limit = claims[0].ttl.get() / 3;
        let answers = tokio::select! {
            answers = self.store.renew(&claims) => Some(answers),
            () = clock::sleep(&*self.clock, limit) => None,
        };
        let mut answers = answers.into_iter().flatten();
        let mut schedule = self.lock();
        for claim in &claims {
            let answer = match answers.next() {
                Some(Ok(answer)) => Some(answer),
                Some(Err(error)) => {
                    tracing::debug!(lock = %claim.name(), %error, "a renewal failed; it is tried again until the deadline");
                    None
                }
                None => None,
            };
            self.feed(&mut schedule, *claim.owner(), Event::Answered(answer));
        }
    }

    /// Renews everything now: the answers tell what was lost (L4).
    fn doubt_all(&self) {
        let mut schedule = self.lock();
        let owners: Vec<_> = schedule.leases.keys().copied().collect();
        for owner in owners {
            self.feed(&mut schedule, owner, Event::Doubted);
        }
    }

    fn revoked(&self, owner: Owner, reason: LossReason) {
        let mut schedule = self.lock();
        if schedule.leases.contains_key(&owner) {
            self.feed(&mut schedule, owner, Event::Revoked(reason));
            return;
        }
        // The grant may be on its way to its holder, who must hear of the loss all the same.
        if schedule.early_losses.len() == EARLY_LOSSES {
            schedule.early_losses.pop_front();
        }
        schedule.early_losses.push_back((owner, reason));
    }

    /// The only place where a lease's machine advances.
    fn feed(&self, schedule: &mut Schedule, owner: Owner, event: Event) -> Action {
        let Some(watched) = schedule.leases.get_mut(&owner) else { return Action::Nothing };
        let action = watched.machine.on(self.clock.now(), event, jitter());
        watched.held.set_deadline(watched.machine.deadline());
        if let Action::Lose(reason) = action {
            let held = watched.held.clone();
            schedule.remove(&owner);
            held.tell(reason);
            self.cleaner.give_back(held.claim.clone(), Trace::Clear); // L3
        } else {
            schedule.plan(owner, &self.changed);
        }
        action
    }
}

impl Schedule {
    /// Puts a lease where its machine wants to be woken, and wakes the task when that is earlier than planned.
    fn plan(&mut self, owner: Owner, changed: &Notify) {
        let Some(watched) = self.leases.get_mut(&owner) else { return };
        let due = watched.machine.wake_at();
        if due == watched.due {
            return;
        }
        if let Some(at) = std::mem::replace(&mut watched.due, due) {
            self.due.remove(&(at, owner));
        }
        if let Some(at) = due {
            self.due.insert((at, owner));
            if self.alarm.is_none_or(|alarm| at < alarm) {
                self.alarm = Some(at);
                changed.notify_one();
            }
        }
    }

    fn remove(&mut self, owner: &Owner) {
        if let Some(Watched { due: Some(at), .. }) = self.leases.remove(owner) {
            self.due.remove(&(at, *owner));
        }
    }
}

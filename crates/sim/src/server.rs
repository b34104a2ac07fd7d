//! A server as Redis is one: a record that ends by the server's own clock, and conditions on owner and round.

use crate::plan::Millis;

/// A claim of a client: its number among all claims.
pub(crate) type Owner = u64;

/// Microseconds of virtual time.
pub(crate) type Micros = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Request {
    /// `SET NX PX`, with the number of the round.
    Set {
        owner: Owner,
        round: u64,
    },
    /// Gives back what rounds up to this one left.
    Retract {
        owner: Owner,
        round: u64,
    },
    /// Extends a record, and makes it one of the round that was won, so that what gives earlier rounds back leaves it.
    Renew {
        owner: Owner,
        round: u64,
        /// Which renewal of its client this is part of. The server does not look at it.
        renewal: u64,
    },
    Release {
        owner: Owner,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    owner: Owner,
    round: u64,
    /// By the server's clock.
    ends: Micros,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    rate: u64,
    jumped: Micros,
    ttl: Micros,
    record: Option<Record>,
    started: Micros,
    pub(crate) is_up: bool,
    pub(crate) stopped_until: Micros,
}

impl Server {
    pub(crate) fn new(rate: u64, ttl: Millis) -> Self {
        // It has been up for long when the world begins.
        Self { rate, jumped: 1 << 40, ttl: ttl * 1_000, record: None, started: 0, is_up: true, stopped_until: 0 }
    }

    pub(crate) fn answer(&mut self, now: Micros, request: Request) -> Reply {
        let clock = self.clock(now);
        if self.record.is_some_and(|record| record.ends <= clock) {
            self.record = None;
        }
        let said = match (request, &mut self.record) {
            (Request::Set { owner, round }, free @ None) => {
                *free = Some(Record { owner, round, ends: clock + self.ttl });
                true
            }
            (Request::Renew { owner, round, .. }, Some(record)) if record.owner == owner => {
                record.ends = clock + self.ttl;
                record.round = record.round.max(round);
                true
            }
            (Request::Retract { owner, round }, Some(record)) if record.owner == owner && record.round <= round => {
                self.record = None;
                true
            }
            (Request::Release { owner }, Some(record)) if record.owner == owner => {
                self.record = None;
                true
            }
            _ => false,
        };
        if said { Reply::Yes } else { Reply::No }
    }

    /// For how long it says to be up, in whole seconds of its clock.
    pub(crate) fn uptime_seconds(&self, now: Micros) -> u64 {
        (self.clock(now) - self.started) / 1_000_000
    }

    pub(crate) fn jump(&mut self, by: Micros) {
        self.jumped += by;
    }

    pub(crate) fn kill(&mut self) {
        self.is_up = false;
    }

    pub(crate) fn start(&mut self, now: Micros, forgets: bool) {
        self.is_up = true;
        self.started = self.clock(now);
        if forgets {
            self.record = None;
        }
    }

    fn clock(&self, now: Micros) -> Micros {
        scaled(now, self.rate) + self.jumped
    }
}

/// What a clock of `rate` millionths shows after `true_time`.
pub(crate) fn scaled(true_time: Micros, rate: u64) -> Micros {
    // Worlds last minutes: the product fits.
    true_time * rate / 1_000_000
}

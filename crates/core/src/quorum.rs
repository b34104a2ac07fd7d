//! Locks by majority: what may be believed when several independent stores are asked and some of them are slow, dead or
//! wrong. The [`Round`] is the decision as a pure state machine; it reads no clock, does no I/O and knows no store, so
//! that a driver over real servers and the simulator run the same code.
//!
//! The algorithm is Redlock (Antirez, "Distributed Locks with Redis"). What it can and cannot promise is disputed
//! (Kleppmann, "How to do distributed locking", 2016): within its assumptions no two clients believe at once; a store's clock that jumps, a store that forgets what it answered, or a client that
//! acts without looking at its deadline break it. A majority has no place to count, so there is never a fence.
//!
//! # The rules of a round
//!
//! - Every store is asked at the same time, and each has the same limit for its answer, on every verb.
//! - A round counts from before its first request left (T1). What it grants is the shortest TTL among its votes, less
//!   what has elapsed, less the [`Drift`].
//! - It is settled as soon as a quorum said yes, or enough said no. A late yes to a lost round is given back.
//! - An answer of unknown outcome is neither yes nor no: it never counts as a vote, and is given back like one.
//! - A store that may have forgotten what it promised is not to be counted until every lease that it could have
//!   promised is over: [`Probation`].

mod cleaning;
mod round;

use std::time::Duration;

use crate::{clock::Moment, machine::drift_allowance};

pub use cleaning::{CleaningUp, Errand};
pub use round::{Action, Defeat, Event, Round, Verdict, Vote};

/// How many stores decide, and how carefully.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quorum {
    nodes: usize,
    /// How long each store has for its answer, on every verb.
    pub node_limit: Duration,
    /// What a lease gives up for clocks that do not run alike.
    pub drift: Drift,
}

impl Quorum {
    /// The limit for one store's answer unless said otherwise.
    pub const NODE_LIMIT: Duration = Duration::from_millis(50);

    /// A majority of `nodes` stores; `None` when there is none.
    pub fn of(nodes: usize) -> Option<Self> {
        (nodes > 0).then_some(Self { nodes, node_limit: Self::NODE_LIMIT, drift: Drift::default() })
    }

    /// How many stores there are.
    pub fn nodes(&self) -> usize {
        self.nodes
    }

    /// How many must agree: more than half, so that any two quorums share a store.
    pub fn needed(&self) -> usize {
        self.nodes / 2 + 1
    }

    /// How many may fail or refuse.
    pub fn spare(&self) -> usize {
        self.nodes - self.needed()
    }

    /// Why this number of stores is a poor choice, where it is one.
    pub fn objection(&self) -> Option<&'static str> {
        match self.nodes {
            1 => {
                Some("one store is no majority of anything: a single server's own scheme does the same and costs less")
            }
            2 => Some("of two stores none may fail, so that two are less available than one: use three or five"),
            nodes if nodes % 2 == 0 => Some("an even number bears no more failures than one store fewer does"),
            _ => None,
        }
    }
}

/// What a lease gives up of its TTL for clocks that run at different rates. Never less than
/// [`drift_allowance`]: one hundredth and 2 ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drift {
    percent: f64,
}

impl Drift {
    /// The least: what every lease gives up anyway.
    pub const LEAST: f64 = 1.0;
    /// The most that makes sense: half of the lease.
    pub const MOST: f64 = 50.0;

    /// So many hundredths of the TTL, and 2 ms; `None` outside [`Drift::LEAST`] ..= [`Drift::MOST`].
    pub fn percent(percent: f64) -> Option<Self> {
        (Self::LEAST..=Self::MOST).contains(&percent).then_some(Self { percent })
    }

    /// What a lease of `ttl` gives up.
    pub fn allowance(&self, ttl: Duration) -> Duration {
        drift_allowance(ttl) + self.beyond(ttl)
    }

    /// The TTL to answer for a grant of `ttl`, such that a lease machine, which takes off [`drift_allowance`] by itself,
    /// never believes for longer than this allowance permits.
    pub fn granted(&self, ttl: Duration) -> Duration {
        ttl.saturating_sub(self.beyond(ttl))
    }

    /// What it gives up beyond the usual. Taking it off the TTL makes the usual part smaller too, by less than a
    /// hundredth of it: that is added here, so that rounding is on the safe side.
    fn beyond(&self, ttl: Duration) -> Duration {
        ttl.mul_f64((self.percent - Self::LEAST) / 100.0 * 1.02)
    }
}

impl Default for Drift {
    fn default() -> Self {
        Self { percent: Self::LEAST }
    }
}

/// Whether a store has been up for long enough to be counted. One that restarted may have lost what it promised
/// before; once it has been up for the longest TTL in use, none of those promises can be alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probation {
    /// The latest moment at which the store can have started.
    pub started: Moment,
}

impl Probation {
    /// From a store that tells its uptime in whole seconds, cut or rounded: it may be up for a second less than it says.
    /// `answered` is the moment its answer came.
    pub fn from_uptime(answered: Moment, uptime_seconds: u64) -> Self {
        let at_least = Duration::from_secs(uptime_seconds.saturating_sub(1));
        let since = answered.as_nanos().saturating_sub(u64::try_from(at_least.as_nanos()).unwrap_or(u64::MAX));
        Self { started: Moment::from_nanos(since) }
    }

    /// Whether its votes count at `now`, when leases last for `longest` at most.
    pub fn is_over(&self, now: Moment, longest: Duration) -> bool {
        now.since(self.started) >= longest
    }
}

#[cfg(test)]
mod tests;

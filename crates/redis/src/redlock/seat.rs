//! What a waiter knows of its places at the servers.

use std::time::Duration;

use fencepost_core::clock::Moment;

/// A waiter's place in the queues.
#[derive(Clone, Debug)]
pub(super) struct Seat {
    /// Its place in every queue: when it came, by its own wall clock.
    pub(super) ticket: u64,
    /// The last round it lost.
    pub(super) lost_round: u64,
    pub(super) standings: Vec<Standing>,
}

/// How a waiter stands at one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No place as far as we know; to be asked for from then on.
    Out(Moment),
    /// In the queue.
    Queued,
    /// Its vote is ours, to be asked for again before it lapses. Only a counted one makes a quorum.
    Vote { until: Moment, counts: bool },
}

/// A vote ends by itself after a second, or after the TTL when that is shorter; by then it must have been confirmed or
/// asked for again.
pub(super) fn vote_lasts(ttl: Duration) -> Duration {
    ttl.min(Duration::from_secs(1)).mul_f64(0.8)
}

impl Seat {
    pub(super) fn new(nodes: usize, ticket: u64, lost_round: u64) -> Self {
        Self { ticket, lost_round, standings: vec![Standing::Out(Moment::default()); nodes] }
    }

    /// Servers whose vote is ours and counts at `now`.
    pub(super) fn votes(&self, now: Moment) -> usize {
        self.standings.iter().filter(|standing| standing.is_vote(now)).count()
    }

    /// Servers where it has a place or a vote.
    pub(super) fn places(&self) -> usize {
        self.standings.iter().filter(|standing| !matches!(standing, Standing::Out(_))).count()
    }
}

impl Standing {
    pub(super) fn is_vote(&self, now: Moment) -> bool {
        matches!(self, Self::Vote { until, counts: true } if now < *until)
    }

    pub(super) fn due(&self) -> Option<Moment> {
        match self {
            Self::Out(at) | Self::Vote { until: at, .. } => Some(*at),
            Self::Queued => None,
        }
    }
}

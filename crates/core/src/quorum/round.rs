//! One question to every store, and what its answers amount to.

use std::time::Duration;

use super::Quorum;
use crate::clock::{Moment, Sent};

/// What one store answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Yes, for so long.
    For {
        /// The TTL that this store granted.
        ttl: Duration,
    },
    /// No, and nothing of ours is there.
    Against,
    /// Nothing is known: it was out of reach, did not answer in time, or its answer must not be counted. It may have
    /// said yes, or may do so yet.
    Unknown,
}

/// Something that happened to a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A store answered, in time or late.
    Voted {
        /// Which.
        node: usize,
        /// What.
        vote: Vote,
    },
    /// Time passed.
    Tick,
}

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing until the next answer, or [`Round::limit`].
    Nothing,
    /// The round is over. Told once. Stores that have not answered yet may do so later: feed that too.
    Settle(Verdict),
    /// A store's answer came after the round was lost: whatever it holds of ours is to be given back.
    GiveBack,
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A quorum said yes in time. The grant counts from before the round's first request, for `ttl`.
    Won {
        /// The shortest TTL among the votes.
        ttl: Duration,
    },
    /// It did not come to that. Whatever a store may hold of the round is to be given back.
    Lost(Defeat),
}

/// Why a round was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defeat {
    /// A quorum answered, and no quorum can say yes any more.
    Outvoted,
    /// So many are out of reach that no quorum can answer. It says nothing about who holds the lock.
    OutOfReach,
    /// A quorum said yes, and by then the grant was over (T1).
    TooLate,
}

/// A round. See the [module](super) for its rules.
#[derive(Clone, Debug)]
pub struct Round {
    quorum: Quorum,
    sent: Sent,
    votes: Vec<Option<Vote>>,
    settled: Option<Verdict>,
}

impl Round {
    /// A round whose first request leaves after `sent`.
    pub fn begin(quorum: Quorum, sent: Sent) -> Self {
        Self { votes: vec![None; quorum.nodes()], quorum, sent, settled: None }
    }

    /// What the grant counts from.
    pub fn sent(&self) -> Sent {
        self.sent
    }

    /// When stores that have not answered are given up.
    pub fn limit(&self) -> Moment {
        self.sent.moment().after(self.quorum.node_limit)
    }

    /// Feeds an event that happened at `now`.
    pub fn on(&mut self, now: Moment, event: Event) -> Action {
        match event {
            Event::Voted { node, vote } => {
                let Some(place) = self.votes.get_mut(node) else { return Action::Nothing };
                match self.settled {
                    // An answer that comes twice changes nothing; one instead of silence is the first that counts.
                    None if place.is_none_or(|earlier| earlier == Vote::Unknown) => *place = Some(vote),
                    None => return Action::Nothing,
                    Some(Verdict::Lost(_)) if vote != Vote::Against => return Action::GiveBack,
                    // A late yes to a round that was won is one vote more than needed.
                    Some(_) => return Action::Nothing,
                }
            }
            Event::Tick if now < self.limit() => return Action::Nothing,
            Event::Tick => self.votes.iter_mut().filter(|vote| vote.is_none()).for_each(|v| *v = Some(Vote::Unknown)),
        }
        match self.judge(now) {
            Some(verdict) if self.settled.is_none() => {
                self.settled = Some(verdict);
                Action::Settle(verdict)
            }
            _ => Action::Nothing,
        }
    }

    /// How it ended, once it has.
    pub fn settled(&self) -> Option<Verdict> {
        self.settled
    }

    /// How many stores said yes so far.
    pub fn in_favour(&self) -> usize {
        self.votes.iter().filter(|vote| matches!(vote, Some(Vote::For { .. }))).count()
    }

    /// The stores where something of this round may lie: all but those that said no.
    pub fn traces(&self) -> impl Iterator<Item = usize> {
        let votes = self.votes.iter().enumerate();
        votes.filter(|(_, vote)| !matches!(vote, Some(Vote::Against))).map(|(node, _)| node)
    }

    fn judge(&self, now: Moment) -> Option<Verdict> {
        let count = |wanted: Vote| self.votes.iter().filter(|vote| **vote == Some(wanted)).count();
        if self.in_favour() >= self.quorum.needed() {
            let granted = self.votes.iter().filter_map(|vote| match vote {
                Some(Vote::For { ttl }) => Some(*ttl),
                _ => None,
            });
            let ttl = granted.min()?;
            let elapsed = now.since(self.sent.moment());
            let is_valid = elapsed + self.quorum.drift.allowance(ttl) < ttl;
            return Some(if is_valid { Verdict::Won { ttl } } else { Verdict::Lost(Defeat::TooLate) });
        }
        let (against, unknown) = (count(Vote::Against), count(Vote::Unknown));
        let (spare, answered) = (self.quorum.spare(), self.in_favour() + against);
        // "Busy" is never said on the word of less than a quorum (C2).
        if against + unknown > spare && answered >= self.quorum.needed() {
            Some(Verdict::Lost(Defeat::Outvoted))
        } else if unknown > spare {
            Some(Verdict::Lost(Defeat::OutOfReach))
        } else {
            None
        }
    }
}

//! Taking a lock: one round of plain `SET NX`, and what follows when it is lost.

use std::{
    future::Future,
    sync::{Arc, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Busy, Claim, Claimed, Grant, Holder, Patience},
    clock::Sent,
    error::{Error, ErrorKind, Operation},
    name::LockName,
    owner::Owner,
    quorum::{Action, Defeat, Event, Round, Verdict, Vote},
};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use redis::Cmd;

use super::{
    RedlockStore, STORE,
    debts::Due,
    node::{ClaimWords, Node, Place, may_have_arrived},
    only_exclusive,
};
use crate::{failure::Failure, record, room::Hearing};

/// What one server said.
pub(super) struct Said<T> {
    pub(super) node: usize,
    pub(super) vote: Vote,
    pub(super) answer: Result<T, Failure>,
}

/// A round that was settled.
pub(super) struct Settled<T> {
    pub(super) verdict: Verdict,
    /// What was said by then, by server.
    pub(super) said: Vec<Option<Result<T, Failure>>>,
}

impl RedlockStore {
    pub(super) async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        let name = only_exclusive(&claim.holding)?;
        if patience == Patience::Queue {
            self.listen(); // a holder listens and so does a waiter: connecting takes as long as the round does
        }
        let admitted = self.crowd.claim().await;
        let round = self.next_round();
        let plain: Arc<Cmd> = Arc::new(self.plain_set(claim, name, round));
        let (ttl, longest) = (claim.ttl.get(), self.guard.span(claim.ttl.get()));
        let sent = Sent::now(&*self.clock);
        let asked = self.nodes.iter().map(|node| {
            let (node, plain) = (node.clone(), plain.clone());
            async move {
                let answer = node.set(&plain).await;
                let vote = match answer {
                    Ok(true) => node.counted(ttl, longest).await,
                    Ok(false) => Vote::Against,
                    Err(_) => Vote::Unknown,
                };
                Said { node: node.index, vote, answer }
            }
        });
        let settled = self.settle(Round::begin(self.quorum, sent), asked.collect()).await;
        match settled.verdict {
            Verdict::Won { ttl } => Ok(Claimed::Granted(self.granted(claim, round, sent, ttl))),
            Verdict::Lost(Defeat::Outvoted) => match patience {
                Patience::Once => Box::pin(self.ask_once(claim, name, round)).await,
                Patience::Queue => {
                    drop(admitted); // it may have to wait for the connections for messages
                    Box::pin(self.take_seats(claim, name, round)).await
                }
            },
            Verdict::Lost(defeat) => {
                Box::pin(self.retract(claim, name, round, &settled.said)).await;
                Err(self.defeated(defeat, name, &failures(&settled.said)))
            }
        }
    }

    /// Drives a round to its verdict. What was not answered by then goes on in the background, so that a server that
    /// no longer answers is found out.
    pub(super) async fn settle<T, F>(&self, mut round: Round, mut asked: FuturesUnordered<F>) -> Settled<T>
    where
        T: Send + 'static,
        F: Future<Output = Said<T>> + Send + 'static,
    {
        let mut said: Vec<_> = self.nodes.iter().map(|_| None).collect();
        let limit = tokio::time::sleep(self.quorum.node_limit);
        tokio::pin!(limit);
        let verdict = loop {
            let event = tokio::select! {
                biased;
                Some(answer) = asked.next() => {
                    let Said { node, vote, answer } = answer;
                    said[node] = Some(answer);
                    Event::Voted { node, vote }
                }
                () = &mut limit => Event::Tick,
            };
            // The runtime's clock ends the wait; by the boot clock it may be a moment before that.
            let now = self.clock.now();
            let now = if event == Event::Tick { now.max(round.limit()) } else { now };
            if let Action::Settle(verdict) = round.on(now, event) {
                break verdict;
            }
        };
        if !asked.is_empty() {
            tokio::spawn(async move { while asked.next().await.is_some() {} });
        }
        Settled { verdict, said }
    }

    /// Asks those who wait once more by name: a lock that is free and waited for by nobody who lives, or held by this very
    /// claim, is granted; else it is told who holds it.
    async fn ask_once(&self, claim: &Claim, name: &LockName, round: u64) -> Result<Claimed, Error> {
        let words = Arc::new(ClaimWords { patience: "once", ..self.words(claim, round, round) });
        let (ttl, longest) = (claim.ttl.get(), self.guard.span(claim.ttl.get()));
        let sent = Sent::now(&*self.clock);
        let asked = self.nodes.iter().map(|node| {
            let (node, words, name) = (node.clone(), words.clone(), name.clone());
            async move {
                let answer = node.claim(&name, &words, Hearing::Messages).await;
                let vote = match answer {
                    Ok(Place::Granted) => node.counted(ttl, longest).await,
                    Ok(_) => Vote::Against,
                    Err(_) => Vote::Unknown,
                };
                Said { node: node.index, vote, answer }
            }
        });
        let settled = self.settle(Round::begin(self.quorum, sent), asked.collect()).await;
        let defeat = match settled.verdict {
            Verdict::Won { ttl } => return Ok(Claimed::Granted(self.granted(claim, round, sent, ttl))),
            Verdict::Lost(defeat) => defeat,
        };
        let traces: Vec<_> = settled.said.iter().map(|said| trace_of_claim(said.as_ref())).collect();
        self.retract_where(claim, name, round, &traces).await;
        match defeat {
            Defeat::Outvoted => Ok(Claimed::Busy(merged(settled.said.iter().flatten().flatten()))),
            defeat => Err(self.defeated(defeat, name, &failures(&settled.said))),
        }
    }

    /// Gives a lost round of plain `SET NX` back.
    async fn retract(&self, claim: &Claim, name: &LockName, round: u64, said: &[Option<Result<bool, Failure>>]) {
        let traces: Vec<_> = said
            .iter()
            .map(|said| match said {
                None => Trace::Unclear,
                Some(Ok(true)) => Trace::Clear,
                // A request that was repeated may have been refused by its own first copy.
                Some(Ok(false)) => Trace::Clear,
                Some(Err(failure)) if may_have_arrived(failure) => Trace::Unclear,
                Some(Err(_)) => Trace::Nothing,
            })
            .collect();
        self.retract_where(claim, name, round, &traces).await;
    }

    /// Gives rounds up to `round` back where they may have left something: now, and where that is not confirmed within
    /// the limit, in the background.
    pub(super) async fn retract_where(&self, claim: &Claim, name: &LockName, round: u64, traces: &[Trace]) {
        let (owner, limit) = (*claim.owner(), self.quorum.node_limit);
        let left = self.nodes.iter().zip(traces).filter(|(_, trace)| **trace != Trace::Nothing);
        join_all(left.map(|(node, trace)| async move {
            let answer = tokio::time::timeout(limit, node.retract(name, &owner, round)).await;
            let confirmed = matches!(answer, Ok(Ok(_)));
            if !confirmed || *trace == Trace::Unclear {
                node.owe(name, &owner, Due::Rounds(round), claim.ttl.get(), *trace == Trace::Unclear && !confirmed);
            }
        }))
        .await;
    }

    pub(super) fn granted(&self, claim: &Claim, round: u64, sent: Sent, ttl: Duration) -> Grant {
        self.note_won(claim.owner(), round);
        self.listen();
        Grant::new(sent, Some(self.quorum.drift.granted(ttl)), None)
    }

    /// A holder listens as well, so that it hears at once when its lock is broken (L4).
    fn listen(&self) {
        self.nodes.iter().for_each(|node| node.room.open());
    }

    fn plain_set(&self, claim: &Claim, name: &LockName, round: u64) -> Cmd {
        let json = self.particulars.of(&claim.claimant, |claimant| record::json(claimant, self.channel()));
        let value = record::unqueued(&claim.owner().to_string(), claim.ttl, round, &json);
        let key = self.nodes.first().map(|node| node.room.keys.lock(name)).unwrap_or_default();
        let mut set = Cmd::with_capacity(6, 64 + value.len() + key.len());
        set.arg("SET").arg(key).arg(value).arg("NX").arg("PX").arg(claim.ttl.millis());
        set
    }

    pub(super) fn words(&self, claim: &Claim, round: u64, ticket: u64) -> ClaimWords {
        ClaimWords {
            owner: claim.owner().to_string(),
            ttl: claim.ttl.millis().to_string(),
            patience: "queue",
            claimant: claim.claimant.clone(),
            round: round.to_string(),
            ticket: ticket.to_string(),
        }
    }

    /// The error of a claim that no quorum decided.
    pub(super) fn defeated(&self, defeat: Defeat, name: &LockName, failures: &[(usize, &Failure)]) -> Error {
        match defeat {
            Defeat::TooLate => {
                let said = "a quorum granted the lock so late that the grant was over on arrival";
                Error::new(ErrorKind::LateGrant, Operation::Claim, said)
                    .applied_in_full()
                    .advise("it is being given back; ask for a longer TTL")
                    .on_lock(name)
                    .in_store(STORE)
            }
            Defeat::Outvoted | Defeat::OutOfReach => self.failed(Operation::Claim, Some(name), failures),
        }
    }

    pub(super) fn forget(&self, owner: &Owner) {
        self.nodes.iter().for_each(|node| node.room.leave(owner));
        self.seats().remove(owner);
        self.won.lock().unwrap_or_else(PoisonError::into_inner).remove(owner);
    }
}

/// What a lost round may have left at a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// Nothing was sent.
    Nothing,
    /// The server answered the last request.
    Clear,
    /// A request may be under way.
    Unclear,
}

/// What a claim that is answered without a place leaves behind.
pub(super) fn trace_of_claim(said: Option<&Result<Place, Failure>>) -> Trace {
    match said {
        None => Trace::Unclear,
        Some(Ok(Place::Busy(_))) => Trace::Nothing,
        Some(Ok(_)) => Trace::Clear,
        Some(Err(failure)) if may_have_arrived(failure) => Trace::Unclear,
        // This one did not leave, but the round before it may have.
        Some(Err(_)) => Trace::Unclear,
    }
}

/// The failures among the answers, by server.
pub(super) fn failures<T>(said: &[Option<Result<T, Failure>>]) -> Vec<(usize, &Failure)> {
    let said = said.iter().enumerate();
    said.filter_map(|(node, said)| Some((node, said.as_ref()?.as_ref().err()?))).collect()
}

/// What several servers say of who stands in the way: the holder that most of them name.
pub(super) fn merged<'a>(places: impl Iterator<Item = &'a Place>) -> Busy {
    let mut holders: Vec<(usize, &Holder)> = Vec::new();
    let mut ahead = None;
    for place in places {
        let (Place::Busy(busy) | Place::Queued(busy)) = place else { continue };
        ahead = ahead.max(busy.ahead);
        let Some(holder) = &busy.holder else { continue };
        match holders.iter_mut().find(|(_, known)| known.owner == holder.owner) {
            Some((count, _)) => *count += 1,
            None => holders.push((1, holder)),
        }
    }
    let most = holders.into_iter().max_by_key(|(count, _)| *count);
    Busy { holder: most.map(|(_, holder)| holder.clone()), ahead, ..Busy::default() }
}

impl Node {
    /// How this server's messages are heard.
    pub(super) async fn hearing(&self) -> Result<Hearing, Failure> {
        self.room.hearing().await
    }
}

//! Keeping a lock by a quorum of renewals, and giving it back everywhere.

use std::sync::Arc;

use fencepost_core::{
    claim::{Claim, Holding, LossReason, Release, Renewal},
    clock::Sent,
    error::{Applied, Error, ErrorKind, Operation},
    limits::Ttl,
    name::LockName,
    quorum::{Action, Event, Round, Verdict, Vote},
};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};

use super::{RedlockStore, STORE, crowd::RENEWALS, debts::Due, node::Node, only_exclusive};
use crate::failure::Failure;

/// How often a server is asked that does not answer, where asking again changes nothing.
pub(super) const TRIES: u32 = 4;
/// Leases renewed by one command. More would hold up everybody else on the server for too long.
const BATCH: usize = 250;

impl RedlockStore {
    pub(super) async fn extend(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let mut answers = Vec::with_capacity(claims.len());
        for few in claims.chunks(BATCH * RENEWALS) {
            let batches = join_all(few.chunks(BATCH).map(|batch| self.extend_together(batch)));
            answers.extend(batches.await.into_iter().flatten());
        }
        answers
    }

    /// A round for each lease; one command to each server carries them all.
    async fn extend_together(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let Some(first) = self.nodes.first() else { return Vec::new() };
        let keys: Arc<[String]> = claims.iter().map(|claim| first.room.keys.lock(claim.name())).collect();
        let words = claims.iter().flat_map(|claim| {
            [claim.owner().to_string(), claim.ttl.millis().to_string(), self.round_won(claim.owner()).to_string()]
        });
        let words: Arc<[String]> = words.collect();
        let renewing = self.renewals.begin(claims);
        let sent = Sent::now(&*self.clock);
        let mut leases: Vec<_> = claims.iter().map(|_| Lease::new(Round::begin(self.quorum, sent))).collect();
        let mut asked: FuturesUnordered<_> = self
            .nodes
            .iter()
            .map(|node| {
                let (node, keys, words) = (node.clone(), keys.clone(), words.clone());
                async move {
                    let words: Vec<_> = words.iter().map(String::as_str).collect();
                    let answer = node.renew(&keys, &words).await;
                    let standing = node.standing().await;
                    (node, answer, standing)
                }
            })
            .collect();
        let mut lacking = Vec::new();
        let limit = tokio::time::sleep(self.quorum.node_limit);
        tokio::pin!(limit);
        while leases.iter().any(|lease| lease.verdict.is_none()) {
            let answered = tokio::select! {
                biased;
                answered = asked.next() => answered,
                () = &mut limit => None,
            };
            let now = self.clock.now();
            match answered {
                Some((node, Ok(words), standing)) => {
                    for ((lease, claim), word) in leases.iter_mut().zip(claims).zip(&words) {
                        let longest = self.guard.span(claim.ttl.get());
                        let counts = standing.is_some_and(|standing| standing.counts(now, longest));
                        lease.hear(&node, claim, word, counts);
                        let vote = lease.vote(word, counts, claim.ttl);
                        lease.feed(now, Event::Voted { node: node.index, vote });
                    }
                    lacking.push((node, words));
                }
                Some((node, Err(failure), _)) => {
                    let vote = Event::Voted { node: node.index, vote: Vote::Unknown };
                    leases.iter_mut().for_each(|lease| lease.feed(now, vote));
                    leases.iter_mut().for_each(|lease| lease.failures.push((node.index, failure.clone())));
                }
                None => leases.iter_mut().for_each(|lease| lease.feed(now.max(lease.round.limit()), Event::Tick)),
            }
        }
        let (won, round) = (leases.iter().map(Lease::is_won).collect::<Vec<_>>(), self.next_round());
        let mend = async move |(node, words): (Arc<Node>, Vec<String>)| {
            // "Taken" may be the vote of a waiter, who came back to the server sooner.
            let missing = |place: &usize| matches!(words[*place].as_str(), "deleted" | "taken");
            let missing = (0..won.len()).filter(|place| won[*place] && missing(place));
            renewing.put_back(&node, &missing.collect::<Vec<_>>(), round).await;
        };
        tokio::spawn(async move {
            for answered in lacking {
                mend(answered).await;
            }
            while let Some((node, answer, _)) = asked.next().await {
                if let Ok(words) = answer {
                    mend((node, words)).await;
                }
            }
        });
        leases.into_iter().zip(claims).map(|(lease, claim)| self.renewal(lease, claim)).collect()
    }

    fn renewal(&self, lease: Lease, claim: &Claim) -> Result<Renewal, Error> {
        match lease.verdict {
            Some(Verdict::Won { ttl }) => {
                let ttl = self.quorum.drift.granted(ttl);
                Ok(Renewal::Renewed { counted_from: lease.round.sent(), ttl })
            }
            // No quorum can have it any more. Fewer than that is not yet loss: it is tried again until the deadline.
            _ if lease.gone() > self.quorum.spare() => {
                let taken = lease.taken > lease.deleted;
                Ok(Renewal::Lost(if taken { LossReason::TakenOver } else { LossReason::Deleted }))
            }
            _ => {
                let failures: Vec<_> = lease.failures.iter().map(|(node, failure)| (*node, failure)).collect();
                Err(self.failed(Operation::Renew, Some(claim.name()), &failures))
            }
        }
    }

    /// Gives back on every server at once. What is not confirmed in time is given back in the background.
    pub(super) async fn give_back(&self, holding: &Holding) -> Result<Release, Error> {
        let name = only_exclusive(holding)?;
        self.forget(&holding.owner);
        self.renewals.given_back(&holding.owner);
        let _admitted = self.crowd.release().await;
        let owner = holding.owner;
        let ask = |node: &Arc<Node>, tries: u32| {
            let (node, name) = (node.clone(), name.clone());
            async move {
                let answer = node.release(&name, &owner).await;
                if let Err(failure) = &answer
                    && failure.kind == ErrorKind::Unavailable
                    && tries == 1
                {
                    node.owe(&name, &owner, Due::Everything, Ttl::DEFAULT.get(), failure.applied() != Applied::No);
                }
                (node.index, answer, tries)
            }
        };
        let mut asked: FuturesUnordered<_> = self.nodes.iter().map(|node| ask(node, 1)).collect();
        let limit = tokio::time::sleep(self.quorum.node_limit * TRIES);
        tokio::pin!(limit);
        let mut outcome = GivenBack::default();
        while outcome.settled(self.quorum.needed()).is_none() {
            tokio::select! {
                biased;
                Some((node, answer, tries)) = asked.next() => match answer {
                    // A repeat is safe, and a server that is merely busy is no reason to tell of an unknown outcome.
                    Err(failure) if failure.kind == ErrorKind::Unavailable && tries < TRIES => {
                        asked.push(ask(&self.nodes[node], tries + 1));
                    }
                    answer => outcome.note(node, answer, tries),
                },
                () = &mut limit => break,
                else => break,
            }
        }
        if !asked.is_empty() {
            tokio::spawn(async move { while asked.next().await.is_some() {} });
        }
        let failures: Vec<_> = outcome.failures.iter().map(|(node, failure)| (*node, failure)).collect();
        outcome
            .settled(self.quorum.needed())
            .or_else(|| outcome.in_the_end(self.quorum.needed()))
            .ok_or_else(|| self.failed(Operation::Release, Some(name), &failures))
    }

    /// The error of a verb that a quorum did not answer. One that is not mere silence comes first.
    pub(super) fn failed(
        &self,
        operation: Operation,
        name: Option<&LockName>,
        failures: &[(usize, &Failure)],
    ) -> Error {
        let mut failures = failures.iter().map(|(node, failure)| failure.at(&self.nodes[*node].address));
        if let Some(grave) = failures.clone().find(|failure| failure.kind != ErrorKind::Unavailable) {
            return grave.error(operation, name).in_store(STORE);
        }
        let reasons: Vec<_> =
            failures.by_ref().map(|failure| failure.error(Operation::Open, None).to_string()).collect();
        let reasons = if reasons.is_empty() { "no answer in time".to_owned() } else { reasons.join("; ") };
        let (needed, all) = (self.quorum.needed(), self.nodes.len());
        let said = format!("fewer than {needed} of {all} Redlock servers answered ({reasons})");
        let error = Error::new(ErrorKind::Unavailable, operation, said);
        let error = error.in_store(STORE);
        match name {
            Some(name) => error.on_lock(name),
            None => error,
        }
    }
}

/// One lease's part in a renewal.
struct Lease {
    round: Round,
    verdict: Option<Verdict>,
    taken: usize,
    deleted: usize,
    failures: Vec<(usize, Failure)>,
}

impl Lease {
    fn new(round: Round) -> Self {
        Self { round, verdict: None, taken: 0, deleted: 0, failures: Vec::new() }
    }

    fn feed(&mut self, now: fencepost_core::clock::Moment, event: Event) {
        if let Action::Settle(verdict) = self.round.on(now, event) {
            self.verdict = Some(verdict);
        }
    }

    /// What one server said, besides its vote.
    fn hear(&mut self, node: &Node, claim: &Claim, word: &str, counts: bool) {
        match word {
            "taken" => self.taken += 1,
            "deleted" => self.deleted += 1,
            "foreign" => self.failures.push((node.index, Failure::foreign())),
            "persisted" => tracing::warn!(
                lock = %claim.name(), node = %node.address,
                "the lock's key had lost its expiry (was PERSIST run on it?); the renewal gave it a new one"
            ),
            "renewed" if !counts => {
                tracing::debug!(lock = %claim.name(), node = %node.address, "not counted: it restarted not long ago");
            }
            _ => {}
        }
    }

    fn vote(&self, word: &str, counts: bool, ttl: Ttl) -> Vote {
        match word {
            "renewed" | "persisted" if counts => Vote::For { ttl: ttl.get() },
            "taken" | "deleted" => Vote::Against,
            _ => Vote::Unknown,
        }
    }

    fn is_won(&self) -> bool {
        matches!(self.verdict, Some(Verdict::Won { .. }))
    }

    fn gone(&self) -> usize {
        self.taken + self.deleted
    }
}

/// What the servers said to a release.
#[derive(Debug, Default)]
struct GivenBack {
    released: usize,
    nothing: usize,
    others: usize,
    /// Found nothing where an earlier question had no answer: it may have been given back by that one.
    unclear: usize,
    failures: Vec<(usize, Failure)>,
}

impl GivenBack {
    fn note(&mut self, node: usize, answer: Result<Release, Failure>, tries: u32) {
        match answer {
            Ok(Release::Released) => self.released += 1,
            Ok(Release::AlreadyExpired) if tries > 1 => self.unclear += 1,
            Ok(Release::AlreadyExpired) => self.nothing += 1,
            Ok(Release::HeldByOther) => self.others += 1,
            Err(failure) => self.failures.push((node, failure)),
        }
    }

    /// What a quorum says alike. What is unclear goes with what was clear.
    fn settled(&self, needed: usize) -> Option<Release> {
        let by_quorum = |count: usize, release| (count >= needed).then_some(release);
        let (released, nothing) = match self.released {
            0 => (0, self.nothing + self.unclear),
            released => (released + self.unclear, self.nothing),
        };
        by_quorum(released, Release::Released)
            .or_else(|| by_quorum(self.others, Release::HeldByOther))
            .or_else(|| by_quorum(nothing, Release::AlreadyExpired))
    }

    /// What a quorum's answers amount to that differ: whatever was ours anywhere is given back.
    fn in_the_end(&self, needed: usize) -> Option<Release> {
        let answered = self.released + self.nothing + self.others + self.unclear;
        (answered >= needed).then_some(match (self.released, self.others) {
            (1.., _) => Release::Released,
            (0, 1..) => Release::HeldByOther,
            (0, 0) => Release::AlreadyExpired,
        })
    }
}

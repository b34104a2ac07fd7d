//! Places and votes: how a claim gets them at every server, and how votes become a grant.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    backoff::jitter,
    claim::{Claim, Claimed, Grant},
    clock::Sent,
    error::Error,
    name::LockName,
    owner::Owner,
    presence::Presence,
    quorum::{Defeat, Event, Round, Verdict, Vote},
    store::BoxFuture,
};
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    RedlockStore,
    crowd::admitted,
    debts::Due,
    node::{ClaimWords, Node, Place},
    seat::{Seat, Standing, vote_lasts},
    taking::{Said, failures, merged, trace_of_claim},
};
use crate::{failure::Failure, room::News};

/// A server that gave no place is asked again after about this time.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// A winner takes votes that are on their way, for so long at least.
const LATE_VOTES: Duration = Duration::from_millis(100);

/// A question for a place, under way.
pub(super) type Asked<'a> = BoxFuture<'a, (usize, Result<Place, Failure>)>;

impl RedlockStore {
    /// Gives the lost round back and takes a place, in one step at each server.
    pub(super) async fn take_seats(&self, claim: &Claim, name: &LockName, round: u64) -> Result<Claimed, Error> {
        let mut seat = self.seat_of(claim, round);
        self.nodes.iter().for_each(|node| drop(node.room.enter(*claim.owner(), claim.name())));
        let presence = Presence::until(|| self.nodes.iter().for_each(|node| node.room.leave(claim.owner())));
        self.heard_by_a_quorum().await;
        let _admitted = self.crowd.claim().await;
        let mut asked: FuturesUnordered<_> =
            (0..self.nodes.len()).map(|node| self.ask_for_place(node, claim, name, &seat)).collect();
        let mut said: Vec<Option<Result<Place, Failure>>> = self.nodes.iter().map(|_| None).collect();
        let begun = self.clock.now();
        let mut until = begun.after(self.connect_timeout());
        loop {
            tokio::select! {
                biased;
                answer = asked.next() => match answer {
                    Some((node, answer)) => {
                        self.note(&mut seat, claim, node, answer.as_ref());
                        said[node] = Some(answer);
                    }
                    None => break,
                },
                () = self.clock.sleep_until(until) => break,
            }
            if seat.places() == self.quorum.needed() {
                // The others get half as much time again: most are about to answer, and who is not is asked later.
                let now = self.clock.now();
                until = until.min(now.after((now.since(begun) / 2).min(self.quorum.node_limit)));
            }
        }
        drop(asked);
        if seat.places() < self.quorum.needed() {
            let traces: Vec<_> = said.iter().map(|said| trace_of_claim(said.as_ref())).collect();
            self.retract_where(claim, name, round, &traces).await;
            return Err(self.defeated(Defeat::OutOfReach, name, &failures(&said)));
        }
        if seat.votes(self.clock.now()) >= self.quorum.needed()
            && let Some(grant) = self.confirm(claim, name, &mut seat).await
        {
            presence.stay(); // as far as late votes need it
            return Ok(Claimed::Granted(grant));
        }
        self.seats().insert(*claim.owner(), seat);
        presence.stay();
        Ok(Claimed::Queued(merged(said.iter().flatten().flatten())))
    }

    /// Until a quorum's messages are heard, or cannot be: the first waiter of a client waits for its connections too. What
    /// went wrong is told by asking.
    async fn heard_by_a_quorum(&self) {
        let mut hearing: FuturesUnordered<_> = self.nodes.iter().map(|node| node.hearing()).collect();
        let mut heard = 0;
        while heard < self.quorum.needed() {
            match hearing.next().await {
                Some(answer) => heard += usize::from(answer.is_ok()),
                None => return,
            }
        }
    }

    /// A seat that keeps its ticket when the claim is repeated.
    pub(super) fn seat_of(&self, claim: &Claim, lost_round: u64) -> Seat {
        let ticket = self.seats().get(claim.owner()).map(|seat| seat.ticket);
        let ticket = ticket.unwrap_or_else(|| self.next_round());
        Seat::new(self.nodes.len(), ticket, lost_round)
    }

    /// Turns votes into a grant by a round that counts from before its first request (T1). `None` when the round was
    /// lost: then every server is asked again, which gives the round back.
    pub(super) async fn confirm(&self, claim: &Claim, name: &LockName, seat: &mut Seat) -> Option<Grant> {
        let (owner, ttl, longest) = (*claim.owner(), claim.ttl.get(), self.guard.span(claim.ttl.get()));
        let (round_number, lost_before) = (self.next_round(), seat.lost_round);
        let now = self.clock.now();
        let sent = Sent::at(now);
        let mut round = Round::begin(self.quorum, sent);
        let asked = FuturesUnordered::new();
        for (node, standing) in self.nodes.iter().zip(&seat.standings) {
            if standing.is_vote(now) {
                let (node, name) = (node.clone(), name.clone());
                asked.push(async move {
                    let answer = node.confirm(&name, &owner, ttl, round_number).await;
                    let vote = match answer {
                        Ok(true) => node.counted(ttl, longest).await,
                        Ok(false) => Vote::Against,
                        Err(_) => Vote::Unknown,
                    };
                    Said { node: node.index, vote, answer }
                });
            } else {
                round.on(now, Event::Voted { node: node.index, vote: Vote::Against });
            }
        }
        let settled = self.settle(round, asked).await;
        let Verdict::Won { ttl } = settled.verdict else {
            seat.lost_round = round_number;
            seat.standings.iter_mut().for_each(|standing| *standing = Standing::Out(now));
            return None;
        };
        for (node, standing) in self.nodes.iter().zip(&seat.standings) {
            if standing.is_vote(now) {
                node.room.leave(&owner);
            } else {
                tokio::spawn(late_vote(node.clone(), name.clone(), owner, claim.ttl.get(), round_number, lost_before));
            }
        }
        self.seats().remove(&owner);
        Some(self.granted(claim, round_number, sent, ttl))
    }

    /// Asks one server for a place, in its room before the request leaves, so that no hand-over is missed (W1).
    pub(super) fn ask_for_place<'a>(
        &'a self,
        node: usize,
        claim: &'a Claim,
        name: &'a LockName,
        seat: &Seat,
    ) -> Asked<'a> {
        let words = self.words(claim, seat.lost_round, seat.ticket);
        let node = &self.nodes[node];
        Box::pin(async move { (node.index, node.ask_for_place(claim, name, words).await) })
    }

    pub(super) fn note(&self, seat: &mut Seat, claim: &Claim, node: usize, answer: Result<&Place, &Failure>) {
        let now = self.clock.now();
        seat.standings[node] = match answer {
            Ok(Place::Vote | Place::Granted) => self.vote_of(node, claim),
            Ok(Place::Queued(_) | Place::Busy(_)) => Standing::Queued,
            Err(_) => Standing::Out(now.after(ASK_AGAIN.mul_f64(0.5 + jitter()))),
        };
    }

    /// A vote that has just come.
    pub(super) fn vote_of(&self, node: usize, claim: &Claim) -> Standing {
        let ttl = claim.ttl.get();
        let counts = self.nodes[node].counts_already(self.guard.span(ttl));
        Standing::Vote { until: self.clock.now().after(vote_lasts(ttl)), counts }
    }

    fn connect_timeout(&self) -> Duration {
        self.nodes.first().map_or(Duration::ZERO, |node| node.link.connect_timeout())
    }
}

impl Node {
    async fn ask_for_place(&self, claim: &Claim, name: &LockName, words: ClaimWords) -> Result<Place, Failure> {
        let hearing = self.hearing().await?;
        let admitted = admitted(&self.places).await;
        self.room.enter(*claim.owner(), name);
        let place = self.claim(name, &words, hearing).await?;
        drop(admitted);
        match &place {
            Place::Queued(busy) => {
                let left = busy.holder.as_ref().and_then(|holder| holder.expires_in).unwrap_or_default();
                self.room.queued(claim.owner(), left);
            }
            Place::Vote => {
                self.room.queued(claim.owner(), vote_lasts(claim.ttl.get()));
            }
            Place::Granted | Place::Busy(_) => {}
        }
        self.counts(Duration::ZERO).await; // asks the server at most once for each connection: known by the time it matters
        Ok(place)
    }
}

/// After a grant: a vote that is on its way is one more than needed, and makes the grant bear one more failure. What does
/// not come soon is not waited for, and the place is given up.
async fn late_vote(node: Arc<Node>, name: LockName, owner: Owner, ttl: Duration, round: u64, lost_before: u64) {
    let bell = node.room.enter(owner, &name);
    let news = tokio::time::timeout(LATE_VOTES, bell.news()).await;
    let confirmed = match news {
        Ok(News::Handed) => node.confirm(&name, &owner, ttl, round).await.unwrap_or(false),
        Ok(News::AskAgain) | Err(_) => false,
    };
    node.room.leave(&owner);
    // A grant of this round stays; a release that came first has removed everything.
    if !confirmed && node.retract(&name, &owner, lost_before).await.is_err() {
        node.owe(&name, &owner, Due::Rounds(lost_before), ttl, true);
    }
}

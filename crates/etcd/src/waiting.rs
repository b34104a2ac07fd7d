//! Waiting for the turn: a watch on whoever is in the way, and a look at everything before it is believed.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    backoff::{Backoff, jitter},
    claim::{Claim, Grant, Patience},
    clock,
    error::{Error, Operation},
    refusal::Refusal,
};

use crate::{
    ears::Event,
    failure::{Failure, Sort},
    queue::{Place, Standing, Taken, Until},
    session::Session,
    store::{EtcdStore, refused},
};

/// A waiter looks for itself after this, should no watch have told it.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// An outage that a waiter bridges before it tells its client.
const BRIDGED: Duration = Duration::from_secs(5);

/// Whose turn it is.
enum Turn {
    Ours(Grant),
    After(Place, Arc<Session>),
    Nobodys(Refusal),
    /// Look again.
    Unsettled,
}

impl EtcdStore {
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Grant, Error> {
        let mut closed = self.queue.sessions.closed.subscribe();
        let turn = tokio::select! {
            biased;
            // Wherever it is in its asking: after that, nobody would wake it.
            _ = closed.wait_for(|closed| *closed) => Err(Failure::closed()),
            turn = self.wait_for_turn(claim) => turn,
        };
        turn.map_err(|failure| failure.error(Operation::Wait, Some(claim.name())))?
            .map_err(|refusal| refused(Operation::Wait, refusal, claim.name()))
    }

    /// `Err` inside when the name came into use for something else, or its limit was changed.
    async fn wait_for_turn(&self, claim: &Claim) -> Result<Result<Grant, Refusal>, Failure> {
        // The claim has found its place already; a watch from there on misses nothing.
        let mut waiting = self.queue.ledger.place(claim.owner());
        let mut pauses = pauses();
        let mut outage = None;
        loop {
            self.queue.ledger.unattended(claim.owner(), None);
            let mut rung = false;
            if let (Some((place, session)), None) = (&waiting, outage) {
                rung = self.called(claim, place, session).await;
            }
            let place = waiting.as_ref().map(|(place, _)| place);
            match self.look_whose_turn(claim, place).await {
                Ok(Turn::Ours(grant)) => return Ok(Ok(grant)),
                Ok(Turn::Nobodys(refusal)) => return Ok(Err(refusal)),
                Ok(Turn::After(next, session)) => {
                    outage = None;
                    if rung && next.until == Until::Gone && place.is_some_and(|place| place.before == next.before) {
                        // For nothing: the watch is in trouble.
                        clock::sleep(&*self.clock, pauses.pause()).await;
                    } else {
                        pauses = self::pauses();
                    }
                    waiting = Some((next, session));
                }
                Ok(Turn::Unsettled) => waiting = None,
                // Another member will lead, or the server come back: bridged for a while, with the place kept.
                Err(failure) if failure.sort == Sort::Member => {
                    let now = self.clock.now();
                    if now.since(*outage.get_or_insert(now)) >= BRIDGED {
                        return Err(failure);
                    }
                    clock::sleep(&*self.clock, pauses.pause()).await;
                }
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Waits until the claim before this one is gone, or something else is to be looked at; whether a watch told so.
    async fn called(&self, claim: &Claim, place: &Place, session: &Session) -> bool {
        let permits = || self.queue.keys.permits(claim.name());
        let (key, event) = match place.until {
            Until::Gone => (&place.before.key, Event::Deletion),
            Until::NoWriter { .. } | Until::Next => (&place.before.key, Event::Change),
            Until::Room => (&permits(), Event::ChangeBelow),
        };
        let before = self.ears.watch(*claim.owner(), key, event, place.seen + 1);
        loop {
            tokio::select! {
                () = before.rung() => return true,
                () = session.lost() => return false,
                () = clock::sleep(&*self.clock, LOOK_AGAIN.mul_f64(0.75 + jitter() / 2.0)) => {}
            }
            if !matches!(self.queue.is_still_behind(claim, place).await, Ok(true)) {
                return false;
            }
        }
    }

    /// Whether it is this claim's turn. It is, when the cluster shows the claim to be there and to hold, on a session
    /// that lives as of after `since`: all three, in one go (T1).
    async fn look_whose_turn(&self, claim: &Claim, place: Option<&Place>) -> Result<Turn, Failure> {
        let since = self.clock.now();
        let session = self.queue.ledger.session(claim.owner()).filter(|session| !session.is_lost());
        let Some(session) = session else {
            // Its session ended, and its place in the queue with it, or nobody has claimed it yet.
            return self.take_place_anew(claim).await;
        };
        let look = self.queue.look(claim, place);
        let standing = match place {
            None => match look.await? {
                // Nobody called: so it was its turn from the beginning, and the keep-alive is still to come.
                holds @ Standing::Holds(_) => self.queue.sessions.kept(&session, since).await.map(|()| holds),
                other => Ok(other),
            },
            Some(_) => {
                let (standing, kept) = tokio::join!(look, self.queue.sessions.kept(&session, since));
                kept.and(standing)
            }
        };
        match standing {
            Ok(Standing::Holds(held)) => self.believe(claim, &held, &session).map(Turn::Ours),
            Ok(Standing::Refused(refusal)) => {
                self.queue.leave(claim).await?;
                Ok(Turn::Nobodys(refusal))
            }
            Ok(Standing::Behind(next)) => Ok(Turn::After(next, session)),
            // Deleted by somebody: a new place, at the end.
            Ok(Standing::Gone) => self.take_place_anew(claim).await,
            Err(failure) if failure.sort == Sort::SessionGone => Ok(Turn::Unsettled),
            Err(failure) => Err(failure),
        }
    }

    async fn take_place_anew(&self, claim: &Claim) -> Result<Turn, Failure> {
        let Taken { standing, session, .. } = self.queue.take(claim, Patience::Queue).await?;
        match standing {
            Standing::Holds(held) => self.believe(claim, &held, &session).map(Turn::Ours),
            Standing::Behind(next) => Ok(Turn::After(next, session)),
            Standing::Refused(refusal) => Ok(Turn::Nobodys(refusal)),
            Standing::Gone => Ok(Turn::Unsettled),
        }
    }
}

/// Between looks that came to nothing.
fn pauses() -> Backoff {
    Backoff::new(Duration::from_millis(10), Duration::from_secs(1))
}

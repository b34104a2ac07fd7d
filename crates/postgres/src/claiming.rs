//! Claims: taking a lock, or several in one step, and waiting for one's turn.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Busy, Claim, Claimed, Grant, Mode, Patience, Want},
    clock::Sent,
    error::{Applied, Error, ErrorKind, Operation},
    name::LockName,
    presence::Presence,
    refusal::Refusal,
};
use tokio_postgres::Row;

use crate::{
    answers::{ClaimAnswer, InTheWay},
    failure::Failure,
    record,
    session::{Parameter, Session},
    statements::Statement,
    store::{PostgresStore, in_order, refused},
};

/// For how long the holder of a session's grant believes in it after the last answer on that session. The server, which is
/// told so by us, notices a vanished client after 35 s at the soonest: believed longer than this, a grant could be somebody
/// else's already.
const SESSION_LASTS: Duration = Duration::from_secs(15);

impl PostgresStore {
    /// A waiter is in the room before its claim is sent, so that no hand-over is missed (W1). It leaves the room again unless it
    /// is queued; a place that the server may have given all the same goes with the release that follows (C1).
    ///
    /// A free lock needs no connection for messages. A waiter does not wait for one before it has its place: it counts as alive
    /// meanwhile, and is announced as soon as there is one.
    pub(crate) async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        if patience == Patience::Once || claim.holding.wants().len() > 1 {
            return self.ask(claim, patience, false).await;
        }
        self.room.enter(*claim.owner(), claim.name());
        let presence = Presence::until(|| self.room.stop_waiting(claim.owner()));
        let hears = self.room.hears();
        let claimed = self.ask(claim, patience, hears).await?;
        if let Claimed::Queued(busy) = &claimed {
            let left = busy.holder.as_ref().and_then(|holder| holder.expires_in);
            self.room.queued(claim.owner(), left, hears);
            presence.stay();
        }
        Ok(claimed)
    }

    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Grant, Error> {
        let bell = self.room.enter(*claim.owner(), claim.name());
        loop {
            bell.notified().await;
            // Handed over, or the place is in doubt. Either way a claim confirms the one or finds or takes the other (T1).
            match self.take(claim, Patience::Queue).await? {
                Claimed::Granted(grant) => return Ok(grant),
                Claimed::Queued(_) => {}
                Claimed::Busy(_) => return Err(Failure::puzzling().error(Operation::Wait, Some(claim.name()))),
            }
        }
    }

    /// For how long a grant is believed in from when its request was sent.
    pub(crate) fn lasts(&self, claim: &Claim) -> Duration {
        if self.room.in_session { SESSION_LASTS } else { claim.ttl.get() }
    }

    async fn ask(&self, claim: &Claim, patience: Patience, hears: bool) -> Result<Claimed, Error> {
        let session = if self.room.in_session { Some(self.present_session().await.map_err(of(claim))?) } else { None };
        let counted_from = Sent::now(&*self.clock);
        let rows = match claim.holding.wants() {
            [want] => self.ask_for_one(claim, want, patience, hears, session.as_ref()).await?,
            _ => self.ask_for_several(claim, session.as_ref()).await?,
        };
        match ClaimAnswer::read(&rows).ok_or_else(Failure::puzzling).map_err(of(claim))? {
            ClaimAnswer::Granted { issued, slots } => {
                let grant = Grant {
                    counted_from,
                    ttl: Some(self.lasts(claim)),
                    fence: record::fence_of(issued),
                    slots: slots.unwrap_or_default().into(),
                };
                self.hold(claim, session.as_ref(), &grant).map_err(of(claim))?;
                Ok(Claimed::Granted(grant))
            }
            ClaimAnswer::Busy(other) => Ok(Claimed::Busy(busy(claim, &other)?)),
            ClaimAnswer::Queued(other) => Ok(Claimed::Queued(busy(claim, &other)?)),
            ClaimAnswer::Refused { limit, nth } => {
                let refusal = limit.map_or(Refusal::LockInUse, |of| Refusal::SemaphoreInUse { of });
                Err(refused(Operation::Claim, refusal, nth_of(claim, nth)?.unwrap_or(claim.name())))
            }
        }
    }

    async fn ask_for_one(
        &self,
        claim: &Claim,
        want: &Want,
        patience: Patience,
        hears: bool,
        session: Option<&Arc<Session>>,
    ) -> Result<Vec<Row>, Error> {
        let (shared, permits, limit) = kind(want)?;
        let (room, statements) = (&self.room, &self.room.link.statements);
        let (owner, ttl) = (claim.owner().as_bytes().as_slice(), record::ttl(claim.ttl));
        let particulars = self.particulars.of(&claim.claimant, record::json);
        let patience = match patience {
            Patience::Once => "once",
            Patience::Queue => "queue",
        };
        let with: [Parameter<'_>; 12] = [
            &room.namespace.as_str(),
            &want.name.as_str(),
            &owner,
            &ttl,
            &&*particulars,
            &room.number(),
            &patience,
            &hears,
            &room.in_session,
            &shared,
            &permits,
            &limit,
        ];
        let sent = match want.mode {
            Mode::Exclusive => self.send(session, &statements.take, &with[..9]).await,
            Mode::Shared | Mode::Permits { .. } => self.send(session, &statements.claim, &with).await,
        };
        sent.map_err(of(claim))
    }

    /// In one step, or not at all: several locks have no queue in common.
    async fn ask_for_several(&self, claim: &Claim, session: Option<&Arc<Session>>) -> Result<Vec<Row>, Error> {
        if claim.holding.wants().iter().any(|want| want.mode != Mode::Exclusive) {
            let said = "PostgreSQL takes several locks in one step for one holder alone";
            return Err(of(claim)(Failure::new(ErrorKind::Unsupported, Applied::No, said)));
        }
        let (room, names) = (&self.room, in_order(&claim.holding));
        let (owner, ttl) = (claim.owner().as_bytes().as_slice(), record::ttl(claim.ttl));
        let particulars = self.particulars.of(&claim.claimant, record::json);
        let with: [Parameter<'_>; 7] =
            [&room.namespace.as_str(), &names, &owner, &ttl, &&*particulars, &room.number(), &room.in_session];
        self.send(session, &room.link.statements.take_several, &with).await.map_err(of(claim))
    }

    /// A session's claims go over the session itself: it has ended if this fails, and its number with it.
    async fn send(
        &self,
        session: Option<&Arc<Session>>,
        statement: &Statement,
        with: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Failure> {
        match session {
            None => self.room.link.call(statement, with).await,
            Some(session) => self.room.link.send(session, statement, with).await,
        }
    }

    /// Remembers a grant, unless it makes no sense or its session ended in the meantime.
    fn hold(&self, claim: &Claim, session: Option<&Arc<Session>>, grant: &Grant) -> Result<(), Failure> {
        if grant.fence.is_none() && claim.holding.wants()[0].mode != Mode::Shared {
            return Err(Failure::puzzling()); // only a reader has none, of what nobody has written
        }
        self.room.stop_waiting(claim.owner());
        self.room.hold(&claim.holding);
        if session.is_some_and(|session| !self.room.is_present(session)) {
            self.room.leave(claim.owner());
            return Err(Failure::session_ended());
        }
        Ok(())
    }

    /// The session that grants of `mode=session` live by; waits for a new one after it ended.
    async fn present_session(&self) -> Result<Arc<Session>, Failure> {
        self.room.hearing().await?;
        self.room.session().ok_or_else(Failure::session_ended)
    }
}

fn of(claim: &Claim) -> impl Fn(Failure) -> Error {
    |failure| failure.error(Operation::Claim, Some(claim.name()))
}

fn busy(claim: &Claim, other: &InTheWay) -> Result<Busy, Error> {
    Ok(Busy { lock: nth_of(claim, other.nth)?.cloned(), ..other.busy() })
}

/// Which of several locks an answer is about; `None` of an answer about the only one.
fn nth_of(claim: &Claim, nth: Option<usize>) -> Result<Option<&LockName>, Error> {
    let Some(nth) = nth else { return Ok(None) };
    let names = in_order(&claim.holding);
    let meant = nth.checked_sub(1).and_then(|place| names.get(place));
    let wants = claim.holding.wants().iter();
    let named = meant.and_then(|meant| wants.map(|want| &want.name).find(|name| name.as_str() == *meant));
    named.map(Some).ok_or_else(Failure::puzzling).map_err(of(claim))
}

/// How it is wanted, as `claim.sql` takes it: whether shared, how many permits, of how many.
fn kind(want: &Want) -> Result<(bool, Option<i32>, Option<i32>), Error> {
    if let Some(refusal) = Refusal::of(want.mode) {
        return Err(refused(Operation::Claim, refusal, &want.name));
    }
    match want.mode {
        Mode::Exclusive => Ok((false, None, None)),
        Mode::Shared => Ok((true, None, None)),
        Mode::Permits { count, of } => {
            let number = |number| limit(Operation::Claim, number, &want.name);
            Ok((false, Some(number(count)?), Some(number(of)?)))
        }
    }
}

/// As many as a column of the table can say.
pub(crate) fn limit(operation: Operation, number: u32, name: &LockName) -> Result<i32, Error> {
    i32::try_from(number).map_err(|_| {
        let said = format!("PostgreSQL counts permits up to {}", i32::MAX);
        Failure::new(ErrorKind::InvalidInput, Applied::No, said).error(operation, Some(name))
    })
}

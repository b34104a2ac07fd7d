//! The store over lease rows.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{
        Claim, Claimant, Claimed, Forced, Grant, Holding, LockState, LossReason, Mode, Patience, Release, Renewal, Want,
    },
    clock::{BootClock, Clock, Sent},
    error::{Applied, Error, ErrorKind, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    purpose::{Correctness, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, LossReporter, Store},
};
use tokio_postgres::types::Type;

use crate::{
    answers::{ClaimAnswer, Seen, forced},
    config::{self, PostgresConfig},
    connection::Link,
    failure::Failure,
    record,
    room::{Hearing, Room},
    session::{Parameter, Session},
    statements::LISTENS,
};

/// For how long the holder of a session's grant believes in it after the last answer on that session. The server, which is
/// told so by us, notices a vanished client after 35 s at the soonest: believed longer than this, a grant could be somebody
/// else's already.
const SESSION_LASTS: Duration = Duration::from_secs(15);

/// Leases renewed by one statement. Their rows stay locked until it is committed, so that more would hold up releases.
const BATCH: usize = 250;

/// Locks in the rows of a PostgreSQL table. Of the class [`Correctness`]: each grant has a fence.
///
/// Dropping it ends its background work; grants then end by their TTL.
pub struct PostgresStore {
    room: Arc<Room>,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    particulars: Mutex<Option<(Arc<Claimant>, Arc<str>)>>,
}

/// How a claim is asked for, as `claim.sql` describes it.
const ONCE: &str = "once";
const QUEUE: &str = "queue";

impl PostgresStore {
    /// Connects to the server that takes writes, and checks its tables.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], [`ErrorKind::PermissionDenied`] or [`ErrorKind::Misconfigured`], within the limits of
    /// `config`. Without tables the message names the command that makes them.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(config: &PostgresConfig, namespace: &Namespace) -> Result<Self, Error> {
        Self::open_with_clock(config, namespace, BootClock::shared()).await
    }

    /// As [`open`](PostgresStore::open), with leases counted on `clock`.
    ///
    /// # Errors
    /// As for [`open`](PostgresStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_with_clock(
        config: &PostgresConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let link = Arc::new(Link::new(config, clock.clone())?);
        link.session().await.map_err(|failure| failure.error(Operation::Open, None))?;
        let in_session = config.mode == config::Mode::Session;
        let room = Room::new(link, namespace.clone(), in_session, clock.clone());
        let capabilities = if in_session { crate::session_capabilities() } else { crate::capabilities() };
        let store = Self { room, clock, capabilities, particulars: Mutex::default() };
        if in_session {
            store.begin_session().await.map_err(|failure| failure.error(Operation::Open, None))?;
        }
        Ok(store)
    }

    /// A session's grants live by an advisory lock that the session has. It must be the session's own, and real.
    async fn begin_session(&self) -> Result<(), Failure> {
        if self.room.hearing().await? == Hearing::Polling {
            let said = "a pooler lies before PostgreSQL: a session there is nobody's, and could not hold a lock";
            return Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said)
                .advise("connect without the pooler, or use `mode=lease`"));
        }
        let number = self.room.number().unwrap_or_default();
        let other = self.room.link.session().await?;
        let text = "SELECT pg_try_advisory_lock($1, $2)";
        let taken = other.ask(text, &[(&LISTENS, Type::INT4), (&number, Type::INT4)]).await?;
        if taken.first().and_then(|row| row.try_get(0).ok()) == Some(false) {
            return Ok(());
        }
        let said = "this database grants an advisory lock that another connection holds";
        Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said)
            .advise("it is no PostgreSQL, or something between rewrites statements; use `mode=lease`"))
    }

    pub(crate) fn room(&self) -> &Arc<Room> {
        &self.room
    }

    async fn take(&self, claim: &Claim, patience: &str, hears: bool) -> Result<Claimed, Error> {
        let want = only_one(&claim.holding)?;
        let name = &want.name;
        let (shared, permits, limit) = kind(want)?;
        let failed = |failure: Failure| failure.error(Operation::Claim, Some(name));
        let ttl = claim.ttl.millis() as i64; // at most a year
        let (owner, particulars) = (claim.owner().as_bytes().as_slice(), self.particulars(&claim.claimant));
        let (room, statements) = (&self.room, &self.room.link.statements);
        let session = if room.in_session { Some(self.present_session().await.map_err(failed)?) } else { None };
        let (namespace, name_text, number) = (room.namespace.as_str(), name.as_str(), room.number());
        let in_session = room.in_session;
        let with: [Parameter<'_>; 12] = [
            &namespace,
            &name_text,
            &owner,
            &ttl,
            &&*particulars,
            &number,
            &patience,
            &hears,
            &in_session,
            &shared,
            &permits,
            &limit,
        ];
        let (statement, with) = match want.mode {
            Mode::Exclusive => (&statements.claim, &with[..9]),
            Mode::Shared | Mode::Permits { .. } => (&statements.share, &with[..]),
        };
        let counted_from = Sent::now(&*self.clock);
        let rows = match &session {
            None => room.link.call(statement, with).await,
            // On the session itself, which has ended if this fails, and the number with it.
            Some(session) => room.link.send(session, statement, with).await,
        };
        let rows = rows.map_err(failed)?;
        let answer = ClaimAnswer::read(&rows).ok_or_else(Failure::puzzling).map_err(failed)?;
        Ok(match answer {
            ClaimAnswer::Granted { issued, slots } => {
                let fence = record::fence_of(issued);
                if fence.is_none() && !shared {
                    return Err(failed(Failure::puzzling())); // only a reader has none, of what nobody has written
                }
                room.stop_waiting(claim.owner());
                room.hold(*claim.owner(), name);
                if session.is_some_and(|session| !room.is_present(&session)) {
                    room.leave(claim.owner());
                    return Err(failed(ended()));
                }
                Claimed::Granted(Grant {
                    counted_from,
                    ttl: Some(self.lasts(claim)),
                    fence,
                    slots: slots.unwrap_or_default().into(),
                })
            }
            ClaimAnswer::Busy(other) => Claimed::Busy(other.busy()),
            ClaimAnswer::Queued(other) => Claimed::Queued(other.busy()),
            ClaimAnswer::Refused { limit: Some(of) } => return Err(refused(Refusal::SemaphoreInUse { of }, name)),
            ClaimAnswer::Refused { limit: None } => return Err(refused(Refusal::LockInUse, name)),
        })
    }

    /// The session that grants of `mode=session` live by; waits for a new one after it ended.
    async fn present_session(&self) -> Result<Arc<Session>, Failure> {
        self.room.hearing().await?;
        self.room.session().ok_or_else(ended)
    }

    fn lasts(&self, claim: &Claim) -> Duration {
        if self.room.in_session { SESSION_LASTS } else { claim.ttl.get() }
    }

    /// As JSON. A client's claims share one claimant unless they carry labels, so the last one is kept.
    fn particulars(&self, claimant: &Arc<Claimant>) -> Arc<str> {
        let mut last = self.particulars.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((whose, json)) if Arc::ptr_eq(whose, claimant) => json.clone(),
            _ => {
                let json: Arc<str> = record::json(claimant).into();
                *last = Some((claimant.clone(), json.clone()));
                json
            }
        }
    }

    /// In the room before the claim is sent, so that no hand-over is missed (W1). It leaves the room again unless it is
    /// queued; a place that the server may have given all the same goes with the release that follows (C1).
    ///
    /// A free lock needs no connection for messages. A waiter does not wait for one before it has its place: it counts as alive
    /// meanwhile, and is announced as soon as there is one.
    async fn take_a_place(&self, claim: &Claim) -> Result<Claimed, Error> {
        let presence = Presence::enter(&self.room, claim);
        let hears = self.room.hears();
        let claimed = self.take(claim, QUEUE, hears).await?;
        if let Claimed::Queued(busy) = &claimed {
            let left = busy.holder.as_ref().and_then(|holder| holder.expires_in);
            self.room.queued(claim.owner(), left, hears);
            presence.stay();
        }
        Ok(claimed)
    }

    async fn wait(&self, claim: &Claim) -> Result<Grant, Error> {
        let bell = self.room.enter(*claim.owner(), claim.name());
        loop {
            bell.notified().await;
            // Handed over, or the place is in doubt. Either way a claim confirms the one or finds or takes the other (T1).
            match self.take_a_place(claim).await? {
                Claimed::Granted(grant) => return Ok(grant),
                Claimed::Queued(_) => {}
                Claimed::Busy(_) => return Err(Failure::puzzling().error(Operation::Wait, Some(claim.name()))),
            }
        }
    }

    async fn extend(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let names: Vec<&str> = claims.iter().map(|claim| claim.name().as_str()).collect();
        let owners: Vec<&[u8]> = claims.iter().map(|claim| claim.owner().as_bytes().as_slice()).collect();
        let ttls: Vec<i64> = claims.iter().map(|claim| claim.ttl.millis() as i64).collect();
        let (room, statement) = (&self.room, &self.room.link.statements.renew);
        let (namespace, number) = (room.namespace.as_str(), room.number());
        let with: [Parameter<'_>; 6] = [&namespace, &names, &owners, &ttls, &number, &room.in_session];
        let counted_from = Sent::now(&*self.clock);
        let answer = match (room.in_session, room.session()) {
            (false, _) => room.link.call(statement, &with).await,
            (true, Some(session)) => room.link.send(&session, statement, &with).await,
            (true, None) => Err(ended()),
        };
        let answers = answer.and_then(|rows| {
            let answers = rows.first().and_then(|row| row.try_get::<_, Vec<String>>(0).ok());
            answers.filter(|answers| answers.len() == claims.len()).ok_or_else(Failure::puzzling)
        });
        match answers {
            Ok(answers) => {
                let renewed =
                    |(claim, answer): (&Arc<Claim>, String)| renewal(claim, &answer, counted_from, self.lasts(claim));
                claims.iter().zip(answers).map(renewed).collect()
            }
            Err(failure) => {
                claims.iter().map(|claim| Err(failure.error(Operation::Renew, Some(claim.name())))).collect()
            }
        }
    }

    async fn give_back(&self, holding: &Holding) -> Result<Release, Error> {
        self.room.leave(&holding.owner);
        let name = &only_one(holding)?.name;
        let (room, statement) = (&self.room, &self.room.link.statements.release);
        let owner = holding.owner.as_bytes().as_slice();
        let with: [Parameter<'_>; 3] = [&room.namespace.as_str(), &name.as_str(), &owner];
        // Behind the claim, on the connection where that was sent: one that was dropped half way is never applied later than
        // its release.
        let answer = match room.session().filter(|_| room.in_session) {
            None => room.link.call(statement, &with).await,
            Some(session) => match room.link.send(&session, statement, &with).await {
                Err(_) if session.is_closed() => room.link.call(statement, &with).await,
                answer => answer,
            },
        };
        let answer =
            answer.and_then(|rows| match rows.first().and_then(|row| row.try_get::<_, String>(0).ok()).as_deref() {
                Some("released") => Ok(Release::Released),
                Some("expired") => Ok(Release::AlreadyExpired),
                Some("other") => Ok(Release::HeldByOther),
                _ => Err(Failure::puzzling()),
            });
        answer.map_err(|failure| failure.error(Operation::Release, Some(name)))
    }

    async fn list(&self, only: Option<&LockName>) -> Result<Vec<LockState>, Error> {
        let (room, statement) = (&self.room, &self.room.link.statements.inspect);
        let name = only.map(LockName::as_str);
        let answer = room.link.call(statement, &[&room.namespace.as_str(), &name]).await;
        let rows = answer.map_err(|failure| failure.error(Operation::Inspect, only))?;
        let mut states: Vec<LockState> = Vec::new();
        for row in &rows {
            let failed = || Failure::puzzling().error(Operation::Inspect, only);
            let seen = Seen::read(row).ok_or_else(failed)?;
            if states.last().is_none_or(|state| state.name != seen.name) {
                states.push(LockState { name: seen.name.clone(), holders: Vec::new(), waiters: Vec::new() });
            }
            if let Some(state) = states.last_mut() {
                seen.add_to(state);
            }
        }
        Ok(states)
    }

    async fn lower(&self, claim: &Claim) -> Result<Renewal, Error> {
        let name = &only_one(&claim.holding)?.name;
        let failed = |failure: Failure| failure.error(Operation::Renew, Some(name));
        let (room, statement) = (&self.room, &self.room.link.statements.downgrade);
        let (owner, ttl) = (claim.owner().as_bytes().as_slice(), claim.ttl.millis() as i64);
        let (namespace, name_text, number) = (room.namespace.as_str(), name.as_str(), room.number());
        let with: [Parameter<'_>; 6] = [&namespace, &name_text, &owner, &ttl, &number, &room.in_session];
        let counted_from = Sent::now(&*self.clock);
        let rows = match (room.in_session, room.session()) {
            (false, _) => room.link.call(statement, &with).await,
            (true, Some(session)) => room.link.send(&session, statement, &with).await,
            (true, None) => Err(ended()),
        };
        let rows = rows.map_err(failed)?;
        let answer = rows.first().and_then(|row| row.try_get(0).ok()).ok_or_else(Failure::puzzling).map_err(failed)?;
        renewal(claim, answer, counted_from, self.lasts(claim))
    }

    async fn change_limit(&self, name: &LockName, of: u32) -> Result<Option<u32>, Error> {
        if of == 0 {
            return Err(refused(Refusal::NoPermits, name));
        }
        let (room, statement, of) = (&self.room, &self.room.link.statements.resize, limit(of, name)?);
        // Not repeated: the former limit would be the new one by then.
        let answer = room.link.call_once(statement, &[&room.namespace.as_str(), &name.as_str(), &of]).await;
        let failed = |failure: Failure| failure.error(Operation::Update, Some(name));
        let rows = answer.map_err(failed)?;
        let row = rows.first().ok_or_else(Failure::puzzling).map_err(failed)?;
        let former: Option<i32> = row.try_get(1).unwrap_or_default();
        match (row.try_get(0).ok(), former.and_then(|former| u32::try_from(former).ok())) {
            (Some("free"), _) => Ok(None),
            (Some("lock"), _) => Err(refused(Refusal::LockInUse, name)),
            (Some("resized"), Some(former)) => Ok(Some(former)),
            _ => Err(failed(Failure::puzzling())),
        }
    }

    async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Error> {
        let (room, statement) = (&self.room, &self.room.link.statements.force);
        let fence = if_fence.map(|fence| fence.get() as i64); // 63 bits
        // Not repeated: by then a waiter may hold it, who would lose it too.
        let answer = room.link.call_once(statement, &[&room.namespace.as_str(), &name.as_str(), &fence]).await;
        let forced = answer.and_then(|rows| rows.first().and_then(forced).ok_or_else(Failure::puzzling));
        forced.map_err(|failure| failure.error(Operation::Force, Some(name)))
    }
}

/// A waiter's presence in the room while its claim is under way.
struct Presence<'a> {
    room: &'a Room,
    claim: &'a Claim,
    stays: bool,
}

impl<'a> Presence<'a> {
    fn enter(room: &'a Room, claim: &'a Claim) -> Self {
        room.enter(*claim.owner(), claim.name());
        Self { room, claim, stays: false }
    }

    fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for Presence<'_> {
    fn drop(&mut self) {
        if !self.stays {
            self.room.stop_waiting(self.claim.owner());
        }
    }
}

fn renewal(claim: &Claim, answer: &str, counted_from: Sent, ttl: Duration) -> Result<Renewal, Error> {
    let failed = |failure: Failure| Err(failure.error(Operation::Renew, Some(claim.name())));
    match answer {
        "renewed" => Ok(Renewal::Renewed { counted_from, ttl }),
        "ended" => Ok(Renewal::Lost(LossReason::SessionExpired)),
        "expired" => Ok(Renewal::Lost(LossReason::Expired)),
        "deleted" => Ok(Renewal::Lost(LossReason::Deleted)),
        "taken" => Ok(Renewal::Lost(LossReason::TakenOver)),
        "locked" => {
            failed(Failure::new(ErrorKind::Unavailable, Applied::No, "another transaction has locked the lock's row"))
        }
        _ => failed(Failure::puzzling()),
    }
}

fn ended() -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::Unknown, "the session that the lock would live by has ended")
}

fn only_one(holding: &Holding) -> Result<&Want, Error> {
    match holding.wants() {
        [want] => Ok(want),
        _ => {
            let failure = Failure::new(ErrorKind::Unsupported, Applied::No, "PostgreSQL gives one lock per claim");
            Err(failure.error(Operation::Claim, Some(holding.name())))
        }
    }
}

/// How it is wanted, as `claim.sql` takes it: whether shared, how many permits, of how many.
fn kind(want: &Want) -> Result<(bool, Option<i32>, Option<i32>), Error> {
    if let Some(refusal) = Refusal::of(want.mode) {
        return Err(refused(refusal, &want.name));
    }
    match want.mode {
        Mode::Exclusive => Ok((false, None, None)),
        Mode::Shared => Ok((true, None, None)),
        Mode::Permits { count, of } => Ok((false, Some(limit(count, &want.name)?), Some(limit(of, &want.name)?))),
    }
}

/// As many as a column of the table can say.
fn limit(number: u32, name: &LockName) -> Result<i32, Error> {
    i32::try_from(number).map_err(|_| {
        let said = format!("PostgreSQL counts permits up to {}", i32::MAX);
        Failure::new(ErrorKind::InvalidInput, Applied::No, said).error(Operation::Claim, Some(name))
    })
}

fn refused(refusal: Refusal, name: &LockName) -> Error {
    refusal.error(name).in_store(crate::STORE)
}

impl Store for PostgresStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        match patience {
            Patience::Once => Box::pin(self.take(claim, ONCE, false)),
            Patience::Queue => Box::pin(self.take_a_place(claim)),
        }
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(claims.len());
            for chunk in claims.chunks(BATCH) {
                answers.extend(self.extend(chunk).await);
            }
            answers
        })
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(self.give_back(holding))
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(self.list(only))
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(self.break_lock(name, if_fence))
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(self.lower(claim))
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(self.change_limit(name, of))
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn report_losses(&self, to: LossReporter) {
        self.room.report_losses(to);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            // The connection first: a waiter that is woken must find it closed, or it would queue again unheard.
            self.room.link.close();
            self.room.close();
        })
    }
}

impl TypedStore for PostgresStore {
    type Serves = Correctness;
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        // The room's task holds the room, not the store.
        self.room.close();
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("namespace", &self.room.namespace).finish_non_exhaustive()
    }
}

//! Sessions: one lease of etcd's for each client and TTL, which all its claims of that TTL hang on.
//!
//! Who can believe what: a session's grants are believed until its TTL after the *sending* of its last answered
//! keep-alive, less the drift allowance. The cluster counts the TTL from when that keep-alive arrived, so it ends later.
//! One keep-alive serves all claims of a session.
//!
//! # Requests of unknown outcome
//!
//! A request without an answer may be applied at any later time: a frozen member carries it out when it wakes. A claim
//! that appears after it was given back would hold its lock for as long as the session lives. So each claim is on
//! condition of its session's *barrier*, a key that does not exist at first. Giving back a claim of unknown outcome
//! raises the barrier in the same transaction; whatever was sent before can take no more effect then.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{Clock, Moment, Sent},
    limits::Ttl,
};
use tokio::sync::watch;

use crate::{
    api::{
        LeaseClient, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, TxnRequest, delete, put, revision,
    },
    failure::{Failure, Sort},
    keys::Keys,
    ledger::{Leaving, Ledger},
    link::{Answer, Link},
};

/// A session without claims is ended after this.
const IDLE: Duration = Duration::from_secs(300);

/// One lease in etcd, kept alive.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: i64,
    /// The key of its barrier.
    pub(crate) barrier: Vec<u8>,
    state: Mutex<State>,
    /// Held by the one task that sends a keep-alive.
    renewing: tokio::sync::Mutex<Failed>,
    lost: watch::Sender<bool>,
}

#[derive(Debug)]
struct State {
    /// When the last keep-alive that was answered had been sent; the grant at first.
    answered: Sent,
    /// What the cluster granted, not what was asked for.
    ttl: Duration,
    /// The revision that last raised the barrier; 0 before that.
    barrier: i64,
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What its grants count from, and for how long.
    pub(crate) fn granted(&self) -> (Sent, Duration) {
        let state = self.lock();
        (state.answered, state.ttl)
    }

    /// The barrier as far as we know.
    pub(crate) fn barrier_revision(&self) -> i64 {
        self.lock().barrier
    }

    /// The barrier was seen, or raised, at this revision.
    pub(crate) fn barrier_is_at(&self, revision: i64) {
        let mut state = self.lock();
        state.barrier = state.barrier.max(revision);
    }

    pub(crate) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Completes when the session is lost. Cancel safe.
    pub(crate) async fn lost(&self) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.lost.subscribe().wait_for(|lost| *lost).await;
    }
}

/// All sessions of one client.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) link: Arc<Link>,
    keys: Keys,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) ledger: Arc<Ledger>,
    slots: Mutex<HashMap<i64, Arc<Slot>>>,
    pub(crate) closed: watch::Sender<bool>,
    /// Whether somebody looks after what is overdue.
    pub(crate) sweeping: AtomicBool,
}

/// The place of the session with one TTL.
#[derive(Debug, Default)]
struct Slot {
    current: Mutex<Option<Arc<Session>>>,
    /// Held by the one task that opens it.
    opening: tokio::sync::Mutex<Failed>,
}

/// How the last try failed that one task made for all who stand in line, and when. Whoever stood there by then is told so: a
/// try for each of them, one after the other, would have no limit.
#[derive(Debug, Default)]
struct Failed(Option<(Moment, Failure)>);

impl Failed {
    /// What to tell whoever came then.
    fn told_since(&self, came: Moment) -> Result<(), Failure> {
        match &self.0 {
            Some((at, failure)) if came < *at => Err(failure.clone()),
            _ => Ok(()),
        }
    }

    fn note<T>(&mut self, tried: Result<T, Failure>, clock: &dyn Clock) -> Result<T, Failure> {
        self.0 = tried.as_ref().err().map(|failure| (clock.now(), failure.clone()));
        tried
    }
}

impl Slot {
    fn current(&self) -> Option<Arc<Session>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.clone().filter(|session| !session.is_lost())
    }

    fn install(&self, session: Option<Arc<Session>>) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }
}

impl Sessions {
    pub(crate) fn new(link: Arc<Link>, keys: Keys, clock: Arc<dyn Clock>, ledger: Arc<Ledger>) -> Arc<Self> {
        let closed = watch::Sender::new(false);
        Arc::new(Self { link, keys, clock, ledger, slots: Mutex::default(), closed, sweeping: AtomicBool::new(false) })
    }

    /// The session for this TTL, opened where there is none, with at least half of its time left.
    pub(crate) async fn with(self: &Arc<Self>, ttl: Ttl) -> Result<Arc<Session>, Failure> {
        let slot = self.slot(ttl);
        if let Some(session) = slot.current() {
            let (answered, granted) = session.granted();
            if self.clock.now() < answered.moment().after(granted / 2) {
                return Ok(session);
            }
            // After an outage, or a sleep of the machine: nothing is granted on a session that may be over.
            match Box::pin(self.kept(&session, self.clock.now())).await {
                Err(failure) if failure.sort == Sort::SessionGone => {}
                Err(failure) => return Err(failure),
                Ok(()) => return Ok(session),
            }
        }
        Box::pin(self.opened(&slot, ttl)).await
    }

    /// Makes sure that a keep-alive was answered that was sent after `since`; one for all who ask at once.
    pub(crate) async fn kept(&self, session: &Arc<Session>, since: Moment) -> Result<(), Failure> {
        let came = self.clock.now();
        let mut one_at_a_time = session.renewing.lock().await;
        if session.is_lost() {
            return Err(Failure::session_lost());
        }
        if session.granted().0.moment() >= since {
            return Ok(());
        }
        one_at_a_time.told_since(came)?;
        match one_at_a_time.note(self.keep_alive(session.id).await, &*self.clock)? {
            Some(kept) => {
                let mut state = session.lock();
                (state.answered, state.ttl) = kept;
                Ok(())
            }
            None => {
                self.lose(session);
                Err(Failure::session_lost())
            }
        }
    }

    /// Keeps a lease of etcd's alive, whoever opened it; from when on it lasts, and for how long. `None` when it is over.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<Option<(Sent, Duration)>, Failure> {
        let sent = Sent::now(&*self.clock);
        // A stream for each, so that no answer can be taken for that of a later keep-alive.
        let answer = self.link.ask(|connection| async move {
            let asked = futures_util::stream::once(async move { LeaseKeepAliveRequest { id } });
            let request = connection.request(asked);
            let mut lease = LeaseClient::new(connection.channel);
            let mut answers = lease.lease_keep_alive(request).await?.into_inner();
            let answer = answers.message().await?;
            answer.map(tonic::Response::new).ok_or_else(|| tonic::Status::unavailable("no answer to a keep-alive"))
        });
        let answer = answer.await?.message;
        // A later try may have been answered; the lease lasts at least as long as counted from the first.
        let ttl = u64::try_from(answer.ttl).ok().filter(|ttl| *ttl > 0 && answer.id == id);
        Ok(ttl.map(|ttl| (sent, Duration::from_secs(ttl))))
    }

    /// Ends a session on our side: nobody believes in it any more, and all its holders are told.
    pub(crate) fn lose(&self, session: &Arc<Session>) {
        if !session.lost.send_replace(true) {
            self.ledger.lose_session(session);
        }
    }

    /// Ends the keeping alive. A session that no claim hangs on is ended in the cluster as well.
    pub(crate) async fn close(&self) {
        self.closed.send_replace(true);
        let slots: Vec<_> = self.slots.lock().unwrap_or_else(PoisonError::into_inner).drain().collect();
        for session in slots.into_iter().filter_map(|(_, slot)| slot.current()) {
            if !self.ledger.uses(&session) {
                self.revoke(&session).await;
            }
        }
    }

    pub(crate) fn abandon(&self) {
        self.closed.send_replace(true);
    }

    fn slot(&self, ttl: Ttl) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        slots.entry(whole_seconds(ttl)).or_default().clone()
    }

    async fn opened(self: &Arc<Self>, slot: &Arc<Slot>, ttl: Ttl) -> Result<Arc<Session>, Failure> {
        let came = self.clock.now();
        let mut one_at_a_time = slot.opening.lock().await;
        // Another may have opened it while we stood in line.
        if let Some(session) = slot.current() {
            return Ok(session);
        }
        one_at_a_time.told_since(came)?;
        let sent = Sent::now(&*self.clock);
        let wanted = LeaseGrantRequest { ttl: whole_seconds(ttl), id: 0 };
        // A grant whose answer is lost is kept alive by nobody and ends after its TTL.
        let granted = self.link.ask(|connection| async move {
            let request = connection.request(wanted);
            LeaseClient::new(connection.channel).lease_grant(request).await
        });
        let granted = one_at_a_time.note(granted.await, &*self.clock)?.message;
        let ttl = u64::try_from(granted.ttl).ok().filter(|ttl| *ttl > 0).ok_or_else(Failure::puzzling)?;
        let session = Arc::new(Session {
            id: granted.id,
            barrier: self.keys.barrier(granted.id),
            state: Mutex::new(State { answered: sent, ttl: Duration::from_secs(ttl), barrier: 0 }),
            renewing: tokio::sync::Mutex::default(),
            lost: watch::Sender::new(false),
        });
        slot.install(Some(session.clone()));
        tokio::spawn(self.clone().keep(slot.clone(), session.clone()));
        Ok(session)
    }

    /// Keeps a session alive for as long as it is used.
    async fn keep(self: Arc<Self>, slot: Arc<Slot>, session: Arc<Session>) {
        let mut closed = self.closed.subscribe();
        let mut used_at = self.clock.now();
        let mut backoff = None;
        loop {
            let (answered, ttl) = session.granted();
            let due = match &mut backoff {
                None => answered.moment().after(ttl / 3),
                Some(backoff) => self.clock.now().after(Backoff::pause(backoff)),
            };
            tokio::select! {
                _ = closed.wait_for(|closed| *closed) => return,
                () = session.lost() => return,
                () = self.clock.sleep_until(due) => {}
            }
            let now = self.clock.now();
            if self.ledger.uses(&session) {
                used_at = now;
            } else if now.since(used_at) >= IDLE {
                slot.install(None);
                // A claim that has just come in keeps it.
                if !self.ledger.uses(&session) {
                    return self.revoke(&session).await;
                }
                slot.install(Some(session.clone()));
            }
            let kept = tokio::select! {
                kept = self.kept(&session, now) => kept,
                _ = closed.wait_for(|closed| *closed) => return,
            };
            match kept {
                Ok(()) => backoff = None,
                Err(failure) if failure.sort == Sort::SessionGone => return,
                Err(failure) => {
                    tracing::debug!(?failure, "a keep-alive failed; it is tried again");
                    backoff.get_or_insert_with(|| Backoff::new(Duration::from_millis(20), ttl / 12));
                }
            }
        }
    }

    /// Ends a session in the cluster: all that hangs on it goes.
    pub(crate) async fn revoke(&self, session: &Arc<Session>) {
        session.lost.send_replace(true);
        let ended = self.link.ask(|connection| async move {
            let request = connection.request(LeaseRevokeRequest { id: session.id });
            LeaseClient::new(connection.channel).lease_revoke(request).await
        });
        if let Err(failure) = ended.await {
            tracing::debug!(?failure, "a session could not be ended; it ends after its TTL");
        }
    }

    /// Removes a claim; answers whether it was there. Its key is its own until this is confirmed. For a claim of unknown
    /// outcome the barrier is raised in the same step, so that no request for it that is still under way can
    /// bring it back.
    pub(crate) async fn delete(&self, leaving: &Leaving) -> Result<bool, Failure> {
        let removed = self.removed(leaving).await;
        if !matches!(removed, Ok(Answer { unclear: false, .. })) {
            self.ledger.removal_is_unclear(&leaving.owner);
        }
        // A try whose answer was lost may be the one that removed it.
        removed.map(|answer| answer.message || answer.unclear)
    }

    async fn removed(&self, leaving: &Leaving) -> Result<Answer<bool>, Failure> {
        let session = &leaving.session;
        let all = || leaving.keys.iter().map(|key| delete(key));
        if leaving.unclear && !session.is_lost() {
            let raised = put(&session.barrier, b"", session.id);
            let removal = TxnRequest { success: std::iter::once(raised).chain(all()).collect(), ..Default::default() };
            match self.link.txn(removal).await {
                Ok(answer) => {
                    session.barrier_is_at(revision(&answer.message.header));
                    return Ok(Answer { message: answer.message.deleted() > 0, unclear: answer.unclear });
                }
                // Nothing can be put on a lease that is gone, and its claims went with it.
                Err(failure) if failure.sort == Sort::SessionGone => self.lose(session),
                Err(failure) => return Err(failure),
            }
        }
        if let [key] = &*leaving.keys {
            return self.link.delete(key).await;
        }
        let Answer { message, unclear } =
            self.link.txn(TxnRequest { success: all().collect(), ..Default::default() }).await?;
        Ok(Answer { message: message.deleted() > 0, unclear })
    }
}

/// etcd counts in whole seconds; a fraction is rounded up, so that nothing is granted for less than was asked.
pub(crate) fn whole_seconds(ttl: Ttl) -> i64 {
    // At most 365 days, which fits.
    ttl.millis().div_ceil(1000).cast_signed()
}

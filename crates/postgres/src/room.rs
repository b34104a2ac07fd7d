//! The room where a client's waiters wait and its holders listen. One connection hears for all of them (W2).
//!
//! A release hands the lock to the first waiter in the very transaction and sends him a message. A message that was lost
//! costs at most [`LOOK_EVERY`]: the room looks at all its claims that often, and hands on what has run out.

mod ears;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicI32, Ordering},
    },
    time::Duration,
};

use fencepost_core::{
    cells::bells::Bells,
    claim::{Holding, LossReason},
    clock::{self, Clock, Moment},
    error::{Applied, ErrorKind},
    name::{LockName, Namespace},
    owner::Owner,
    store::LossReporter,
};
use tokio::sync::{Notify, watch};
use tokio_postgres::Row;

use crate::{
    answers::only,
    connection::Link,
    failure::Failure,
    session::{Parameter, Session},
    statements::Statement,
};

/// How often the room looks whether a message was missed.
pub(crate) const LOOK_EVERY: Duration = Duration::from_secs(2);
/// The same where no messages come: through a pooler, and at the death of a session that holds.
pub(crate) const POLL_EVERY: Duration = Duration::from_millis(200);
/// After the end of a lease, so that it has surely ended when it is handed on.
const AFTER_THE_END: Duration = Duration::from_millis(5);
/// A lock that is held shorter makes no connection for messages.
const WORTH_LISTENING: Duration = Duration::from_millis(300);
/// An outage that waiters need not hear of.
const BRIDGED: Duration = Duration::from_secs(2);

/// How wake-ups come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// Not yet, or not at the moment.
    Deaf,
    /// By messages.
    Messages,
    /// By asking: messages do not come here.
    Polling,
}

#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) link: Arc<Link>,
    pub(crate) namespace: Namespace,
    /// Grants last as long as the connection for messages.
    pub(crate) in_session: bool,
    /// Who waits for a change of a cell.
    pub(crate) cells: Bells,
    clock: Arc<dyn Clock>,
    /// Names this client's channel. Another one is drawn when it turns out to be taken; those of sessions the server gives.
    number: AtomicI32,
    state: Mutex<State>,
    opened: AtomicBool,
    /// Whether it was asked for, perhaps for later.
    asked_for: AtomicBool,
    changed: Notify,
    hearing: watch::Sender<Hearing>,
    /// Ends the room's task, whatever it awaits, and who waits for it to hear.
    closed: watch::Sender<bool>,
    /// Somebody holds for a session, whose end is told by nobody.
    brisk: AtomicBool,
    losses: OnceLock<LossReporter>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The connection for messages while there is one.
    session: Option<Arc<Session>>,
    /// Why there was none the last time that one was tried.
    deaf_because: Option<Failure>,
    waiters: HashMap<Owner, Waiting>,
    locks: HashMap<LockName, Watched>,
    /// What is held, to find out what was lost while nobody listened (L4).
    held: HashMap<Owner, Holding>,
}

#[derive(Debug)]
struct Waiting {
    name: LockName,
    /// Rings when its turn has come, or its place is in doubt: it claims again then.
    bell: Arc<Notify>,
    /// The store has confirmed the place.
    queued: bool,
    /// The store knows where it hears of its turn. It may not when the connection came while the claim was under way.
    announced: bool,
}

/// One lock with waiters of ours.
#[derive(Debug)]
struct Watched {
    owners: HashSet<Owner>,
    /// When its lease ends, as far as known.
    settle_at: Moment,
}

impl Room {
    pub(crate) fn new(link: Arc<Link>, namespace: Namespace, in_session: bool, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self {
            link,
            namespace,
            in_session,
            cells: Bells::default(),
            clock,
            number: AtomicI32::new(drawn_number()),
            state: Mutex::default(),
            opened: AtomicBool::new(false),
            asked_for: AtomicBool::new(false),
            changed: Notify::new(),
            hearing: watch::Sender::new(Hearing::Deaf),
            closed: watch::Sender::new(false),
            brisk: AtomicBool::new(false),
            losses: OnceLock::new(),
        })
    }

    /// Where messages for this client go; `None` while it asks instead.
    pub(crate) fn number(&self) -> Option<i32> {
        (*self.hearing.borrow() != Hearing::Polling).then(|| self.number.load(Ordering::Relaxed))
    }

    /// The connection for messages, while there is one.
    pub(crate) fn session(&self) -> Option<Arc<Session>> {
        self.lock().session.clone().filter(|session| !session.is_closed())
    }

    /// Sends a statement about grants. Where they live by the session, on that one alone: an answer shows that it lives.
    pub(crate) async fn ask(&self, statement: &Statement, with: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        match (self.in_session, self.session()) {
            (false, _) => self.link.call(statement, with).await,
            (true, Some(session)) => self.link.send(&session, statement, with).await,
            (true, None) => Err(Failure::session_ended()),
        }
    }

    pub(crate) fn is_present(&self, session: &Arc<Session>) -> bool {
        self.session().is_some_and(|present| Arc::ptr_eq(&present, session))
    }

    pub(crate) fn report_losses(&self, to: LossReporter) {
        // Called once, before any claim.
        let _ = self.losses.set(to);
    }

    /// Starts to listen, if that was not done before.
    pub(crate) fn open(self: &Arc<Self>) {
        self.asked_for.store(true, Ordering::Relaxed);
        if !self.lock().closed && !self.opened.swap(true, Ordering::Relaxed) {
            tokio::spawn(ears::listen(self.clone()));
        }
    }

    /// Whether a waiter would hear of its turn now.
    pub(crate) fn hears(&self) -> bool {
        *self.hearing.borrow() == Hearing::Messages
    }

    /// Listens, and answers how once it does.
    pub(crate) async fn hearing(self: &Arc<Self>) -> Result<Hearing, Failure> {
        self.open();
        let mut hearing = self.hearing.subscribe();
        let heard = hearing.wait_for(|hearing| *hearing != Hearing::Deaf);
        let heard = tokio::select! {
            biased;
            () = self.closed() => return Err(Failure::closed()),
            heard = tokio::time::timeout(self.link.connect_timeout(), heard) => heard,
        };
        match heard {
            Ok(Ok(hearing)) => Ok(*hearing),
            Ok(Err(_)) => Err(Failure::closed()),
            Err(_) => {
                let said = "PostgreSQL could not be reached for messages";
                let unknown = || Failure::new(ErrorKind::Unavailable, Applied::No, said);
                Err(self.lock().deaf_because.clone().unwrap_or_else(unknown))
            }
        }
    }

    /// Remembers a grant, and listens for its loss unless it is given back at once.
    pub(crate) fn hold(self: &Arc<Self>, holding: &Holding) {
        self.lock().held.insert(holding.owner, holding.clone());
        if !self.asked_for.swap(true, Ordering::Relaxed) {
            let room = self.clone();
            tokio::spawn(async move {
                room.rest(WORTH_LISTENING).await;
                if room.lock().held.is_empty() {
                    room.asked_for.store(false, Ordering::Relaxed);
                } else {
                    room.open();
                }
            });
        }
    }

    /// Lets a waiter in, or finds it again.
    pub(crate) fn enter(&self, owner: Owner, name: &LockName) -> Arc<Notify> {
        let mut state = self.lock();
        if let Some(waiting) = state.waiters.get(&owner) {
            return waiting.bell.clone();
        }
        let bell = Arc::new(Notify::new());
        if state.closed {
            bell.notify_one(); // and be told that the store is closed
        }
        state
            .waiters
            .insert(owner, Waiting { name: name.clone(), bell: bell.clone(), queued: false, announced: false });
        let watched = state.locks.entry(name.clone());
        let watched = watched.or_insert_with(|| Watched { owners: HashSet::new(), settle_at: Moment::END });
        watched.owners.insert(owner);
        drop(state);
        self.changed.notify_one();
        bell
    }

    /// The store confirmed the place; the present lease ends in `left`, or with a session. From now on it is listened for.
    pub(crate) fn queued(self: &Arc<Self>, owner: &Owner, left: Option<Duration>, hears: bool) {
        let mut state = self.lock();
        let Some(waiting) = state.waiters.get_mut(owner) else { return };
        waiting.queued = true;
        waiting.announced = hears;
        let name = waiting.name.clone();
        drop(state);
        if left.is_none() {
            self.brisk.store(true, Ordering::Relaxed);
        }
        self.open();
        self.ends_in(&name, left);
    }

    /// Forgets a grant or a waiter.
    pub(crate) fn leave(&self, owner: &Owner) {
        self.lock().held.remove(owner);
        self.stop_waiting(owner);
    }

    /// Lets a waiter out.
    pub(crate) fn stop_waiting(&self, owner: &Owner) {
        let mut state = self.lock();
        let Some(waiting) = state.waiters.remove(owner) else { return };
        if let Some(watched) = state.locks.get_mut(&waiting.name) {
            watched.owners.remove(owner);
            if watched.owners.is_empty() {
                state.locks.remove(&waiting.name);
            }
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiters.values().for_each(|waiting| waiting.bell.notify_one());
        drop(state);
        self.cells.ring_all();
        self.closed.send_replace(true);
    }

    /// Completes when the room is closed. Cancel safe.
    async fn closed(&self) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// A lock's lease ends in `left`; `None` when nobody holds it.
    fn ends_in(&self, name: &LockName, left: Option<Duration>) {
        let at = left.map_or(Moment::END, |left| self.clock.now().after(left + AFTER_THE_END));
        if let Some(watched) = self.lock().locks.get_mut(name) {
            watched.settle_at = at;
            self.changed.notify_one();
        }
    }

    fn ring(&self, owner: &Owner) {
        if let Some(waiting) = self.lock().waiters.get(owner) {
            waiting.bell.notify_one();
        }
    }

    fn ring_all(&self) {
        self.lock().waiters.values().filter(|waiting| waiting.queued).for_each(|waiting| waiting.bell.notify_one());
    }

    /// A message: one letter and the first half of an owner value, which is enough to know it again here and not enough to
    /// act in its name; or the mark of a cell.
    fn heard(&self, payload: &str) {
        let Some((letter, digits)) = payload.split_at_checked(1) else { return };
        let Some(begins) = bytes(digits) else { return };
        let is_meant = |owner: &Owner| owner.as_bytes().starts_with(&begins);
        let state = self.lock();
        match letter {
            "g" => {
                let ours = state.waiters.iter().filter(|(owner, _)| is_meant(owner));
                ours.for_each(|(_, waiting)| waiting.bell.notify_one());
            }
            "l" => {
                let lost = state.held.keys().find(|owner| is_meant(owner)).copied();
                drop(state);
                lost.into_iter().for_each(|owner| self.lost(owner, LossReason::Deleted));
            }
            "c" => self.cells.ring(digits),
            _ => {} // of a newer version
        }
    }

    fn session_began(&self, session: &Arc<Session>) {
        let mut state = self.lock();
        state.session = Some(session.clone());
        state.deaf_because = None;
        drop(state);
        self.hearing.send_replace(Hearing::Messages);
    }

    /// The connection for messages has ended, and with it whatever was held for as long as it lives.
    fn session_ended(&self) {
        self.hearing.send_replace(Hearing::Deaf);
        self.cells.ring_all(); // those who wait look, and have the next connection listen
        let mut state = self.lock();
        state.session = None;
        if self.in_session {
            let held: Vec<Owner> = state.held.drain().map(|(owner, _)| owner).collect();
            drop(state);
            held.into_iter().for_each(|owner| self.lost(owner, LossReason::SessionExpired));
        }
    }

    fn lost(&self, owner: Owner, reason: LossReason) {
        if let Some(losses) = self.losses.get() {
            losses.lost(owner, reason);
        }
    }

    /// The locks whose lease should have ended by now.
    fn take_ended(&self) -> Vec<LockName> {
        let now = self.clock.now();
        let mut state = self.lock();
        let ended = state.locks.iter_mut().filter(|(_, watched)| watched.settle_at <= now);
        ended
            .map(|(name, watched)| {
                watched.settle_at = Moment::END; // until the answer says otherwise; the regular look finds what has none
                name.clone()
            })
            .collect()
    }

    fn next_end(&self) -> Moment {
        self.lock().locks.values().map(|watched| watched.settle_at).min().unwrap_or(Moment::END)
    }

    /// Hands on a lock whose lease has run out, and learns when the present one ends.
    async fn settle(self: Arc<Self>, name: LockName) {
        let settle = &self.link.statements.settle;
        let answer = self.link.call(settle, &[&self.namespace.as_str(), &name.as_str()]).await;
        if let Ok(rows) = answer {
            let left: Option<i64> = only(&rows).unwrap_or_default();
            self.ends_in(&name, left.map(crate::record::millis));
        }
    }

    /// Our waiters who have a place as far as we know.
    fn queued_ones(&self) -> Vec<(Owner, LockName)> {
        let state = self.lock();
        let queued = state.waiters.iter().filter(|(_, waiting)| waiting.queued);
        queued.map(|(owner, waiting)| (*owner, waiting.name.clone())).collect()
    }

    /// Those of them whose channel the store does not know. They are taken for announced from now on.
    fn take_unannounced(&self) -> Vec<(Owner, LockName)> {
        let mut state = self.lock();
        let silent = state.waiters.iter_mut().filter(|(_, waiting)| waiting.queued && !waiting.announced);
        silent
            .map(|(owner, waiting)| {
                waiting.announced = true;
                (*owner, waiting.name.clone())
            })
            .collect()
    }

    /// The channel, or what lies behind it, is a new one.
    fn announce_all_again(&self) {
        self.lock().waiters.values_mut().for_each(|waiting| waiting.announced = false);
    }

    fn held_ones(&self) -> Vec<(Owner, LockName)> {
        let state = self.lock();
        let locks = |holding: &Holding| holding.wants().iter().map(|want| want.name.clone()).collect::<Vec<_>>();
        state.held.iter().flat_map(|(owner, holding)| locks(holding).into_iter().map(|name| (*owner, name))).collect()
    }

    /// Something is held for as long as the session lives.
    fn holds_by_session(&self) -> bool {
        self.in_session && !self.lock().held.is_empty()
    }

    async fn until(&self, moment: Moment) {
        self.clock.sleep_until(moment).await;
    }

    pub(crate) async fn rest(&self, span: Duration) {
        clock::sleep(&*self.clock, span).await;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change leaves the maps whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Numbers of clients without a session lie below this one, and those of sessions from it on.
const FIRST_SESSION: i32 = 1 << 30;

fn drawn_number() -> i32 {
    fastrand::i32(1..FIRST_SESSION)
}

/// Sixteen hexadecimal digits.
fn bytes(digits: &str) -> Option<[u8; 8]> {
    let digits = (digits.len() == 16).then_some(digits)?;
    u64::from_str_radix(digits, 16).ok().map(u64::to_be_bytes)
}

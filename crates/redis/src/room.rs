//! The waiting room: one task and one connection for messages per client, however many locks and waiters.
//!
//! A waiter is let in before its claim is sent and only once the room hears messages, so that no hand-over can fall
//! between asking and listening (W1). The room shows signs of life for all its waiters at one lock by one command
//! (a poke), which also passes on a lock whose lease has ended, and finds what a lost message would have told.

mod ears;

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fencepost_core::{
    cells::bells::Bells,
    claim::LossReason,
    clock::{self, Clock, Moment},
    error::{Applied, ErrorKind},
    name::LockName,
    owner::Owner,
    store::LossReporter,
};
use redis::{FromRedisValue, Value};
use tokio::sync::{Notify, watch};

use crate::{failure::Failure, keys::Keys, nodes::Nodes, scripts::Scripts};

/// How often a sign of life is due; the scripts let it count for five times as long.
const POKE_EVERY: Duration = Duration::from_secs(2);
/// The same where no messages can be heard. A hand-over must be noticed well within its second.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// Waiters are not troubled by an outage as short as this.
const BRIDGED: Duration = Duration::from_secs(1);
/// A lease's end is judged by the server, whose millisecond must be over.
const AFTER_THE_END: Duration = Duration::from_millis(2);

/// How hand-overs reach this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hearing {
    /// Not at all just now.
    Deaf,
    /// By message.
    Messages,
    /// By asking again and again: the server forbids messages.
    Polling,
}

/// Why a waiter is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum News {
    /// The lock was handed to it and waits for its confirmation.
    Handed,
    /// Its place may be gone: claim again.
    AskAgain,
}

#[derive(Debug)]
pub(crate) struct Room {
    pub(crate) nodes: Nodes,
    pub(crate) keys: Keys,
    pub(crate) scripts: Scripts,
    pub(crate) channel: String,
    pub(crate) cells: Bells,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    opened: AtomicBool,
    changed: Notify,
    hearing: watch::Sender<Hearing>,
    /// Ends the room's task, whatever it awaits, and who waits for it to hear.
    closed: watch::Sender<bool>,
    losses: OnceLock<LossReporter>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    waiters: HashMap<Owner, Waiting>,
    locks: HashMap<LockName, Watched>,
}

#[derive(Debug)]
struct Waiting {
    name: LockName,
    bell: Arc<Bell>,
    /// The store has confirmed the place.
    queued: bool,
}

/// One lock with waiters of ours.
#[derive(Debug)]
struct Watched {
    owners: HashSet<Owner>,
    poke_at: Moment,
    /// The last poke had no answer.
    missed: bool,
}

/// Wakes one waiter.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    news: Mutex<Option<News>>,
    rung: Notify,
}

impl Bell {
    /// Waits for news. Cancel safe: news not taken stay.
    pub(crate) async fn news(&self) -> News {
        loop {
            if let Some(news) = self.news.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return news;
            }
            self.rung.notified().await;
        }
    }

    fn ring(&self, news: News) {
        *self.news.lock().unwrap_or_else(PoisonError::into_inner) = Some(news);
        self.rung.notify_one();
    }
}

impl Room {
    pub(crate) fn new(nodes: Nodes, keys: Keys, client: &str, clock: Arc<dyn Clock>) -> Arc<Self> {
        let channel = keys.channel(client);
        Arc::new(Self {
            nodes,
            keys,
            scripts: Scripts::default(),
            channel,
            cells: Bells::default(),
            clock,
            state: Mutex::default(),
            opened: AtomicBool::new(false),
            changed: Notify::new(),
            hearing: watch::Sender::new(Hearing::Deaf),
            closed: watch::Sender::new(false),
            losses: OnceLock::new(),
        })
    }

    pub(crate) fn report_losses(&self, to: LossReporter) {
        // Called once, before any claim.
        let _ = self.losses.set(to);
    }

    /// Starts to listen, if that was not done before.
    pub(crate) fn open(self: &Arc<Self>) {
        if self.opened.load(Ordering::Relaxed) {
            return; // asked with every grant
        }
        if !self.lock().closed && !self.opened.swap(true, Ordering::Relaxed) {
            tokio::spawn(ears::listen(self.clone()));
        }
    }

    /// Listens, and answers how once it does.
    pub(crate) async fn hearing(self: &Arc<Self>) -> Result<Hearing, Failure> {
        self.open();
        let mut hearing = self.hearing.subscribe();
        let heard = hearing.wait_for(|hearing| *hearing != Hearing::Deaf);
        let heard = tokio::select! {
            biased;
            () = self.closed() => return Err(Failure::closed()),
            heard = tokio::time::timeout(self.nodes.connect_timeout(), heard) => heard,
        };
        match heard {
            Ok(Ok(hearing)) => Ok(*hearing),
            Ok(Err(_)) => Err(Failure::closed()),
            Err(_) => {
                let said = "Redis could not be reached for messages";
                Err(Failure::new(ErrorKind::Unavailable, Applied::No, said))
            }
        }
    }

    /// Completes when the room is closed: nobody listens any more, and nobody will. Cancel safe.
    async fn closed(&self) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Lets a waiter in, or finds it again.
    pub(crate) fn enter(&self, owner: Owner, name: &LockName) -> Arc<Bell> {
        let mut state = self.lock();
        if let Some(waiting) = state.waiters.get(&owner) {
            return waiting.bell.clone();
        }
        let bell = Arc::new(Bell::default());
        if state.closed {
            bell.ring(News::AskAgain); // and be told that the store is closed
        }
        state.waiters.insert(owner, Waiting { name: name.clone(), bell: bell.clone(), queued: false });
        let poke_at = self.clock.now().after(self.pause());
        let watched = state.locks.entry(name.clone());
        watched.or_insert_with(|| Watched { owners: HashSet::new(), poke_at, missed: false }).owners.insert(owner);
        drop(state);
        self.changed.notify_one();
        bell
    }

    /// Whether a claim of this owner value has a place, or is asking for one.
    pub(crate) fn is_waiting(&self, owner: &Owner) -> bool {
        self.lock().waiters.contains_key(owner)
    }

    /// The store confirmed the place; the present lease ends in `left`.
    pub(crate) fn queued(&self, owner: &Owner, left: Duration) {
        let mut state = self.lock();
        let Some(waiting) = state.waiters.get_mut(owner) else { return };
        waiting.queued = true;
        let name = waiting.name.clone();
        let at = self.clock.now().after(left + AFTER_THE_END);
        if let Some(watched) = state.locks.get_mut(&name)
            && at < watched.poke_at
        {
            watched.poke_at = at;
            self.changed.notify_one();
        }
    }

    /// Lets a waiter out.
    pub(crate) fn leave(&self, owner: &Owner) {
        let mut state = self.lock();
        let Some(waiting) = state.waiters.remove(owner) else { return };
        if let Some(watched) = state.locks.get_mut(&waiting.name) {
            watched.owners.remove(owner);
            if watched.owners.is_empty() {
                state.locks.remove(&waiting.name);
                drop(state);
                self.nodes.unhear(&self.keys.lock(&waiting.name), &self.channel);
            }
        }
    }

    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.waiters.values().for_each(|waiting| waiting.bell.ring(News::AskAgain));
        drop(state);
        self.cells.ring_all();
        self.closed.send_replace(true);
    }

    /// Messages may have been missed, or another server has taken over: every grant and every place is in doubt.
    fn doubt(&self) {
        self.cells.ring_all();
        if let Some(losses) = self.losses.get() {
            losses.doubt();
        }
    }

    fn pause(&self) -> Duration {
        if *self.hearing.borrow() == Hearing::Polling { POLL_EVERY } else { POKE_EVERY }
    }

    fn ring(&self, owner: &Owner, news: News) {
        if let Some(waiting) = self.lock().waiters.get(owner) {
            waiting.bell.ring(news);
        }
    }

    fn ring_all(&self, news: News) {
        self.lock().waiters.values().filter(|waiting| waiting.queued).for_each(|waiting| waiting.bell.ring(news));
    }

    /// A message: one letter, and an owner value or the hash of a cell's key.
    fn heard(&self, message: &[u8]) {
        let Ok(text) = std::str::from_utf8(message) else { return };
        if let Some(hash) = text.strip_prefix('c') {
            return self.cells.ring(hash);
        }
        let Some((Ok(owner), letter)) = text.get(1..).map(|owner| (owner.parse(), &text[..1])) else { return };
        match letter {
            "g" => self.ring(&owner, News::Handed),
            "l" => {
                if let Some(losses) = self.losses.get() {
                    losses.lost(owner, LossReason::Deleted);
                }
            }
            _ => {} // of a newer version
        }
    }

    /// The locks to poke now. Each is due again after the usual pause, unless its poke says otherwise.
    fn take_due(&self, everything: bool) -> Vec<LockName> {
        let (now, pause) = (self.clock.now(), self.pause());
        let mut state = self.lock();
        let due = state.locks.iter_mut().filter(|(_, watched)| everything || watched.poke_at <= now);
        due.map(|(name, watched)| {
            watched.poke_at = now.after(pause);
            name.clone()
        })
        .collect()
    }

    fn next_poke(&self) -> Moment {
        self.lock().locks.values().map(|watched| watched.poke_at).min().unwrap_or(Moment::END)
    }

    async fn poke(self: Arc<Self>, name: LockName) {
        let before = self.queued_at(&name);
        let answer = self.poke_once(&name).await;
        let answer =
            answer.and_then(|value| <(usize, String, u64)>::from_redis_value(value).map_err(|_| Failure::puzzling()));
        match answer {
            Ok((counted, holder, left)) => {
                self.missed(&name, false);
                self.compare(&name, &before, counted, &holder, left);
            }
            // A short outage is bridged. In a longer one each waiter's own claim meets it and can tell its caller.
            Err(failure) if failure.kind == ErrorKind::Unavailable && !self.missed(&name, true) => {}
            Err(_) => before.iter().for_each(|owner| self.ring(owner, News::AskAgain)),
        }
    }

    /// First listens, then asks: what was missed meanwhile shows in the answer (W1).
    async fn poke_once(&self, name: &LockName) -> Result<Value, Failure> {
        let keys = self.keys.all(name);
        if *self.hearing.borrow() == Hearing::Messages {
            self.nodes.hear(&keys[0], &self.channel).await?;
        }
        self.nodes.call(&self.scripts.poke, &keys, &[&self.channel]).await
    }

    /// Notes whether a poke went unanswered, and tells whether the one before did.
    fn missed(&self, name: &LockName, now: bool) -> bool {
        self.lock().locks.get_mut(name).is_some_and(|watched| std::mem::replace(&mut watched.missed, now))
    }

    /// Our waiters at a lock who have a place as far as we know.
    fn queued_at(&self, name: &LockName) -> HashSet<Owner> {
        let state = self.lock();
        let owners = state.locks.get(name).map(|watched| watched.owners.iter().copied()).into_iter().flatten();
        owners.filter(|owner| state.waiters.get(owner).is_some_and(|waiting| waiting.queued)).collect()
    }

    fn compare(&self, name: &LockName, before: &HashSet<Owner>, counted: usize, holder: &str, left: u64) {
        // Who left or was served meanwhile is not missed.
        let waiting: HashSet<_> = self.queued_at(name).intersection(before).copied().collect();
        let served = holder.parse().ok().filter(|owner| waiting.contains(owner));
        if let Some(owner) = served {
            self.ring(&owner, News::Handed);
        }
        if counted + usize::from(served.is_some()) < waiting.len() {
            waiting.iter().filter(|owner| Some(**owner) != served).for_each(|owner| self.ring(owner, News::AskAgain));
        }
        let mut state = self.lock();
        if let Some(watched) = state.locks.get_mut(name)
            && !holder.is_empty()
        {
            let at = self.clock.now().after(Duration::from_millis(left) + AFTER_THE_END);
            watched.poke_at = watched.poke_at.min(at);
            drop(state);
            self.changed.notify_one();
        }
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

/// Whether the script's answer is a refusal for lack of rights.
fn is_forbidden(answer: &Result<Value, Failure>) -> bool {
    matches!(answer, Err(failure) if failure.kind == ErrorKind::PermissionDenied)
}

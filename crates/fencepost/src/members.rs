//! Partitioning: who is there, and who of them owns which part of the work.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::jitter,
    claim::Claimant,
    clock::{self, Moment},
    error::{Error, ErrorKind, Operation},
    limits::Ttl,
    name::LockName,
    owner::Owner,
    purpose::{Correctness, Efficiency, Purpose},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::{oneshot, watch};

use crate::{
    cell::{Cell, Edit, Update},
    client::Client,
    lease::Lease,
    locks::Locks,
    request::Attempt,
};

/// The most members of one group: all of them are told of each other.
pub const MOST_MEMBERS: usize = 500;
/// The most shards of one group.
pub const MOST_SHARDS: u32 = 100_000;

/// A group of processes that share work. Made by [`Locks::members`].
///
/// Each member shows signs of life, and each sees the others. Which of them owns a key follows from the names of those
/// who are there, by rendezvous hashing: all that see the same members agree, and when one comes or goes only its own
/// keys move. Views can differ for a moment, so for work that must not be done twice a member owns a *shard* only
/// while it holds the shard's lock, with a fence ([`Member::shards`]).
#[derive(Clone, Debug)]
pub struct Members<P> {
    locks: Locks<P>,
    name: String,
    cell: Cell<Register>,
}

/// Who is there, as the group's cell has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Register {
    members: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    claimant: Claimant,
    /// Tells this joining from an earlier one of the same name.
    incarnation: String,
    /// Counts the signs of life.
    beat: u64,
    ttl_ms: u64,
}

impl<P: Purpose> Members<P> {
    pub(crate) fn new(locks: Locks<P>, name: &str) -> Result<Self, Error> {
        let cell = Cell::new(locks.client().clone(), "members", &LockName::new(name)?)?;
        Ok(Self { locks, name: name.to_owned(), cell })
    }

    /// Joins as `id`, for as long as the answer lives. A process that dies is gone after `ttl` at the latest, as the
    /// others see it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for an empty or long id, or a TTL outside its limits; [`ErrorKind::Mismatch`] when a
    /// member of that id is there already; [`ErrorKind::Unsupported`] for more than [`MOST_MEMBERS`]; the rest as for
    /// [`Cell::update`].
    ///
    /// # Cancel safety
    /// Dropped, it may have joined; without signs of life it is gone after `ttl`.
    pub async fn join(&self, id: &str, ttl: Duration) -> Result<Member<P>, Error> {
        let ttl = Ttl::new(ttl)?;
        if id.is_empty() || id.len() > 100 {
            let said = format!("the id of a member has {} bytes; it takes 1 to 100", id.len());
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Update, said).not_applied());
        }
        let client = self.locks.client();
        let entry = Entry {
            claimant: (*client.claimant).clone(),
            incarnation: Owner::random()?.to_string(),
            beat: 0,
            ttl_ms: ttl.millis(),
        };
        let mut watching = Watching::default();
        let until = client.clock.now().after(ttl.get() * 2);
        loop {
            match self.enter(id, &entry, &mut watching).await? {
                Entered::Yes(register) => return Ok(self.joined(id, entry, register, watching)),
                Entered::Full => {
                    let said = format!("the group has {MOST_MEMBERS} members already");
                    return Err(Error::new(ErrorKind::Unsupported, Operation::Update, said).not_applied());
                }
                // It may have died a moment ago: whether it lives shows within its TTL.
                Entered::Taken if client.clock.now() < until => clock::sleep(&*client.clock, ttl.get() / 8).await,
                Entered::Taken => {
                    let said = format!("a member {id:?} is there already, and alive");
                    return Err(Error::new(ErrorKind::Mismatch, Operation::Update, said).not_applied().advise(
                        "choose an id for each process, with the host's name and the process id for instance",
                    ));
                }
            }
        }
    }

    async fn enter(&self, id: &str, entry: &Entry, watching: &mut Watching) -> Result<Entered, Error> {
        let now = self.locks.client().clock.now();
        let mut entered = Entered::Taken;
        let update = self.cell.update(|found| {
            let mut register = found.unwrap_or_default();
            watching.drop_dead(now, &mut register);
            if register.members.get(id).is_some_and(|there| there.incarnation != entry.incarnation) {
                entered = Entered::Taken;
                return Edit::Leave;
            }
            if register.members.len() >= MOST_MEMBERS {
                entered = Entered::Full;
                return Edit::Leave;
            }
            register.members.insert(id.to_owned(), entry.clone());
            entered = Entered::Yes(register.clone());
            Edit::Write(register)
        });
        uncontended(update.await?)?;
        Ok(entered)
    }

    fn joined(&self, id: &str, entry: Entry, register: Register, watching: Watching) -> Member<P> {
        let (view, _) = watch::channel(names(&register));
        let (alive, gone) = oneshot::channel();
        let keeper = Keeper {
            client: self.locks.client().clone(),
            cell: self.cell.clone(),
            id: id.to_owned(),
            entry,
            watching: Mutex::new(watching),
            view: view.clone(),
        };
        self.locks.client().cleaner.run(keeper.keep(gone));
        Member { members: self.clone(), id: id.to_owned(), view, _alive: alive }
    }
}

enum Entered {
    Yes(Register),
    Taken,
    Full,
}

/// One member, for as long as this value lives. Dropped, it leaves the group in the background.
#[derive(Debug)]
#[must_use = "a member that is dropped leaves the group"]
pub struct Member<P> {
    members: Members<P>,
    id: String,
    view: watch::Sender<BTreeSet<String>>,
    _alive: oneshot::Sender<()>,
}

impl<P: Purpose> Member<P> {
    /// Its id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The ids of all that are there, as this member sees them; without itself when it has been taken for dead.
    pub fn present(&self) -> BTreeSet<String> {
        self.view.borrow().clone()
    }

    /// Completes when somebody came or went since `seen`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&self, seen: &BTreeSet<String>) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.view.subscribe().wait_for(|view| view != seen).await;
    }

    /// Whether `key` is this member's, as it sees the others. Good enough for caches and for work that may be done
    /// twice now and then.
    pub fn owns(&self, key: &str) -> bool {
        owner_of(self.view.borrow().iter().map(String::as_str), key) == Some(self.id.as_str())
    }
}

macro_rules! members_for {
    ($purpose:ty) => {
        impl Member<$purpose> {
            /// The work in `count` shards, numbered from 0, of which this member takes those that are its own: each by
            /// the lock `GROUP/shard/NUMBER`, held with `ttl`. All members must state the same count.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidInput`] for no shards, or more than [`MOST_SHARDS`].
            pub fn shards(&self, count: u32, ttl: Duration) -> Result<Shards<'_, $purpose>, Error> {
                let locks = self.members.locks.clone();
                let group = self.members.name.clone();
                let ask = move |shard: u32| -> Asking<Answer<$purpose>> {
                    let request =
                        locks.lock(format!("{group}/shard/{shard}")).ttl(ttl).label("shard", shard.to_string());
                    Box::pin(async move { (shard, request.acquire().await) })
                };
                Shards::new(self, count, Box::new(ask))
            }
        }
    };
}

members_for!(Correctness);
members_for!(Efficiency);

/// A shard and what became of asking for its lock.
type Answer<P> = (u32, Result<Attempt<Lease<P>>, Error>);
type Asking<A> = Pin<Box<dyn Future<Output = A> + Send>>;

/// The shards of one member: which it gains, and which it shall leave.
pub struct Shards<'a, P> {
    member: &'a Member<P>,
    count: u32,
    ask: Box<dyn Fn(u32) -> Asking<Answer<P>> + Send + Sync>,
    /// Handed out and not yet to be left.
    given: BTreeSet<u32>,
    asked: HashMap<u32, oneshot::Sender<()>>,
    /// An answer of `None` means that it was not wanted any more.
    asking: FuturesUnordered<Asking<Option<Answer<P>>>>,
    seen: Option<BTreeSet<String>>,
    to_leave: Vec<u32>,
}

/// What happened to a member's shards.
#[derive(Debug)]
pub enum ShardEvent<P> {
    /// The shard is this member's now, under this lease. The fence is higher than that of whoever had it before.
    Gained {
        /// Its number.
        shard: u32,
        /// Its lock. Watch it as any lease: it can be lost.
        lease: Lease<P>,
    },
    /// The shard is another's now, who waits for it: finish what is under way and release its lease.
    Leave {
        /// Its number.
        shard: u32,
    },
}

impl<'a, P: Purpose> Shards<'a, P> {
    fn new(
        member: &'a Member<P>,
        count: u32,
        ask: Box<dyn Fn(u32) -> Asking<Answer<P>> + Send + Sync>,
    ) -> Result<Self, Error> {
        if count == 0 || count > MOST_SHARDS {
            let said = format!("{count} shards are outside the limits of 1 to {MOST_SHARDS}");
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Claim, said).not_applied());
        }
        Ok(Self {
            member,
            count,
            ask,
            given: BTreeSet::new(),
            asked: HashMap::new(),
            asking: FuturesUnordered::new(),
            seen: None,
            to_leave: Vec::new(),
        })
    }

    /// The next change. Nothing is taken or left without calling it.
    ///
    /// # Errors
    /// As for [`LockRequest::acquire`](crate::LockRequest::acquire), for one of the shards, which is asked for again
    /// by the next call.
    ///
    /// # Cancel safety
    /// Safe: no event is lost.
    pub async fn next(&mut self) -> Result<ShardEvent<P>, Error> {
        loop {
            let view = self.member.present();
            if self.seen.as_ref() != Some(&view) {
                self.divide(&view);
                self.seen = Some(view);
            }
            if let Some(shard) = self.to_leave.pop() {
                return Ok(ShardEvent::Leave { shard });
            }
            let seen = self.seen.clone().unwrap_or_default();
            tokio::select! {
                Some(answer) = self.asking.next() => {
                    let Some((shard, answer)) = answer else { continue };
                    self.asked.remove(&shard);
                    match answer {
                        Ok(Attempt::Acquired(lease)) => {
                            self.given.insert(shard);
                            return Ok(ShardEvent::Gained { shard, lease });
                        }
                        Ok(Attempt::Busy(_)) => self.seen = None, // ask again
                        Err(error) => {
                            self.seen = None;
                            return Err(error);
                        }
                    }
                }
                () = self.member.changed(&seen) => {}
            }
        }
    }

    /// Says that a shard's lease was lost or given back by itself, so that it is asked for again if it is still this
    /// member's.
    pub fn lost(&mut self, shard: u32) {
        self.given.remove(&shard);
        self.seen = None;
    }

    /// Asks for what is ours now, and gives up what is not.
    fn divide(&mut self, view: &BTreeSet<String>) {
        for shard in 0..self.count {
            let ours = owner_of(view.iter().map(String::as_str), &shard.to_string()) == Some(self.member.id());
            let (given, asked) = (self.given.contains(&shard), self.asked.contains_key(&shard));
            match (ours, given, asked) {
                (true, false, false) => self.start_asking(shard),
                (false, true, _) => {
                    self.given.remove(&shard);
                    self.to_leave.push(shard);
                }
                // Its place in the queue is given back.
                (false, false, true) => drop(self.asked.remove(&shard)),
                _ => {}
            }
        }
    }

    fn start_asking(&mut self, shard: u32) {
        let (wanted, unwanted) = oneshot::channel();
        let asking = (self.ask)(shard);
        self.asked.insert(shard, wanted);
        self.asking.push(Box::pin(async move {
            tokio::select! {
                answer = asking => Some(answer),
                _ = unwanted => None,
            }
        }));
    }
}

impl<P> std::fmt::Debug for Shards<'_, P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").field("count", &self.count).field("given", &self.given).finish_non_exhaustive()
    }
}

/// Which of `members` owns `key`: the one whose hash with the key is the highest. It is the same on every machine and
/// in every version: the first eight bytes, as a big-endian number, of the SHA-256 of the member, a zero byte and the
/// key. `None` when there are no members.
pub fn owner_of<'a>(members: impl Iterator<Item = &'a str>, key: &str) -> Option<&'a str> {
    members.max_by_key(|member| {
        let digest = Sha256::new().chain_update(member).chain_update([0]).chain_update(key).finalize();
        // The member decides where two hashes are equal.
        (u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes")), *member)
    })
}

fn names(register: &Register) -> BTreeSet<String> {
    register.members.keys().cloned().collect()
}

fn uncontended<T>(update: Update<T>) -> Result<(), Error> {
    match update {
        Update::Contended { conflicts } => {
            let said = format!("others changed the group first {conflicts} times in a row");
            Err(Error::new(ErrorKind::Unavailable, Operation::Update, said).not_applied())
        }
        Update::Written { .. } | Update::Removed { .. } | Update::Left => Ok(()),
    }
}

/// Who is seen to live: a member whose count did not rise for its TTL, on this process's clock, is dead. So no two
/// clocks are compared.
#[derive(Debug, Default)]
struct Watching(HashMap<String, Sign>);

#[derive(Debug)]
struct Sign {
    incarnation: String,
    beat: u64,
    seen_at: Moment,
}

impl Watching {
    /// Takes the dead off the register; whether there were any.
    fn drop_dead(&mut self, now: Moment, register: &mut Register) -> bool {
        self.0.retain(|id, _| register.members.contains_key(id));
        let before = register.members.len();
        register.members.retain(|id, entry| match self.0.get(id) {
            Some(sign) if sign.incarnation == entry.incarnation && sign.beat == entry.beat => {
                now.since(sign.seen_at) < Duration::from_millis(entry.ttl_ms)
            }
            _ => {
                let (incarnation, beat) = (entry.incarnation.clone(), entry.beat);
                self.0.insert(id.clone(), Sign { incarnation, beat, seen_at: now });
                true
            }
        });
        register.members.len() < before
    }
}

/// Shows signs of life for one member and looks after the others, until the member leaves.
struct Keeper {
    client: Arc<Client>,
    cell: Cell<Register>,
    id: String,
    entry: Entry,
    watching: Mutex<Watching>,
    view: watch::Sender<BTreeSet<String>>,
}

impl Keeper {
    async fn keep(mut self, mut gone: oneshot::Receiver<()>) {
        let mut version = None;
        let mut beat_at = self.client.clock.now().after(self.pause());
        loop {
            let changed = self.cell.changed_since(version);
            tokio::select! {
                _ = &mut gone => break,
                () = self.client.clock.sleep_until(beat_at) => {
                    beat_at = self.client.clock.now().after(self.pause());
                    if self.beat().await == Beat::Replaced {
                        self.view.send_if_modified(|view| view.remove(&self.id));
                        return;
                    }
                }
                changed = changed => if let Err(error) = changed {
                    if error.kind() == ErrorKind::Closed {
                        return;
                    }
                    clock::sleep(&*self.client.clock, self.pause()).await;
                },
            }
            if let Ok(found) = self.cell.look().await {
                version = found.version();
                let mut register = found.value.unwrap_or_default();
                self.watching().drop_dead(self.client.clock.now(), &mut register);
                self.show(&register);
            }
        }
        let leave = self.cell.update(|found| {
            let Some(mut register) = found else { return Edit::Leave };
            match register.members.get(&self.id) {
                Some(entry) if entry.incarnation == self.entry.incarnation => {
                    register.members.remove(&self.id);
                    if register.members.is_empty() { Edit::Remove } else { Edit::Write(register) }
                }
                _ => Edit::Leave,
            }
        });
        if let Err(error) = leave.await {
            tracing::debug!(%error, "a member that left is gone after its TTL");
        }
    }

    /// A sign of life. The dead go with it, so that it costs no change of its own.
    async fn beat(&mut self) -> Beat {
        self.entry.beat += 1;
        let now = self.client.clock.now();
        let mut outcome = Beat::Shown;
        let beat = self.cell.update(|found| {
            outcome = Beat::Shown;
            let mut register = found.unwrap_or_default();
            self.watching().drop_dead(now, &mut register);
            if register.members.get(&self.id).is_some_and(|there| there.incarnation != self.entry.incarnation) {
                outcome = Beat::Replaced;
                return Edit::Leave;
            }
            // Who was taken for dead, after a pause, and not replaced since is back by this.
            register.members.insert(self.id.clone(), self.entry.clone());
            Edit::Write(register)
        });
        if let Err(error) = beat.await {
            tracing::debug!(%error, "a sign of life was not answered");
        }
        outcome
    }

    /// Shows who is there; this member only as long as it counts as alive.
    fn show(&self, register: &Register) {
        let mut names = names(register);
        if register.members.get(&self.id).is_none_or(|there| there.incarnation != self.entry.incarnation) {
            names.remove(&self.id);
        }
        self.view.send_if_modified(|view| {
            let different = *view != names;
            *view = names;
            different
        });
    }

    fn watching(&self) -> std::sync::MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> Duration {
        (Duration::from_millis(self.entry.ttl_ms) / 3).mul_f64(1.0 - jitter() / 5.0)
    }
}

/// What became of a sign of life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beat {
    Shown,
    /// Another joined under the same id while this one was taken for dead.
    Replaced,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_keys_of_whoever_comes_or_goes_move() {
        let all = ["a", "b", "c", "d"];
        let without: Vec<_> = all.into_iter().filter(|member| *member != "c").collect();
        let mut of_c = 0;
        for key in 0..1000 {
            let key = key.to_string();
            let (before, after) = (owner_of(all.into_iter(), &key), owner_of(without.iter().copied(), &key));
            if before == Some("c") {
                of_c += 1;
            } else {
                assert_eq!(before, after);
            }
        }
        assert!((200..300).contains(&of_c), "about a quarter: {of_c}");
        assert_eq!(owner_of(std::iter::empty(), "x"), None);
    }

    /// Another version of this library, or another language, must come to the same answers.
    #[test]
    fn the_hash_is_what_it_was() {
        let owners: String =
            (0..12).filter_map(|key| owner_of(["a", "b", "c"].into_iter(), &key.to_string())).collect();
        assert_eq!(owners, "bbaacbbbccba");
    }
}

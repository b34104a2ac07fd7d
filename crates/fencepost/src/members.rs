//! Partitioning: who is there, and who of them owns which part of the work.

mod groups;
mod shards;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    pin::pin,
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
    purpose::Purpose,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use crate::{
    cell::{Cell, Edit, Update},
    client::Client,
    locks::Locks,
};
use groups::Roll;
pub use groups::{Group, GroupMember, MOST_GROUPS};
pub use shards::{MOST_SHARDS, ShardEvent, Shards, owner_of};

/// The most members of one group: all of them are told of each other.
pub const MOST_MEMBERS: usize = 500;

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
    roll: Roll,
}

/// Who is there, as the group's cell has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Register {
    members: BTreeMap<String, Entry>,
}

impl Register {
    /// Each member writes it three times in its own TTL.
    fn kept_for(&self) -> Ttl {
        let longest = self.members.values().map(|entry| entry.ttl_ms).max().unwrap_or_default();
        let kept = Duration::from_millis(longest).saturating_mul(2).clamp(Ttl::MIN, Ttl::MAX);
        Ttl::new(kept).expect("between the limits")
    }
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

/// The cell of a group's register. When nobody writes it any more, all of its members are dead.
fn register(client: &Arc<Client>, name: &LockName) -> Result<Cell<Register>, Error> {
    Ok(Cell::new(client.clone(), "members", name)?.expiring_by(Register::kept_for))
}

/// Every group that somebody has joined.
pub(crate) async fn groups(client: &Arc<Client>) -> Result<Vec<Group>, Error> {
    Roll::new(client)?.present().await
}

/// Who is in the group called `name`.
pub(crate) async fn members_of(client: &Arc<Client>, name: &str) -> Result<Vec<GroupMember>, Error> {
    Ok(Roll::new(client)?.members_of(name).await?.unwrap_or_default())
}

impl<P: Purpose> Members<P> {
    pub(crate) fn new(locks: Locks<P>, name: &str) -> Result<Self, Error> {
        let cell = register(locks.client(), &LockName::new(name)?)?;
        let roll = Roll::new(locks.client())?;
        Ok(Self { locks, name: name.to_owned(), cell, roll })
    }

    /// Joins as `id`, for as long as the answer lives. A process that dies is gone, as another member sees it, after
    /// `ttl` and a third of that member's own TTL at the latest.
    ///
    /// Where the id is taken, it waits until its owner shows a sign of life, or has shown none for its TTL.
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
        let mut taken_by: Option<Entry> = None;
        loop {
            match self.enter(id, &entry, &mut watching).await? {
                Entered::Yes(register) => return Ok(self.joined(id, entry, register, watching)),
                Entered::Full => {
                    let said = format!("the group has {MOST_MEMBERS} members already");
                    return Err(Error::new(ErrorKind::Unsupported, Operation::Update, said).not_applied());
                }
                // It may have died a moment ago: whether it lives shows within its TTL.
                Entered::Taken(there) if taken_by.as_ref().is_none_or(|before| *before == there) => {
                    clock::sleep(&*client.clock, Duration::from_millis(there.ttl_ms).min(ttl.get()) / 8).await;
                    taken_by = Some(there);
                }
                Entered::Taken(_) => {
                    let said = format!("a member {id:?} is there already, and alive");
                    return Err(Error::new(ErrorKind::Mismatch, Operation::Update, said).not_applied().advise(
                        "choose an id for each process, with the host's name and the process id for instance",
                    ));
                }
            }
        }
    }

    async fn enter(&self, id: &str, entry: &Entry, watching: &mut Watching) -> Result<Entered, Error> {
        let clock = &*self.locks.client().clock;
        let mut entered = Entered::Full; // said by each call below
        let update = self.cell.update(|found| {
            let mut register = found.unwrap_or_default();
            // The time at which it was seen, not that before a read that may have been tried for long.
            watching.drop_dead(clock.now(), &mut register);
            if let Some(there) = register.members.get(id).filter(|there| there.incarnation != entry.incarnation) {
                entered = Entered::Taken(there.clone());
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
        update.await?.settled("the group")?;
        Ok(entered)
    }

    fn joined(&self, id: &str, entry: Entry, register: Register, watching: Watching) -> Member<P> {
        let (view, _) = watch::channel(names(&register));
        let (alive, gone) = oneshot::channel();
        let keeper = Keeper {
            client: self.locks.client().clone(),
            cell: self.cell.clone(),
            group: self.name.clone(),
            roll: self.roll.clone(),
            id: id.to_owned(),
            entry,
            watching: Mutex::new(watching),
            view: view.clone(),
        };
        self.locks.client().cleaner.run(keeper.keep(gone));
        let (roll, group) = (self.roll.clone(), self.name.clone());
        self.locks.client().cleaner.run(async move {
            if let Err(error) = roll.enter(&group).await {
                tracing::debug!(%error, "a group is not listed");
            }
        });
        Member { members: self.clone(), id: id.to_owned(), view, _alive: alive }
    }
}

enum Entered {
    Yes(Register),
    /// By another, whose last sign of life this is.
    Taken(Entry),
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

fn names(register: &Register) -> BTreeSet<String> {
    register.members.keys().cloned().collect()
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
    group: String,
    roll: Roll,
    id: String,
    entry: Entry,
    watching: Mutex<Watching>,
    view: watch::Sender<BTreeSet<String>>,
}

impl Keeper {
    async fn keep(mut self, gone: oneshot::Receiver<()>) {
        let client = self.client.clone();
        let mut over = pin!(async move {
            tokio::select! {
                _ = gone => {}
                _ = client.closed() => {}
            }
        });
        let mut version = None;
        let mut beat_at = self.client.clock.now().after(self.pause());
        loop {
            let changed = self.cell.changed_since(version);
            tokio::select! {
                biased; // a sign of life that is due goes before news of others
                () = &mut over => break,
                () = self.client.clock.sleep_until(beat_at) => {
                    beat_at = self.client.clock.now().after(self.pause());
                    if self.beat().await == Beat::Replaced {
                        self.view.send_if_modified(|view| view.remove(&self.id));
                        return;
                    }
                }
                changed = changed => if changed.is_err() {
                    tokio::select! {
                        () = &mut over => break,
                        () = self.client.clock.sleep_until(beat_at) => {}
                    }
                },
            }
            match self.cell.look().await {
                Ok(found) => {
                    version = found.version();
                    let mut register = found.value.unwrap_or_default();
                    self.watching().drop_dead(self.client.clock.now(), &mut register);
                    self.show(&register);
                }
                // What cannot be read, a register of a later version for instance, would be told to have changed again and
                // again.
                Err(_) => tokio::select! {
                    () = &mut over => break,
                    () = self.client.clock.sleep_until(beat_at) => {}
                },
            }
        }
        if let Err(error) = self.leave().await {
            tracing::debug!(%error, "a member that left is gone after its TTL");
        }
    }

    /// Whoever leaves last takes the group off the roll.
    async fn leave(&self) -> Result<(), Error> {
        let cell = self.cell.parting();
        let left = cell.update(|found| {
            let Some(mut register) = found else { return Edit::Leave };
            match register.members.get(&self.id) {
                Some(entry) if entry.incarnation == self.entry.incarnation => {
                    register.members.remove(&self.id);
                    if register.members.is_empty() { Edit::Remove } else { Edit::Write(register) }
                }
                _ => Edit::Leave,
            }
        });
        match left.await? {
            Update::Removed { .. } => self.roll.parting().strike([self.group.clone()].into()).await,
            left => left.settled("the group"),
        }
    }

    /// A sign of life. The dead go with it, so that it costs no change of its own.
    async fn beat(&mut self) -> Beat {
        self.entry.beat += 1;
        let mut outcome = Beat::Shown;
        let beat = self.cell.update(|found| {
            outcome = Beat::Shown;
            let mut register = found.unwrap_or_default();
            self.watching().drop_dead(self.client.clock.now(), &mut register);
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

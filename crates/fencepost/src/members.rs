//! Partitioning: who is there, and who of them owns which part of the work.

mod groups;
mod keeper;
mod shards;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use fencepost_core::{
    claim::Claimant,
    clock,
    error::{Error, ErrorKind, Operation},
    limits::Ttl,
    name::LockName,
    owner::Owner,
    purpose::Purpose,
};
use serde::{Deserialize, Serialize};
use tokio::sync::{oneshot, watch};

use crate::{
    cell::{Cell, Edit},
    client::Client,
    locks::Locks,
};
use groups::Roll;
pub use groups::{Group, GroupMember, MOST_GROUPS};
use keeper::{Keeper, Watching};
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
                    let pause = Duration::from_millis(there.ttl_ms).min(ttl.get()) / 8;
                    tokio::select! {
                        error = client.closed() => return Err(error),
                        () = clock::sleep(&*client.clock, pause) => taken_by = Some(there),
                    }
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

    /// The ids of all that are there, as this member sees them; without itself when it has been taken for dead, or its
    /// locks were closed.
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

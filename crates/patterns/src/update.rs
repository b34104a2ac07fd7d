//! Read, think, write if unchanged, and again with the newer value if not: one way for every store.
//!
//! Whatever can write on condition of what was read is a [`CompareAndSet`], and has [`update`](CompareAndSet::update):
//!
//! | where the value is | what implements it | the write is conditional on |
//! |---|---|---|
//! | a Redis key of your own | `atomic::redis::Scripted`, `.key(…)` | the old value, compared in a script |
//! | the same, for long values | `atomic::redis::Watching`, `.key(…)` | nobody having written since, by `WATCH` |
//! | a PostgreSQL row of your own | `atomic::postgres::Versioned`, `.row(…)` | a column that counts versions |
//! | a cell in etcd | `fencepost::Cell` | the key's revision, in a transaction |
//! | a cell in ZooKeeper | `fencepost::Cell` | the node's version |
//! | a cell in a directory, in Redis, in PostgreSQL, in memory | `fencepost::Cell` | the cell's version |
//!
//! Cells come from `fencepost::Locks::cell`. Several Redis keys change together by `Scripted::update` and `Watching::update`.
//!
//! | what happens | what comes of it |
//! |---|---|
//! | another was faster | the edit is called again with the newer value, after a pause that grows and is random |
//! | another is faster each time | [`Update::Contended`], with the count; nothing was written |
//! | the edit refuses | [`Update::Refused`], with its reason; nothing was written |
//! | the answer to a write is lost | an `Err`: it was written once or not. Read to see |
//! | the caller dies | it was written once or not; nothing is held, nobody waits for it |

use std::{future::Future, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    clock::{self, BootClock, Clock},
    error::{Error, ErrorKind, Operation},
};

use crate::atomic::{Outcome, Refusal};

/// Conflicts of one update before it is answered as [`Contended`](Update::Contended).
pub const MOST_CONFLICTS: u32 = 1_000;

/// What an update makes of the value it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit<T> {
    /// This shall be there.
    Write(T),
    /// Nothing shall be there.
    Remove,
    /// It shall stay as it is.
    Leave,
    /// It shall stay as it is, since what was wanted cannot be: there is too little of it, for instance.
    Refuse(Refusal),
}

/// The outcome of an update that did not fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Update<T> {
    /// Written.
    Written {
        /// What is there now.
        value: T,
        /// How often another was faster.
        conflicts: u32,
    },
    /// Removed, or nothing was there.
    Removed {
        /// How often another was faster.
        conflicts: u32,
    },
    /// Left as it was.
    Left,
    /// Left as it was, for this reason.
    Refused(Refusal),
    /// Another was faster each time; nothing was changed.
    Contended {
        /// How often.
        conflicts: u32,
    },
}

impl<T> Update<T> {
    /// What is there now and how many conflicts it took; `None` when it was left or removed.
    ///
    /// # Errors
    /// The refusal; [`Refusal::Contended`] when another was faster each time.
    pub fn written(self) -> Outcome<Option<(T, u32)>> {
        match self {
            Update::Written { value, conflicts } => Ok(Some((value, conflicts))),
            Update::Removed { .. } | Update::Left => Ok(None),
            Update::Refused(refusal) => Err(refusal),
            Update::Contended { conflicts } => Err(Refusal::Contended { conflicts }),
        }
    }

    /// Whether it is as the edit wanted it, for edits that never refuse.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when others changed `what` first each time, [`ErrorKind::Mismatch`] when the edit did refuse, or what is
    /// there cannot be changed so; nothing was changed.
    pub fn settled(self, what: &str) -> Result<(), Error> {
        match self {
            Update::Refused(refusal) => {
                Err(Error::new(ErrorKind::Mismatch, Operation::Update, format!("{what}: {refusal}")).not_applied())
            }
            Update::Contended { conflicts } => {
                let said = format!("others changed {what} first {conflicts} times in a row");
                Err(Error::new(ErrorKind::Unavailable, Operation::Update, said).not_applied().advise("try again"))
            }
            Update::Written { .. } | Update::Removed { .. } | Update::Left => Ok(()),
        }
    }
}

/// A value as it was read.
#[derive(Clone, Debug)]
pub struct Found<V, S> {
    /// The value; `None` when there is none.
    pub value: Option<V>,
    /// What a write on condition that it is still so names.
    pub seen: S,
}

/// What came of a read: the value, or why it cannot be changed this way.
pub type Shown<V, S> = Outcome<Found<V, S>>;

/// What came of one write on condition.
#[derive(Clone, Debug)]
pub enum Set<V, S> {
    /// Written.
    Done,
    /// Another was faster; nothing was written. Some stores tell at once what is there now.
    Conflict(Option<Found<V, S>>),
}

/// A value that is written on condition of what was read.
///
/// [`read`](Self::read) and [`set`](Self::set) are one step each, for whoever keeps what was read for longer, such as a form that a
/// person fills in. [`update`](Self::update) is the whole way.
pub trait CompareAndSet: Send {
    /// What it holds.
    type Value: Send;
    /// What a write is conditional on.
    type Seen: Send;
    /// What the connection or the server says.
    type Error: Send;

    /// The value, and what a write on condition of it names. A refusal comes before anything is sent.
    fn read(&mut self) -> impl Future<Output = Result<Shown<Self::Value, Self::Seen>, Self::Error>> + Send;

    /// Writes `new`, or removes the value for `None`, if what was `seen` is still so.
    ///
    /// # Cancel safety
    /// Dropped, or after an `Err`, it may have been written or not.
    fn set(
        &mut self,
        seen: Self::Seen,
        new: Option<&Self::Value>,
    ) -> impl Future<Output = Result<Set<Self::Value, Self::Seen>, Self::Error>> + Send;

    /// By which clock the pauses pass.
    fn clock(&self) -> &dyn Clock {
        &BootClock
    }

    /// Changes the value as `edit` says, which is called again with the newer value whenever another was faster, after a pause
    /// that grows and is random, up to [`MOST_CONFLICTS`] times.
    ///
    /// # Errors
    /// The connection's or the server's. It may have been written once or not.
    ///
    /// # Cancel safety
    /// Dropped, it may have been written once or not: read to see.
    fn update(
        &mut self,
        edit: impl FnMut(Option<Self::Value>) -> Edit<Self::Value> + Send,
    ) -> impl Future<Output = Result<Update<Self::Value>, Self::Error>> + Send {
        self.update_within(MOST_CONFLICTS, edit)
    }

    /// As [`update`](Self::update), up to the first `most_conflicts`. With one, the first conflict is the answer.
    ///
    /// # Errors
    /// As for [`update`](Self::update).
    ///
    /// # Cancel safety
    /// As for [`update`](Self::update).
    fn update_within(
        &mut self,
        most_conflicts: u32,
        mut edit: impl FnMut(Option<Self::Value>) -> Edit<Self::Value> + Send,
    ) -> impl Future<Output = Result<Update<Self::Value>, Self::Error>> + Send {
        async move {
            let mut pauses = Backoff::new(Duration::from_micros(200), Duration::from_millis(20));
            let mut told = None;
            for conflicts in 0..most_conflicts.max(1) {
                let found = match told.take() {
                    // After longer pauses what the conflict told is old.
                    Some(found) if conflicts % 8 != 7 => found,
                    _ => match self.read().await? {
                        Ok(found) => found,
                        Err(refusal) => return Ok(Update::Refused(refusal)),
                    },
                };
                let absent = found.value.is_none();
                let new = match edit(found.value) {
                    Edit::Write(new) => Some(new),
                    Edit::Remove if absent => return Ok(Update::Removed { conflicts }),
                    Edit::Remove => None,
                    Edit::Leave => return Ok(Update::Left),
                    Edit::Refuse(refusal) => return Ok(Update::Refused(refusal)),
                };
                match (self.set(found.seen, new.as_ref()).await?, new) {
                    (Set::Done, Some(value)) => return Ok(Update::Written { value, conflicts }),
                    (Set::Done, None) => return Ok(Update::Removed { conflicts }),
                    (Set::Conflict(now), _) => told = now,
                }
                clock::sleep(self.clock(), pauses.pause()).await;
            }
            Ok(Update::Contended { conflicts: most_conflicts.max(1) })
        }
    }
}

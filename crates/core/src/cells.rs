//! Cells: small values beside the locks, changed on condition of their version.
//!
//! A lock protects while somebody works; a cell remembers. Elections keep the leader's word in one, a latch its count,
//! an idempotency record its result. Each change is one compare-and-set on the store, so that a cell needs no lock.

pub mod bells;

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    error::{Error, ErrorKind, Operation},
    limits::Ttl,
    name::LockName,
    owner::Owner,
    store::BoxFuture,
};

/// The longest value of a cell, in bytes. Every store takes it.
pub const MAX_CELL_BYTES: usize = 256 * 1024;

/// The version of a cell: rises with each change of it, and no two values of one cell ever have the same, also when it
/// was removed or expired in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A cell as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its value.
    pub value: Arc<[u8]>,
    /// The version to name in the next change.
    pub version: Version,
    /// Which change wrote it.
    pub by: Owner,
    /// For how long yet, by the store's clock; `None` for one that does not expire.
    pub expires_in: Option<Duration>,
}

/// What a change expects to find. A cell that has expired is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No cell.
    Absent,
    /// The cell with this version.
    Version(Version),
}

impl Expected {
    /// Exactly what was read.
    pub fn as_read(cell: Option<&Cell>) -> Self {
        cell.map_or(Self::Absent, |cell| Self::Version(cell.version))
    }

    /// Whether `cell` is what is expected.
    pub fn matches(self, cell: Option<&Cell>) -> bool {
        self == Self::as_read(cell)
    }
}

/// One change of one cell.
#[derive(Clone, Debug)]
pub struct Change {
    /// The cell.
    pub key: LockName,
    /// What must be there.
    pub expected: Expected,
    /// What shall be there; `None` removes the cell.
    pub value: Option<Arc<[u8]>>,
    /// After how long the cell is absent, by the store's clock; `None` keeps it.
    pub ttl: Option<Ttl>,
    /// This change's own random value, by which a repeat is recognised.
    pub by: Owner,
}

impl Change {
    /// A change that writes `value` for good.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a value longer than [`MAX_CELL_BYTES`]; [`ErrorKind::Misconfigured`] without
    /// randomness.
    pub fn write(key: LockName, expected: Expected, value: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        let value = value.into();
        if value.len() > MAX_CELL_BYTES {
            let said = format!("a value of {} bytes is too long; the limit is {MAX_CELL_BYTES}", value.len());
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Update, said).not_applied().on_lock(&key));
        }
        Ok(Self { key, expected, value: Some(value), ttl: None, by: Owner::random()? })
    }

    /// A change that removes the cell with this version.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`] without randomness.
    pub fn remove(key: LockName, version: Version) -> Result<Self, Error> {
        Ok(Self { key, expected: Expected::Version(version), value: None, ttl: None, by: Owner::random()? })
    }

    /// Lets the cell expire.
    pub fn expiring(mut self, after: Ttl) -> Self {
        self.ttl = Some(after);
        self
    }
}

/// A store's answer to a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It is as wanted now; the version of what was written, or the one that was removed.
    Done(Version),
    /// Something else was there, and nothing was changed.
    Conflict(Option<Cell>),
}

/// A place for cells. Their names are those of locks, and do not meet those of locks; they can be longer by a kind
/// ([`LockName::of_kind`]).
///
/// # What every store keeps to
///
/// - A change is one atomic step of comparison and write, judged by the store's clock where it expires (T2).
/// - **Changes can be repeated.** While the cell is as a change left it, the same change answers [`Changed::Done`]
///   again; that clears up most answers of unknown outcome. One that was overwritten since answers
///   [`Changed::Conflict`], and a removal that is repeated answers [`Changed::Conflict`] with no cell.
/// - A store that repeats a change by itself never answers [`Changed::Conflict`] for one that it may have applied before:
///   whoever is told of a conflict decides anew, and would change the cell twice. That is of unknown outcome.
/// - Every call ends, and may be dropped at any point; a change that was dropped may have been applied.
pub trait Cells: fmt::Debug + Send + Sync {
    /// The cell; `None` when there is none, or it has expired.
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>>;

    /// Changes a cell on condition of what is there.
    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>>;

    /// Completes when the cell is another than `seen`, or may be: look at it afterwards. Waits without polling where
    /// the store can wake us (W1).
    ///
    /// # Cancel safety
    /// Safe.
    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>>;
}

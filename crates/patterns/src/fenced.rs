//! Resources that check fences: what an older holder writes late is refused.
//!
//! All of them work alike. A new holder first **advances** the resource to its fence and reads what is there; from that step
//! on, whoever held before can change nothing. Then it **writes**, with its fence, and the resource compares and writes in
//! one step. The order matters: a holder that reads before it advances may read what an older one then still changes.
//!
//! | resource | how it checks | what it survives |
//! |---|---|---|
//! | [`FencedFile`], [`FencedDirectory`] | a record beside the files, locked for the step; content replaced by a rename | `kill -9` and power failure at any point |
//! | `FencedKeys` (feature `redis`) | one script compares and writes | what the Redis server survives |
//! | `http::FencingLayer` (feature `http`) | a record for each resource, locked while the request is handled | as for files |
//! | [`FencedObject`] | a conditional write to the store of objects, which keeps the fence with the object | what the store survives |
//! | PostgreSQL rows | a trigger: `fencepost fence-table`, `fencepost_postgres::fenced` | what the database survives |
//!
//! # What none of them can do
//!
//! - See a write that does not go through them.
//! - Refuse an older holder before the newer one has advanced: until then nobody newer has read anything.
//! - Remember after their record was removed, or restored from a backup: then older fences are let through again.

mod directory;
#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "redis")]
mod keys;
mod objects;
mod record;

use std::fmt;

use fencepost_core::fence::Fence;

#[cfg(feature = "redis")]
pub use self::keys::FencedKeys;
pub use self::{
    directory::{FencedDirectory, FencedFile},
    objects::{DirectoryObjects, FencedObject, Object, Objects, Put, Tag},
};
pub use crate::alone::STEP_WITHIN;

/// Why nothing was written, or it is not known whether it was.
#[derive(Debug)]
pub enum Refused<E> {
    /// The resource has seen a newer fence: the lock was passed on. Nothing was written, and nothing may be under this fence.
    Stale {
        /// The newest that it has seen.
        seen: Fence,
    },
    /// Others wrote in between each time; nothing was written. Only [`FencedObject`] has it, for writers of one fence.
    Contended {
        /// How often.
        tries: u32,
    },
    /// The resource said something else. Whether something was written is unknown unless the error says so; the same write
    /// under the same fence can be repeated.
    Failed(E),
}

impl<E: fmt::Display> fmt::Display for Refused<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Stale { seen } => {
                write!(
                    f,
                    "the resource has seen the newer fence {seen}: the lock was passed on, and nothing was written"
                )
            }
            Refused::Contended { tries } => write!(f, "others wrote in between {tries} times; nothing was written"),
            Refused::Failed(error) => write!(f, "the resource could not be changed: {error}"),
        }
    }
}

impl<E: fmt::Display + fmt::Debug> std::error::Error for Refused<E> {}

impl<E> From<E> for Refused<E> {
    fn from(error: E) -> Self {
        Refused::Failed(error)
    }
}

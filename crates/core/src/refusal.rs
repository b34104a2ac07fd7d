//! Why a claim cannot be granted as things are, however long it waits: one wording for every store.

use crate::{
    error::{Error, ErrorKind, Operation},
    name::LockName,
};

/// A claim, or a change of a limit, that does not fit what the name is in use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// No permits were asked for.
    NoPermits,
    /// More permits than there are.
    TooMany {
        /// Permits wanted.
        count: u32,
        /// Permits there are.
        of: u32,
    },
    /// It is in use as a semaphore, with this limit.
    SemaphoreInUse {
        /// The limit.
        of: u32,
    },
    /// It is in use as a lock.
    LockInUse,
}

impl Refusal {
    /// The error that callers get.
    pub fn error(self, name: &LockName) -> Error {
        let (kind, said, advice) = match self {
            Self::NoPermits => {
                (ErrorKind::InvalidInput, "zero permits are no semaphore".to_owned(), "ask for one permit or more")
            }
            Self::TooMany { count, of } => (
                ErrorKind::InvalidInput,
                format!("{count} permits were asked for and there are only {of}"),
                "ask for fewer permits",
            ),
            Self::SemaphoreInUse { of } => (
                ErrorKind::Mismatch,
                format!("the name is in use as a semaphore of {of} permits"),
                "use another name, state the same limit, or change the limit on purpose",
            ),
            Self::LockInUse => (
                ErrorKind::Mismatch,
                "the name is in use as a lock".to_owned(),
                "use another name for the semaphore, or wait until nobody holds or awaits the lock",
            ),
        };
        Error::new(kind, Operation::Claim, said).not_applied().on_lock(name).advise(advice)
    }
}

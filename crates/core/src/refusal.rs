//! Why a claim cannot be granted as things are, however long it waits: one wording for every store.

use crate::{
    claim::Mode,
    error::{Error, ErrorKind, Operation},
    limits::MOST_PERMITS,
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
    /// More permits than one claim may have.
    Unwieldy {
        /// Permits wanted.
        count: u32,
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
    /// Why nobody can have this, whatever the name is in use for.
    pub fn of(mode: Mode) -> Option<Self> {
        match mode {
            Mode::Permits { count: 0, .. } => Some(Self::NoPermits),
            Mode::Permits { count, of } if count > of => Some(Self::TooMany { count, of }),
            Mode::Permits { count, .. } if count > MOST_PERMITS => Some(Self::Unwieldy { count }),
            Mode::Permits { .. } | Mode::Exclusive | Mode::Shared => None,
        }
    }

    /// The error that callers get.
    pub fn error(self, operation: Operation, name: &LockName) -> Error {
        let (kind, said, advice) = match self {
            Self::NoPermits => {
                (ErrorKind::InvalidInput, "zero permits are no semaphore".to_owned(), "ask for one permit or more")
            }
            Self::TooMany { count, of } => (
                ErrorKind::InvalidInput,
                format!("{count} permits were asked for and there are only {of}"),
                "ask for fewer permits",
            ),
            Self::Unwieldy { count } => (
                ErrorKind::InvalidInput,
                format!("{count} permits were asked for at once, and {MOST_PERMITS} is the most"),
                "let a permit stand for more, or ask in several steps",
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
        Error::new(kind, operation, said).not_applied().on_lock(name).advise(advice)
    }
}

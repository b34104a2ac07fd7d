//! One error type for every store and primitive (C2).

use std::{error::Error as StdError, fmt};

use crate::{claim::LossReason, name::LockName};

/// What went wrong, what state things are in now, and whether a retry can help.
///
/// "Busy" is not an error but a result; an error never means that somebody else holds the lock.
#[derive(Debug)]
pub struct Error(Box<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    applied: Applied,
    retry: Retry,
    operation: Operation,
    message: String,
    advice: Option<String>,
    lock: Option<LockName>,
    store: Option<&'static str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of failure a caller may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The caller's input was refused before anything was sent.
    InvalidInput,
    /// The store could not be reached or did not answer in time.
    Unavailable,
    /// The store refused for lack of rights: a wrong password, an ACL, file permissions.
    PermissionDenied,
    /// Something that is not ours lies where our record should be.
    ForeignValue,
    /// The name is in use as another kind of lock, or as a semaphore with another limit.
    Mismatch,
    /// What we stored cannot be read back; going on could repeat a fence.
    Corrupt,
    /// The store cannot give what was asked, by its nature.
    Unsupported,
    /// The store is set up in a way that breaks the lock: a read-only replica, a network file system.
    Misconfigured,
    /// The grant arrived after its own deadline; it was given back.
    LateGrant,
    /// The lease is lost.
    Lost(LossReason),
    /// The client was closed.
    Closed,
}

/// Whether the failed operation took effect in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Applied {
    /// Nothing changed.
    No,
    /// It took effect.
    Yes,
    /// It may have taken effect, or may still do so.
    Unknown,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    /// The same call may succeed later without anybody doing anything.
    Later,
    /// Only after somebody changed the input, the rights or the set-up.
    AfterChange,
}

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Reading names, TTLs, URLs.
    Parse,
    /// Opening a store.
    Open,
    /// Taking a lock or a place in its queue.
    Claim,
    /// Waiting in the queue.
    Wait,
    /// Extending a lease.
    Renew,
    /// Giving back.
    Release,
    /// Listing holders and waiters.
    Inspect,
    /// Breaking a lock by force.
    Force,
    /// Changing the limit of a semaphore.
    Resize,
    /// Reading or changing a cell.
    Update,
    /// Running the caller's work under the lease.
    Run,
}

impl Error {
    /// A new error. Its outcome is [`Applied::Unknown`] until said otherwise; whether a retry can
    /// help follows from the kind.
    pub fn new(kind: ErrorKind, operation: Operation, message: impl Into<String>) -> Self {
        let retry = match kind {
            ErrorKind::Unavailable | ErrorKind::LateGrant => Retry::Later,
            _ => Retry::AfterChange,
        };
        Self(Box::new(Inner {
            kind,
            applied: Applied::Unknown,
            retry,
            operation,
            message: message.into(),
            advice: None,
            lock: None,
            store: None,
            source: None,
        }))
    }

    /// States that nothing changed in the store.
    pub fn not_applied(mut self) -> Self {
        self.0.applied = Applied::No;
        self
    }

    /// States that the operation took effect.
    pub fn applied_in_full(mut self) -> Self {
        self.0.applied = Applied::Yes;
        self
    }

    /// States that the outcome is unknown: this try changed nothing, but an earlier one of the same may have.
    pub fn outcome_unknown(mut self) -> Self {
        self.0.applied = Applied::Unknown;
        self
    }

    /// What the user should do next, as a sentence.
    pub fn advise(mut self, advice: impl Into<String>) -> Self {
        self.0.advice = Some(advice.into());
        self
    }

    /// The lock it is about.
    pub fn on_lock(mut self, name: &LockName) -> Self {
        self.0.lock = Some(name.clone());
        self
    }

    /// The store it happened in, as named by its capabilities.
    pub fn in_store(mut self, store: &'static str) -> Self {
        self.0.store = Some(store);
        self
    }

    /// The error below it. Its text becomes part of the message, so it must hold no secret.
    pub fn caused_by(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether the operation took effect.
    pub fn applied(&self) -> Applied {
        self.0.applied
    }

    /// Whether trying again can help.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// What was being done.
    pub fn operation(&self) -> Operation {
        self.0.operation
    }

    /// The lock it is about, where there is one.
    pub fn lock(&self) -> Option<&LockName> {
        self.0.lock.as_ref()
    }

    /// The store it happened in, where it got that far.
    pub fn store(&self) -> Option<&'static str> {
        self.0.store
    }

    /// What to do next, where something helps.
    pub fn advice(&self) -> Option<&str> {
        self.0.advice.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &*self.0;
        if let Some(lock) = &inner.lock {
            write!(f, "lock {lock:?}: ")?;
        }
        f.write_str(&inner.message)?;
        let mut below = inner.source.as_deref().map(|source| source as &dyn StdError);
        while let Some(source) = below {
            write!(f, ": {source}")?;
            below = source.source();
        }
        if inner.applied == Applied::Unknown && inner.operation.changes_anything() {
            write!(f, " (whether the {} took effect is unknown)", inner.operation)?;
        }
        if let Some(advice) = &inner.advice {
            write!(f, "; {advice}")?;
        }
        Ok(())
    }
}

impl Operation {
    /// Whether there is anything in the store that its failure could leave in doubt.
    fn changes_anything(self) -> bool {
        match self {
            Self::Claim | Self::Wait | Self::Renew | Self::Release => true,
            Self::Force | Self::Resize | Self::Update => true,
            Self::Parse | Self::Open | Self::Inspect | Self::Run => false,
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Parse => "input",
            Operation::Open => "opening",
            Operation::Claim => "claim",
            Operation::Wait => "wait",
            Operation::Renew => "renewal",
            Operation::Release => "release",
            Operation::Inspect => "listing",
            Operation::Force => "break",
            Operation::Resize => "change of the limit",
            Operation::Update => "update",
            Operation::Run => "work",
        })
    }
}

impl StdError for Error {
    // The message already carries the whole chain; a source as well would print it twice in
    // every reporter that walks sources.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_only_what_could_change_something_is_told_to_be_unknown() {
        let told = |operation| Error::new(ErrorKind::Unavailable, operation, "no answer").to_string();
        assert_eq!(told(Operation::Release), "no answer (whether the release took effect is unknown)");
        assert_eq!(told(Operation::Inspect), "no answer");
    }
}

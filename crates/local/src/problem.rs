//! What can go wrong with a file, and how the user is told.

use std::path::{Path, PathBuf};

use fencepost_core::{
    error::{Error, ErrorKind, Operation},
    name::LockName,
    refusal::Refusal,
};
use rustix::io::Errno;

use crate::STORE;

/// The outcome of work on files, before it is known for whom it was done.
pub(crate) type Outcome<T> = Result<T, Problem>;

/// A failure, with the file it is about.
#[derive(Debug)]
pub(crate) enum Problem {
    /// A system call failed while doing `doing`, as in "opening".
    System { doing: &'static str, path: PathBuf, errno: Errno },
    /// What we wrote cannot be read back.
    Corrupt { path: PathBuf, found: String, repair: String },
    /// Something that is not ours, or another lock's record.
    Foreign { path: PathBuf, found: String },
    /// Written by a later version of the format.
    Newer { path: PathBuf, version: u32 },
    /// A process that was stopped in the middle of a step of microseconds bars the way.
    Stuck { path: PathBuf, what: &'static str },
    /// A change was made and is not on the disk yet.
    Unsynced { path: PathBuf, errno: Errno },
    /// The claim does not fit what the lock is in use for.
    Refused(Refusal),
    /// There is no higher fence.
    Exhausted { path: PathBuf },
    /// Nothing came of the step for a reason that passes: do it again after what the reason says.
    Again(Again),
}

/// What a step that is to be done again has to wait for. Nothing of the step is left held meanwhile.
#[derive(Debug)]
pub(crate) enum Again {
    /// Another process has the directory's floor at this moment.
    FloorTaken,
    /// The floor's ceiling must be raised, which waits for the disk.
    CeilingReached,
    /// Another is about to sit down beside others, or looks who sits.
    GateTaken(PathBuf),
}

impl Problem {
    pub(crate) fn system(doing: &'static str, path: &Path) -> impl FnOnce(Errno) -> Problem {
        move |errno| Problem::System { doing, path: path.to_owned(), errno }
    }

    /// The error that the caller of the store sees. Nothing was granted and nothing is left held, whatever the
    /// problem: a descriptor that is not handed out is closed, and the lock with it.
    pub(crate) fn into_error(self, operation: Operation, name: Option<&LockName>) -> Error {
        let error = match self {
            Problem::Unsynced { path, errno } => {
                let said = format!("{} could not be synced: it is changed, until the machine fails", path.display());
                let error = Error::new(ErrorKind::Unavailable, operation, said).applied_in_full().in_store(STORE);
                let error = error.caused_by(std::io::Error::from(errno));
                return if let Some(name) = name { error.on_lock(name) } else { error };
            }
            Problem::System { doing, path, errno } => system_error(operation, doing, &path, errno),
            Problem::Corrupt { path, found, repair } => {
                let said = format!("{} {found}; going on could repeat a fence", path.display());
                Error::new(ErrorKind::Corrupt, operation, said).advise(repair)
            }
            Problem::Foreign { path, found } => {
                let said = format!("{} {found}", path.display());
                Error::new(ErrorKind::ForeignValue, operation, said)
                    .advise("move it away, or give the store a directory of its own")
            }
            Problem::Newer { path, version } => {
                let said = format!("{} has format {version}, which this version cannot read", path.display());
                Error::new(ErrorKind::Unsupported, operation, said).advise("upgrade this program")
            }
            Problem::Stuck { path, what } => {
                let said = format!("{} {what}", path.display());
                Error::new(ErrorKind::Unavailable, operation, said)
                    .advise("look for a stopped process that has the file open")
            }
            // Every step is done by `Shared::persist`, which turns it into another problem in the end.
            Problem::Again(_) => Error::new(ErrorKind::Unavailable, operation, "the directory is busy; try again"),
            Problem::Refused(refusal) => match name {
                Some(name) => refusal.error(operation, name),
                None => Error::new(ErrorKind::Mismatch, operation, "the lock is in use otherwise"),
            },
            Problem::Exhausted { path } => {
                let said = format!("{} has no fence left below 2^63", path.display());
                Error::new(ErrorKind::Unsupported, operation, said).advise("use another namespace")
            }
        };
        let error = error.not_applied().in_store(STORE);
        match name {
            Some(name) => error.on_lock(name),
            None => error,
        }
    }
}

fn system_error(operation: Operation, doing: &'static str, path: &Path, errno: Errno) -> Error {
    let (kind, advice) = match errno {
        Errno::ACCESS | Errno::PERM | Errno::ROFS => {
            (ErrorKind::PermissionDenied, "the directory and the files in it must be writable for this user")
        }
        Errno::NOSPC | Errno::DQUOT => {
            (ErrorKind::Unavailable, "nothing was granted and nothing is lost; make room on the disk and try again")
        }
        Errno::MFILE => (
            ErrorKind::Unavailable,
            "each lock held or waited for needs a file descriptor; raise the limit with `ulimit -n`",
        ),
        Errno::NFILE | Errno::NOMEM | Errno::IO => (ErrorKind::Unavailable, "the machine is short of it; try again"),
        Errno::NOTDIR | Errno::LOOP | Errno::ISDIR => {
            (ErrorKind::ForeignValue, "something else lies there; move it away or name another directory")
        }
        Errno::NOENT => (ErrorKind::Misconfigured, "the directory was removed; open the store again"),
        Errno::NAMETOOLONG => (ErrorKind::Misconfigured, "choose a directory with a shorter path"),
        _ => (ErrorKind::Misconfigured, "the directory must be on a local file system that knows flock(2)"),
    };
    let said = format!("{doing} {} failed", path.display());
    Error::new(kind, operation, said).advise(advice).caused_by(std::io::Error::from(errno))
}

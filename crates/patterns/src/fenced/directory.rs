//! Files that check fences.

use std::{
    io,
    path::{Path, PathBuf},
};

use fencepost_core::fence::Fence;

use super::{
    Refused,
    record::{self, Record},
};

/// A file that refuses writes under an older fence than it has seen.
///
/// The newest fence lies in `.NAME.fence` beside it, which is locked for the time of one step, on the disk before the content
/// changes, and must not be removed. New content grows in `.NAME.new` and takes the file's place by a rename, so that readers
/// without a fence see the old content or the new one and never half; the file's mode stays, and its owner and group
/// are those of whoever wrote last. Calls block, for [`STEP_WITHIN`](super::STEP_WITHIN) at most while another process is in the
/// midst of a step: call them inside `spawn_blocking`. Between hosts it is as good as the file system's `flock`.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_patterns::fenced::{FencedFile, Refused};
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("state");
/// # let [older, newer] = [1, 2].map(|number| fencepost_core::fence::Fence::new(number).unwrap());
/// let state = FencedFile::at(path);
/// let before = state.advance(older)?; // first
/// assert_eq!(before, None);
/// state.replace(older, b"written in time")?;
///
/// assert_eq!(state.advance(newer)?.as_deref(), Some(&b"written in time"[..])); // the lock was passed on
/// let late = state.replace(older, b"written late");
/// assert!(matches!(late, Err(Refused::Stale { seen }) if seen == newer));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FencedFile {
    path: PathBuf,
    record: PathBuf,
}

impl FencedFile {
    /// The file at `path`, which need not be there yet; its directory must.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let record = record::beside(&path, "fence");
        Self { path, record }
    }

    /// Makes the file see `fence`, and reads it after that: the first thing that a new holder does.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer one.
    pub fn advance(&self, fence: Fence) -> Result<Option<Vec<u8>>, Refused<io::Error>> {
        step(&self.record, fence, || record::content(&self.path))
    }

    /// Replaces what the file holds.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer fence.
    pub fn replace(&self, fence: Fence, content: &[u8]) -> Result<(), Refused<io::Error>> {
        step(&self.record, fence, || record::replace(&self.path, &[content]))
    }

    /// Removes the file, and keeps the newest fence; whether there was one.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer fence.
    pub fn remove(&self, fence: Fence) -> Result<bool, Refused<io::Error>> {
        step(&self.record, fence, || record::remove(&self.path))
    }
}

/// A directory whose files all have one fence. The newest that it has seen lies in `.fence` in it. For the rest, as [`FencedFile`].
#[derive(Clone, Debug)]
pub struct FencedDirectory {
    path: PathBuf,
    record: PathBuf,
}

impl FencedDirectory {
    /// The directory at `path`, which must be there.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let record = path.join(".fence");
        Self { path, record }
    }

    /// Makes the directory see `fence`, before anything in it is read.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer one.
    pub fn advance(&self, fence: Fence) -> Result<(), Refused<io::Error>> {
        step(&self.record, fence, || Ok(()))
    }

    /// What a file in it holds. Needs no fence.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a name that is no plain file name; those of the system.
    pub fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        record::content(&self.file(name)?)
    }

    /// Replaces what a file in it holds.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer fence; [`io::ErrorKind::InvalidInput`] as for [`read`](Self::read).
    pub fn replace(&self, fence: Fence, name: &str, content: &[u8]) -> Result<(), Refused<io::Error>> {
        let path = self.file(name)?;
        step(&self.record, fence, || record::replace(&path, &[content]))
    }

    /// Removes a file in it; whether there was one.
    ///
    /// # Errors
    /// As for [`replace`](Self::replace).
    pub fn remove(&self, fence: Fence, name: &str) -> Result<bool, Refused<io::Error>> {
        let path = self.file(name)?;
        step(&self.record, fence, || record::remove(&path))
    }

    /// Names that begin with a dot are the record's, and those of content that is on its way.
    fn file(&self, name: &str) -> io::Result<PathBuf> {
        if name.is_empty() || name.starts_with('.') || Path::new(name).file_name() != Some(name.as_ref()) {
            let said = format!("{name:?} is no plain file name, or begins with a dot");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, said));
        }
        Ok(self.path.join(name))
    }
}

/// Compares and works in one step: nobody else comes in between, and no newer fence is seen before the work is done.
fn step<T>(record: &Path, fence: Fence, work: impl FnOnce() -> io::Result<T>) -> Result<T, Refused<io::Error>> {
    let mut record = Record::lock(record)?;
    record.advance(fence)?;
    let done = work()?;
    drop(record);
    Ok(done)
}

//! Files that processes share: their names, and one process at a time for the time of one step.

use std::{
    fs::{File, OpenOptions},
    io,
    path::Path,
    thread,
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{BootClock, Clock},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

/// How long a step waits for another process that is in the midst of one; then it fails with [`io::ErrorKind::TimedOut`].
pub const STEP_WITHIN: Duration = Duration::from_secs(10);

/// The name of the file for a key.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] for one that is empty, or longer than 200 bytes as it is encoded.
pub(crate) fn file_name(key: &str) -> io::Result<String> {
    const KEPT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_');
    let name = utf8_percent_encode(key, KEPT).to_string();
    if name.is_empty() || name.len() > 200 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "a key has 1 to 200 bytes, as encoded for a file name",
        ));
    }
    Ok(name)
}

/// The file for reading and writing, made where it is missing.
pub(crate) fn opened(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        file => return file,
    }
    match options.clone().create_new(true).open(path) {
        // Another was faster.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => options.open(path),
        file => file,
    }
}

/// Until the file is closed. Never inside `flock`: whoever was stopped in the midst of a step would stop everybody for as long.
pub(crate) fn wait_for(file: &File) -> io::Result<()> {
    let until = BootClock.now().after(STEP_WITHIN);
    let mut backoff = Backoff::new(Duration::from_micros(100), Duration::from_millis(5));
    while !had(file)? {
        if BootClock.now() >= until {
            return Err(in_vain());
        }
        thread::sleep(backoff.pause());
    }
    Ok(())
}

/// Whether the file is ours now, until it is closed.
pub(crate) fn had(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// After [`STEP_WITHIN`].
pub(crate) fn in_vain() -> io::Error {
    let said = format!("another has been in the midst of a step for {STEP_WITHIN:?}; nothing was changed");
    io::Error::new(io::ErrorKind::TimedOut, said)
}

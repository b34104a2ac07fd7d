//! What servers say: kept in a file beside their data, for whoever wants to know why something went wrong.

use std::{fs, io, path::Path, process::Command};

const FILE: &str = "server.log";

/// How much of the end of a log is read, in bytes.
const READ: usize = 256 * 1024;

/// Has all that a server says appended to the log in this directory.
pub(crate) fn keep(server: &mut Command, directory: &Path) -> io::Result<()> {
    let log = fs::File::options().create(true).append(true).open(directory.join(FILE))?;
    server.stdout(log.try_clone()?).stderr(log);
    Ok(())
}

/// The end of it; empty where nothing was said.
pub(crate) fn read(directory: &Path) -> String {
    let bytes = fs::read(directory.join(FILE)).unwrap_or_default();
    String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(READ)..]).into_owned()
}

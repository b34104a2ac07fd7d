//! A wall clock that can jump, for one process, a server or a client: a small library that is preloaded into it.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

use tempfile::{NamedTempFile, TempDir};

/// A wall clock that processes can be started on. It runs as the machine's does, and apart from it by what it jumped.
#[derive(Debug)]
pub struct WallClock {
    offset: NamedTempFile,
    library: PathBuf,
}

impl WallClock {
    /// A clock that is right.
    ///
    /// # Errors
    /// In words, when there is no C compiler to build the library with.
    pub fn new() -> Result<Self, String> {
        let library = library()?.to_owned();
        let offset = NamedTempFile::new().map_err(|error| error.to_string())?;
        let clock = Self { offset, library };
        clock.stand_apart(0)?;
        Ok(clock)
    }

    /// Moves it so many seconds before the machine's clock, or behind it.
    ///
    /// # Errors
    /// In words, when that cannot be written down.
    pub fn stand_apart(&self, seconds: i64) -> Result<(), String> {
        let nanos = seconds.checked_mul(1_000_000_000).ok_or("no clock can be that wrong")?;
        // In place: a server that reads the mapped file while it is empty would be killed.
        self.offset.as_file().write_all_at(&nanos.to_ne_bytes(), 0).map_err(|error| error.to_string())
    }

    /// Makes `command` run on this clock.
    pub fn govern(&self, command: &mut Command) {
        command.env("LD_PRELOAD", &self.library).env("WALL_CLOCK_OFFSET", self.offset.path());
    }
}

/// Built once for the process.
fn library() -> Result<&'static Path, String> {
    static BUILT: OnceLock<Result<(TempDir, PathBuf), String>> = OnceLock::new();
    BUILT.get_or_init(build).as_ref().map(|(_, library)| library.as_path()).map_err(Clone::clone)
}

fn build() -> Result<(TempDir, PathBuf), String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (source, library) = (directory.path().join("skew.c"), directory.path().join("skew.so"));
    fs::write(&source, include_str!("wall_clock/skew.c")).map_err(|error| error.to_string())?;
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&library).arg(&source).stdin(Stdio::null());
    let output = compiler.output().map_err(|error| format!("no C compiler, install the package gcc: {error}"))?;
    if output.status.success() {
        Ok((directory, library))
    } else {
        Err(format!("the C compiler failed: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{RedisServer, Reply};

    #[test]
    fn a_server_on_a_clock_of_its_own_jumps_with_it() {
        let clock = Arc::new(WallClock::new().expect("a C compiler"));
        let server = RedisServer::start_on(&clock);
        let seconds = || match server.command(&["TIME"]) {
            Reply::List(parts) => match &parts[0] {
                Reply::Text(seconds) => seconds.parse::<u64>().expect("seconds"),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        };
        let before = seconds();
        clock.stand_apart(3600).expect("it jumps");
        let jumped = seconds() - before;
        assert!((3600..3700).contains(&jumped), "{jumped} s");
    }
}

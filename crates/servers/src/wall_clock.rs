//! Clocks of one process, a server or a client, that differ from the machine's: a small library that is preloaded into it.

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
    time::Duration,
};

use tempfile::{NamedTempFile, TempDir};

/// Where in the mapped file each clock's number is.
const WALL: u64 = 0;
const SLEPT: u64 = 8;

/// A wall clock that processes can be started on. It runs as the machine's does, and apart from it by what it jumped. Their
/// monotonic clock can be made to have stood still, as it does while a machine is suspended.
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
        // Servers that refuse to run as root read it as somebody else.
        readable(offset.path(), 0o644)?;
        let clock = Self { offset, library };
        clock.stand_apart(0)?;
        clock.have_slept(Duration::ZERO)?;
        Ok(clock)
    }

    /// Moves it so many seconds before the machine's clock, or behind it.
    ///
    /// # Errors
    /// In words, when that cannot be written down.
    pub fn stand_apart(&self, seconds: i64) -> Result<(), String> {
        self.put(WALL, seconds.checked_mul(1_000_000_000).ok_or("no clock can be that wrong")?)
    }

    /// Has the monotonic clock stood still for so long in all, and no other: `CLOCK_BOOTTIME` counts what a machine sleeps.
    ///
    /// # Errors
    /// In words, when that cannot be written down.
    pub fn have_slept(&self, span: Duration) -> Result<(), String> {
        self.put(SLEPT, i64::try_from(span.as_nanos()).map_err(|_| "no machine sleeps that long")?)
    }

    /// By how many nanoseconds it is apart from the machine's clock.
    ///
    /// # Errors
    /// In words, when that cannot be read.
    pub fn apart(&self) -> Result<i64, String> {
        let mut nanos = [0; 8];
        self.offset.as_file().read_exact_at(&mut nanos, WALL).map_err(|error| error.to_string())?;
        Ok(i64::from_ne_bytes(nanos))
    }

    fn put(&self, at: u64, nanos: i64) -> Result<(), String> {
        // In place: a server that reads the mapped file while it is empty would be killed.
        self.offset.as_file().write_all_at(&nanos.to_ne_bytes(), at).map_err(|error| error.to_string())
    }

    /// Whether this process reads the time from it: one that is linked statically does not.
    pub fn governs(&self, pid: u32) -> bool {
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains(&*self.offset.path().to_string_lossy())
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
        readable(directory.path(), 0o755)?;
        readable(&library, 0o755)?;
        Ok((directory, library))
    } else {
        Err(format!("the C compiler failed: {}", String::from_utf8_lossy(&output.stderr)))
    }
}

fn readable(path: &Path, mode: u32) -> Result<(), String> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{EtcdCluster, RedisServer, Reply};

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
        assert!(clock.governs(server.pid().expect("it runs")));
        assert!(!clock.governs(std::process::id()));
    }

    /// It asks neither the C library nor the kernel, but what the kernel said was its vDSO.
    #[test]
    fn a_server_in_go_jumps_with_it_too() {
        let clock = Arc::new(WallClock::new().expect("a C compiler"));
        let server = EtcdCluster::start_on(&clock, &[]);
        if !clock.governs(server.pid(0).expect("it runs")) {
            return eprintln!("SKIPPED: this etcd is linked statically, and loads no library");
        }
        let second = || server.second_of_day(0).expect("it answers");
        let before = second();
        clock.stand_apart(3600).expect("it jumps");
        let jumped = (second() - before).rem_euclid(86_400);
        assert!((3600..3700).contains(&jumped), "{jumped} s");
        server.etcdctl(&["put", "it", "serves"]);
    }
}

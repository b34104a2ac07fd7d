//! Is the work really idempotent? Runs a command once on one copy of its data, and twice at once on another copy, and
//! tells what differs.

mod database;
mod directory;

use std::{ffi::OsString, fmt, io, os::unix::process::ExitStatusExt, process::ExitStatus, time::Duration};

use rustix::process::Signal;
use serde::Serialize;
use tokio::process::{Child, Command};

pub use self::{database::in_databases, directory::in_directories};
use crate::{fault::signal_group, stage::pause};

/// What shall be run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// How long after the first one the second one starts.
    pub apart: Duration,
}

/// What came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// How the one that ran alone ended.
    pub once: Ended,
    /// How the two that ran at once ended.
    pub twice: [Ended; 2],
    /// What differs after two at once from what one alone leaves: a path, or a table or sequence of a database.
    pub differences: Vec<Differs>,
}

/// How a command ended: by itself, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal's number.
    pub signal: Option<i32>,
}

impl Ended {
    /// Whether it did its work.
    pub fn well(self) -> bool {
        self.code == Some(0)
    }
}

impl From<ExitStatus> for Ended {
    fn from(status: ExitStatus) -> Self {
        Self { code: status.code(), signal: status.signal() }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "ended by signal {signal}"),
            (None, None) => f.write_str("ended"),
        }
    }
}

/// Something that differs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Differs {
    /// A path, or the name of a table or sequence.
    pub what: String,
    /// How.
    pub how: Difference,
}

/// How something differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Difference {
    /// Only two at once leave it.
    OnlyTwice,
    /// Only one alone leaves it.
    OnlyOnce,
    /// Its content differs.
    Content,
    /// It is another kind of thing, or may be used by others.
    Kind,
    /// So many rows are left by one alone, and by two at once.
    Rows {
        /// By one alone.
        once: i64,
        /// By two at once.
        twice: i64,
    },
}

impl Job {
    /// Runs it once, and then twice at once. `onto` points a command at the copy that it works on: the one for one alone
    /// (`false`), or the one for two at once.
    ///
    /// # Cancel safety
    /// Dropped, it kills what it started.
    async fn run(&self, onto: impl Fn(&mut Command, bool)) -> io::Result<(Ended, [Ended; 2])> {
        let once = self.started(&onto, "once")?.ended().await?;
        let mut first = self.started(&onto, "first")?;
        pause(self.apart).await;
        let mut second = self.started(&onto, "second")?;
        let (first, second) = tokio::join!(first.ended(), second.ended());
        Ok((once, [first?, second?]))
    }

    fn started(&self, onto: impl Fn(&mut Command, bool), which: &str) -> io::Result<Running> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command"));
        };
        let mut command = Command::new(program);
        // A group of its own, so that all of it can be ended.
        command.args(arguments).env("FENCEPOST_TWICE", which).process_group(0);
        onto(&mut command, which != "once");
        Ok(Running(command.spawn()?))
    }
}

/// A command that runs. Killed with all that is in its group when dropped before its end.
struct Running(Child);

impl Running {
    async fn ended(&mut self) -> io::Result<Ended> {
        self.0.wait().await.map(Ended::from)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that has ended has no number any more, and what it left behind is left alone.
        let _ = signal_group(self.0.id(), Signal::KILL);
    }
}

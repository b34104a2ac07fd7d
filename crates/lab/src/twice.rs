//! Is the work really idempotent? Runs a command once on one copy of its data, and twice at once on another copy, and
//! tells what differs.

mod database;
mod directory;

use std::{ffi::OsString, fmt, io, os::unix::process::ExitStatusExt, process::Stdio, time::Duration};

use rustix::process::{Pid, Signal, test_kill_process_group};
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
    /// Links that lead out of the copies: what is done through them is done to what they lead to.
    pub outside: Vec<String>,
}

/// How a command ended: by itself, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ended {
    /// Its exit code.
    pub code: Option<i32>,
    /// The signal's number.
    pub signal: Option<i32>,
    /// Whether processes that it had started went on, and were killed.
    pub outlived: bool,
}

impl Ended {
    /// Whether it did its work.
    pub fn well(self) -> bool {
        self.code == Some(0)
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.code, self.signal) {
            (Some(code), _) => write!(f, "exit code {code}"),
            (None, Some(signal)) => write!(f, "ended by signal {signal}"),
            (None, None) => f.write_str("ended"),
        }?;
        if self.outlived { f.write_str(", and what it left running was killed") } else { Ok(()) }
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

/// Why nothing could be compared.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// There is no such command.
    #[error("the command {0} was not found")]
    NotFound(String),
    /// There is, and it cannot be started.
    #[error("the command {0} cannot be executed: {1}")]
    NotExecutable(String, io::Error),
    /// Anything else, in words.
    #[error("{0}")]
    Failed(String),
}

/// What a job leaves running may end by itself for so long.
const GRACE: Duration = Duration::from_secs(5);

/// How often it is looked whether it has.
const LOOK_EVERY: Duration = Duration::from_millis(20);

impl Job {
    /// Runs it alone. `onto` points a command at what it works on.
    ///
    /// # Cancel safety
    /// Dropped, it kills what it started.
    async fn once(&self, onto: impl Fn(&mut Command)) -> Result<Ended, Failure> {
        Ok(self.started("once", &onto)?.ended().await?)
    }

    /// Runs it twice at once.
    ///
    /// # Cancel safety
    /// As [`once`](Self::once).
    async fn twice(&self, onto: impl Fn(&mut Command)) -> Result<[Ended; 2], Failure> {
        let first = self.started("first", &onto)?;
        pause(self.apart).await;
        let second = self.started("second", &onto)?;
        let (first, second) = tokio::join!(first.ended(), second.ended());
        Ok([first?, second?])
    }

    fn started(&self, which: &str, onto: impl Fn(&mut Command)) -> Result<Running, Failure> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(Failure::Failed("there is no command".to_owned()));
        };
        let mut command = Command::new(program);
        // A group of its own, so that all of it can be ended. Whoever is in the background of a terminal must not read from it, and
        // stdout is for the answer.
        command.args(arguments).env("FENCEPOST_TWICE", which).process_group(0);
        command.stdin(Stdio::null()).stdout(io::stderr());
        onto(&mut command);
        let child = command.spawn().map_err(|error| {
            let program = program.display().to_string();
            match error.kind() {
                io::ErrorKind::NotFound => Failure::NotFound(program),
                _ => Failure::NotExecutable(program, error),
            }
        })?;
        Ok(Running { group: child.id(), child })
    }
}

/// A command that runs. Killed with all that is in its group when dropped before its end.
struct Running {
    child: Child,
    /// None once nothing of it runs any more: the number may be another's then.
    group: Option<u32>,
}

impl Running {
    /// Waits for its end, and for that of all that it started in its group: what still writes cannot be compared.
    async fn ended(mut self) -> io::Result<Ended> {
        let status = self.child.wait().await?;
        let by_itself = self.empty_within(GRACE).await;
        if !by_itself {
            // It may end just now.
            let _ = signal_group(self.group, Signal::KILL);
            self.empty_within(GRACE).await;
        }
        self.group = None;
        Ok(Ended { code: status.code(), signal: status.signal(), outlived: !by_itself })
    }

    async fn empty_within(&self, limit: Duration) -> bool {
        let Some(group) = self.group.and_then(|group| i32::try_from(group).ok()).and_then(Pid::from_raw) else {
            return true;
        };
        let begin = crate::agent::now();
        while test_kill_process_group(group).is_ok() {
            if u128::from(crate::agent::now() - begin) > limit.as_nanos() {
                return false;
            }
            pause(LOOK_EVERY).await;
        }
        true
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.group.is_some() {
            // Nothing of it may run any more.
            let _ = signal_group(self.group, Signal::KILL);
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::Failed(error.to_string())
    }
}

impl From<String> for Failure {
    fn from(said: String) -> Self {
        Failure::Failed(said)
    }
}

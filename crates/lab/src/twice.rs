//! Is the work really idempotent? Runs a command once on one copy of its data, and twice at once on another copy, and
//! tells what differs.

mod database;
mod directory;

use std::{
    ffi::OsString,
    io,
    process::{Child, Command, ExitStatus},
    thread,
    time::Duration,
};

pub use self::{database::in_databases, directory::in_directories};

/// What shall be run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// How long after the first one the second one starts.
    pub apart: Duration,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// How the one that ran alone ended.
    pub once: ExitStatus,
    /// How the two that ran at once ended.
    pub twice: [ExitStatus; 2],
    /// What differs after two at once from what one alone leaves: a path, or a table or sequence of a database.
    pub differences: Vec<(String, Difference)>,
}

/// How something differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    fn run(&self, onto: impl Fn(&mut Command, bool)) -> io::Result<(ExitStatus, [ExitStatus; 2])> {
        let once = self.started(&onto, "once")?.wait()?;
        let mut first = self.started(&onto, "first")?;
        thread::sleep(self.apart);
        // The first one must not be left running when the second cannot start.
        let second = self.started(&onto, "second").and_then(|mut second| second.wait());
        let first = first.wait()?;
        Ok((once, [first, second?]))
    }

    fn started(&self, onto: impl Fn(&mut Command, bool), which: &str) -> io::Result<Child> {
        let Some((program, arguments)) = self.command.split_first() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "there is no command"));
        };
        let mut command = Command::new(program);
        command.args(arguments).env("FENCEPOST_TWICE", which);
        onto(&mut command, which != "once");
        command.spawn()
    }
}

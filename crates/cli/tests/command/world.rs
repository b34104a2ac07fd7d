//! A store of its own for each test, and processes that are awaited instead of slept for.

use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    process::{Pid, PidfdFlags, Signal},
};
use serde_json::Value;
use tempfile::TempDir;

/// Far more than anything here takes; what takes longer hangs.
pub(crate) const LONG: Duration = Duration::from_secs(30);

pub(crate) struct World {
    pub(crate) directory: TempDir,
    pub(crate) store: String,
}

pub(crate) struct Finished {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that is running and talks.
pub(crate) struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl World {
    /// On a directory that no other test knows.
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("file:{}/locks", directory.path().display());
        Self { directory, store }
    }

    pub(crate) fn on(store: String) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), store }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        for variable in ["LOCK", "OWNER", "FENCE", "SLOTS", "TERM", "PRIORITY", "NAMESPACE"] {
            command.env_remove(format!("FENCEPOST_{variable}"));
        }
        command.env("FENCEPOST_STORE", &self.store).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to the end.
    pub(crate) fn finish(&self, arguments: &[&str]) -> Finished {
        finish(&mut self.command(arguments))
    }

    /// Starts, without waiting for anything.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        Running::of(&mut self.command(arguments))
    }

    /// `run NAME -- sh -c SCRIPT` with these flags.
    pub(crate) fn run(&self, flags: &[&str], name: &str, script: &str) -> Running {
        self.start(&[&["run"], flags, &[name, "--", "sh", "-c", script]].concat())
    }

    /// What `who --json` says.
    pub(crate) fn who(&self, name: &str) -> Value {
        let finished = self.finish(&["who", "--json", name]);
        assert_eq!(finished.code, 0, "{}", finished.stderr);
        serde_json::from_str(&finished.stdout).unwrap()
    }

    /// The code of a command that nobody reads from any more, once it has ended.
    pub(crate) fn without_a_reader(&self, arguments: &[&str]) -> Option<i32> {
        let mut command = self.command(arguments);
        let (reader, writer) = std::io::pipe().unwrap();
        let mut running = command.stdout(writer).spawn().unwrap();
        drop((reader, command)); // which has the pipe's other end as well
        within(LONG, move || running.wait().unwrap().code())
    }

    /// Until as many wait for the lock.
    pub(crate) fn await_waiters(&self, name: &str, count: usize) {
        eventually(|| self.who(name)["waiters"].as_array().unwrap().len() == count);
    }
}

impl Running {
    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { child, stdout }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    /// The next line it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The next line on stderr, and nothing after it.
    pub(crate) fn next_error(&mut self) -> String {
        let mut line = String::new();
        BufReader::new(self.child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        line
    }

    /// The next line, which is a pid.
    pub(crate) fn line_pid(&mut self) -> Pid {
        let line = self.line();
        Pid::from_raw(line.parse().unwrap_or_else(|_| panic!("not a pid: {line:?}"))).unwrap()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).unwrap();
    }

    /// The process between the command and what it runs.
    pub(crate) fn guardian(&self) -> Pid {
        let pid = self.child.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        Pid::from_raw(children.trim().parse().unwrap()).unwrap()
    }

    pub(crate) fn ended(self) -> Finished {
        let Running { mut child, mut stdout } = self;
        within(LONG, move || {
            let (mut out, mut err) = (String::new(), String::new());
            stdout.read_to_string(&mut out).unwrap();
            child.stderr.take().map(|mut stderr| stderr.read_to_string(&mut err));
            Finished { code: code(child.wait().unwrap()), stdout: out, stderr: err }
        })
    }
}

impl Finished {
    /// The last line on stderr, as JSON.
    pub(crate) fn ending(&self) -> Value {
        serde_json::from_str(self.stderr.lines().last().unwrap()).unwrap()
    }
}

pub(crate) fn finish(command: &mut Command) -> Finished {
    Running::of(command).ended()
}

/// The result of `work`, or a failure when it hangs.
pub(crate) fn within<T: Send + 'static>(span: Duration, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(span).expect("it hangs")
}

/// Asks until it is so.
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..LONG.as_millis() / 10 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("it never came to be");
}

/// Whether the process has ended, or does within `span`.
pub(crate) fn ends_within(pid: Pid, span: Duration) -> bool {
    match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => true,
        Err(error) => panic!("{error}"),
        Ok(process) => {
            let span = Timespec { tv_sec: span.as_secs() as _, tv_nsec: span.subsec_nanos().into() };
            rustix::event::poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&span)).unwrap() == 1
        }
    }
}

pub(crate) fn is_alive(pid: Pid) -> bool {
    !ends_within(pid, Duration::ZERO)
}

/// 128+n after signal n would hide a crash of the command itself, so that is minus n here.
fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| -status.signal().unwrap())
}

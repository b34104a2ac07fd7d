//! Running a test of this executable once more, in other surroundings than this process has.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Set in a process that was started from here: what the test shall do in it.
const TASK: &str = "FENCEPOST_TEST_TASK";
const DIRECTORY: &str = "FENCEPOST_TEST_DIRECTORY";

/// What this process was started for, and in which directory; `None` for the test as it was called.
pub(crate) fn task() -> Option<(String, PathBuf)> {
    Some((env::var(TASK).ok()?, env::var_os(DIRECTORY)?.into()))
}

/// Says why a test cannot be made here.
pub(crate) fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "{test}: does not apply: {reason}");
}

fn this_test(mut command: Command, test: &str, task: &str, directory: &Path) -> Command {
    command.args(["--exact", test, "--nocapture"]).env(TASK, task).env(DIRECTORY, directory);
    command
}

/// Runs `test` as the root of user and mount namespaces of its own, after `script`, in which `$1` is the directory.
/// Passes when it passes there.
pub(crate) fn in_namespaces(test: &str, task: &str, script: &str, directory: &Path) {
    let unshared = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", script, "sh"]);
        command
    };
    if !unshared("true").output().is_ok_and(|out| out.status.success()) {
        return skip(test, "no right to make a user namespace");
    }
    let mut command = unshared(&format!("{script}; shift; exec \"$@\""));
    command.arg(directory).arg(env::current_exe().unwrap());
    let run = this_test(command, test, task, directory).output().unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// A process that does a task of a test. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Doer {
    child: Child,
    _input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Doer {
    /// Starts it from `executable`, as the user `uid` where one is given.
    pub(crate) fn start(executable: &Path, uid: Option<u32>, test: &str, task: &str, directory: &Path) -> Self {
        let mut command = Command::new(executable);
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut command = this_test(command, test, task, directory);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, _input: input, output }
    }

    /// Waits until it says `word` on a line of its own.
    pub(crate) fn await_word(&mut self, word: &str) {
        let mut line = String::new();
        while line.trim() != word {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it ended without having said {word:?}");
        }
    }

    /// Kills it. One that has ended by itself before that has failed.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        let status = self.child.wait().unwrap();
        assert_eq!(status.signal(), Some(9), "{status}");
    }
}

impl Drop for Doer {
    fn drop(&mut self) {
        // One that has ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells the process that started this one.
pub(crate) fn say(word: &str) {
    // On lines of their own, whatever the harness has printed.
    let mut output = std::io::stdout().lock();
    writeln!(output, "\n{word}").unwrap();
}

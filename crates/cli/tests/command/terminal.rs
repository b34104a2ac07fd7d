//! On a terminal, which `script` of util-linux provides.

use std::{
    io::{Read, Write},
    process::{Child, Command, Stdio},
};

use crate::world::{LONG, World, within};

struct Typist {
    child: Child,
    seen: String,
}

impl Typist {
    /// An interactive shell on a terminal of its own.
    fn at(world: &World) -> Self {
        let mut command = Command::new("script");
        command.args(["-qec", "bash --norc --noprofile -i", "/dev/null"]);
        command.env("FENCEPOST_STORE", &world.store).env("PS1", "$ ").env("TERM", "dumb");
        command.env("FENCEPOST", env!("CARGO_BIN_EXE_fencepost"));
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("`script` of util-linux");
        Self { child, seen: String::new() }
    }

    fn types(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    /// Until the screen shows `text` after what was seen before.
    fn sees(&mut self, text: &str) {
        let mut stdout = self.child.stdout.take().unwrap();
        let (wanted, mut seen) = (text.to_owned(), std::mem::take(&mut self.seen));
        let (stdout, seen) = within(LONG, move || {
            let mut buffer = [0; 4096];
            while !seen.contains(&wanted) {
                let read = stdout.read(&mut buffer).unwrap();
                assert_ne!(read, 0, "the shell ended before {wanted:?}: {seen}");
                seen.push_str(&String::from_utf8_lossy(&buffer[..read]));
            }
            (stdout, seen)
        });
        self.child.stdout = Some(stdout);
        let end = seen.find(text).unwrap() + text.len();
        self.seen = seen[end..].to_owned();
    }
}

impl Drop for Typist {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Case 42: the terminal is the command's.
#[test]
fn case_42_keys_reach_the_command_and_the_shell_has_its_terminal_back() {
    let world = World::new();
    let mut typist = Typist::at(&world);
    typist.types("$FENCEPOST run a -- sh -c 'echo rea\"\"dy; read x; echo got $x'\n");
    typist.sees("ready");
    typist.types("hello\n");
    typist.sees("got hello");
    typist.types("$FENCEPOST run a -- sh -c 'echo rea\"\"dy; exec sleep 1000'\n");
    typist.sees("ready");
    typist.types("\x03");
    typist.types("echo code $?.\n");
    typist.sees("code 130.");
}

#[test]
fn the_stop_key_stops_the_job_and_fg_continues_it() {
    let world = World::new();
    let mut typist = Typist::at(&world);
    typist.types("$FENCEPOST run a -- sh -c 'echo rea\"\"dy; read x; echo got $x; exit 9'\n");
    typist.sees("ready");
    typist.types("\x1a");
    typist.sees("Stopped");
    typist.types("fg\n");
    typist.types("again\n");
    typist.sees("got again");
    typist.types("echo code $?.\n");
    typist.sees("code 9.");
}

#[test]
fn a_command_in_the_background_that_reads_is_stopped_and_fg_gives_it_the_terminal() {
    let world = World::new();
    let mut typist = Typist::at(&world);
    typist.types("set -b; $FENCEPOST run a -- sh -c 'read x; echo got $x; exit 9' &\n");
    typist.sees("Stopped");
    typist.types("fg\n");
    typist.types("late\n");
    typist.sees("got late");
}

/// A shell goes on with its script unless the line that Ctrl-C ended died of it.
#[test]
fn the_interrupt_key_ends_the_script_that_the_job_is_a_line_of() {
    let world = World::new();
    let script = world.directory.path().join("script");
    let lines = "$FENCEPOST run a -- sh -c 'echo ready; exec sleep 1000'\necho went on\n";
    std::fs::write(&script, lines).unwrap();
    let mut typist = Typist::at(&world);
    typist.types(&format!("bash {}\n", script.display()));
    typist.sees("ready");
    typist.types("\x03");
    typist.types("echo code $?.\n");
    typist.sees("code 130.");
    // While it still waits, the same.
    let mut holder = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    typist.types(&format!("bash {}\n", script.display()));
    world.await_waiters("a", 1);
    typist.types("\x03");
    typist.types("echo code $?.\n");
    typist.sees("code 130.");
    world.await_waiters("a", 0);
    holder.signal(rustix::process::Signal::TERM);
    holder.ended();
}

use std::{
    io::Write,
    process::{Command, Stdio},
};

use crate::world::{Running, World, finish};

#[test]
fn the_command_learns_its_lock_owner_and_fence() {
    let world = World::new();
    let script = "echo $FENCEPOST_LOCK; echo $FENCEPOST_OWNER; echo $FENCEPOST_FENCE";
    let finished = world.run(&["--json"], "orders/1001", script).ended();
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!(lines[0], "orders/1001");
    assert!(lines[1].len() == 40 && lines[1].bytes().all(|b| b.is_ascii_hexdigit()), "{}", lines[1]);
    assert_eq!(lines[2], finished.ending()["fence"].to_string());
    // Whoever knows the owner value can release the lock: it shows only where it was asked for.
    assert!(!finished.stderr.contains(lines[1]));
}

/// A nested call that looks elsewhere finds every lock free. So it looks where the lock is held, whether that was said by
/// the variable, on the command line, or not at all.
#[test]
fn a_fencepost_inside_the_command_uses_the_same_store_and_namespace() {
    let (world, elsewhere) = (World::new(), World::new());
    let nested = format!("{0} check a; echo $?; {0} run --wait 0s a -- true; echo $?", env!("CARGO_BIN_EXE_fencepost"));
    let ways: [&[&str]; 3] = [&[], &["--store", &elsewhere.store], &["--namespace", "other"]];
    for way in ways {
        let finished = world.run(way, "a", &nested).ended();
        assert_eq!(finished.stdout, "0\n75\n", "{way:?}: {}", finished.stderr);
    }
    let mut command = world.command(&["run", "a", "--", "sh", "-c", &nested]);
    command.env_remove("FENCEPOST_STORE").env("XDG_STATE_HOME", elsewhere.directory.path());
    assert_eq!(finish(&mut command).stdout, "0\n75\n");
}

/// O4: not re-entrant. It would hang without a word.
#[test]
fn o4_who_asks_for_the_lock_that_its_command_runs_under_is_told_that_it_waits_for_itself() {
    let world = World::new();
    let program = env!("CARGO_BIN_EXE_fencepost");
    for verb in ["run --wait 100ms a -- true", "acquire --wait 100ms a"] {
        let finished = world.run(&[], "a", &format!("{program} {verb}; exit $?")).ended();
        assert_eq!(finished.code, 75, "{}", finished.stderr);
        assert!(finished.stderr.contains("waits for itself"), "{verb}: {}", finished.stderr);
        // The same name is another lock in another namespace.
        let elsewhere = world.run(&[], "a", &format!("{program} --namespace other {verb}")).ended();
        assert_eq!((elsewhere.code, elsewhere.stderr.as_str()), (0, ""), "{verb}");
    }
}

/// Case 42 (consul's -pass-stdin): a pipe stays a pipe.
#[test]
fn case_42_stdin_and_stdout_are_the_commands_own() {
    let world = World::new();
    let mut command = world.command(&["run", "a", "--", "cat"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let text = "line\n".repeat(100_000);
    let mut stdin = child.stdin.take().unwrap();
    let sent = text.clone();
    let writer = std::thread::spawn(move || stdin.write_all(sent.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.stdout == text.as_bytes() && output.stderr.is_empty());
}

#[test]
fn the_command_inherits_no_descriptor_and_no_held_back_signal() {
    let world = World::new();
    for look in [&["ls", "/proc/self/fd"][..], &["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]] {
        let mut bare = Command::new(look[0]);
        bare.args(&look[1..]).stdin(Stdio::null()).stdout(Stdio::piped());
        let ours = world.finish(&[&["run", "a", "--"], look].concat());
        assert_eq!(ours.stdout, finish(&mut bare).stdout, "{look:?}");
    }
    let finished = world.run(&[], "a", "ps -o pgid= -p $$; echo $$").ended();
    let lines: Vec<_> = finished.stdout.split_ascii_whitespace().collect();
    assert_eq!(lines[0], lines[1], "it leads a process group of its own");
}

#[test]
fn the_store_is_a_directory_in_the_users_state_directory_unless_said_otherwise() {
    let world = World::new();
    let state = world.directory.path().join("odd %41 name");
    let mut command: Command = world.command(&["run", "a", "--", "true"]);
    command.env_remove("FENCEPOST_STORE").env("XDG_STATE_HOME", &state);
    let finished = Running::of(&mut command).ended();
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    assert!(state.join("fencepost").is_dir());
}

#[test]
fn one_applications_locks_are_not_anothers() {
    let world = World::new();
    let mut holder = world.run(&["--namespace", "one"], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    assert_eq!(world.run(&["--namespace", "two", "--wait", "0s"], "a", "true").ended().code, 0);
    assert_eq!(world.run(&["--namespace", "one", "--wait", "0s"], "a", "true").ended().code, 75);
    holder.signal(rustix::process::Signal::KILL);
    holder.ended();
}

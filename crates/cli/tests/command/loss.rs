use std::{
    fs::Permissions,
    os::unix::fs::PermissionsExt,
    process::Stdio,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal};

use crate::world::{LONG, Running, World, ends_within, is_alive, within};

/// A command with a grandchild in a session of its own that ignores TERM. Both print their pids.
const STUBBORN: &str =
    "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1000; done' & sleep 0.1; echo $$; wait; sleep 1000";

/// Case 39 (flock and etcdctl leave orphans): never a command without a lock.
#[test]
fn case_39_kill_9_ends_the_command_before_the_next_one_gets_the_lock() {
    let world = World::new();
    let mut first = world.run(&["--grace", "300ms"], "a", STUBBORN);
    let (grandchild, child) = (first.line_pid(), first.line_pid());
    let check = format!(
        "for pid in {} {}; do kill -0 $pid 2>/dev/null && echo $pid lives; done; echo checked",
        grandchild.as_raw_pid(),
        child.as_raw_pid()
    );
    let second = world.run(&[], "a", &check);
    world.await_waiters("a", 1);
    first.signal(Signal::KILL);
    let finished = second.ended();
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "checked\n"), "{}", finished.stderr);
    assert!(!is_alive(child) && !is_alive(grandchild));
    first.ended();
}

#[test]
fn case_39_kill_9_while_waiting_leaves_nobody_in_the_queue() {
    let world = World::new();
    let mut holder = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    let waiter = world.run(&[], "a", "echo ran");
    world.await_waiters("a", 1);
    let guardian = waiter.guardian();
    waiter.signal(Signal::KILL);
    assert_eq!(waiter.ended().stdout, "");
    assert!(ends_within(guardian, LONG));
    holder.signal(Signal::TERM);
    holder.ended();
    assert_eq!(world.run(&["--wait", "5s"], "a", "true").ended().code, 0);
}

/// Case 40 (consul 9788: 90 s of overlap): the holder whose lock was broken is stopped with all it started.
#[test]
fn case_40_a_broken_lock_ends_the_whole_tree_and_the_code_says_lost() {
    let world = World::new();
    let mut running = world.run(&["--json", "--grace", "300ms"], "a", STUBBORN);
    let (grandchild, child) = (running.line_pid(), running.line_pid());
    assert_eq!(world.finish(&["break", "a"]).code, 0);
    assert!(ends_within(child, LONG) && ends_within(grandchild, LONG));
    let finished = running.ended();
    assert_eq!(finished.code, 76, "{}", finished.stderr);
    assert_eq!(finished.ending()["outcome"], "lost");
    assert!(finished.stderr.contains("its record was deleted"), "{}", finished.stderr);
}

#[test]
fn on_lost_kill_gives_no_warning_and_term_does() {
    let world = World::new();
    for (what, told) in [("kill", ""), ("term", "told\n")] {
        let script = "trap 'echo told; exit 0' TERM; echo ready; sleep 1000 & wait";
        let mut running = world.run(&["--on-lost", what, "--grace", "5s"], "a", script);
        assert_eq!(running.line(), "ready");
        assert_eq!(world.finish(&["break", "a"]).code, 0);
        let finished = running.ended();
        assert_eq!((finished.code, finished.stdout.as_str()), (76, told), "{}", finished.stderr);
    }
}

#[test]
fn on_lost_ignore_is_warned_about_and_lets_the_command_finish() {
    let world = World::new();
    let script =
        format!("echo ready; until [ -e {}/go ]; do sleep 0.02; done; exit 5", world.directory.path().display());
    let mut running = world.run(&["--on-lost", "ignore", "--grace", "200ms"], "a", &script);
    assert_eq!(running.line(), "ready");
    assert_eq!(world.finish(&["break", "a"]).code, 0);
    assert_eq!(world.run(&["--wait", "5s"], "a", "true").ended().code, 0, "another can have it");
    std::fs::write(world.directory.path().join("go"), "").unwrap();
    let finished = running.ended();
    assert_eq!(finished.code, 5);
    assert!(finished.stderr.contains("warning: with --on-lost ignore"), "{}", finished.stderr);
}

/// The guardian is a process like any other. Without it the command must not outlive the lock either.
#[test]
fn a_killed_guardian_takes_the_command_with_it_before_the_lock_is_free() {
    let world = World::new();
    let mut running = world.run(&[], "a", STUBBORN);
    let (grandchild, child) = (running.line_pid(), running.line_pid());
    rustix::process::kill_process(running.guardian(), Signal::KILL).unwrap();
    let finished = running.ended();
    assert_eq!(finished.code, 70, "{}", finished.stderr);
    assert!(!is_alive(child) && !is_alive(grandchild));
    assert_eq!(world.run(&["--wait", "0s"], "a", "true").ended().code, 0);
}

/// Issue 2: `fencepost` is stopped first, so that it cannot do what is the kernel's part here.
#[test]
fn kill_9_of_the_guardian_and_of_fencepost_at_once_ends_the_command() {
    let world = World::new();
    let mut running = world.run(&[], "a", "echo $$; exec sleep 1000");
    let child = running.line_pid();
    let guardian = running.guardian();
    running.signal(Signal::STOP);
    rustix::process::kill_process(guardian, Signal::KILL).unwrap();
    running.signal(Signal::KILL);
    let ended = ends_within(child, LONG);
    if !ended {
        rustix::process::kill_process(child, Signal::KILL).unwrap();
    }
    assert!(ended, "the command runs on without the lock");
    running.ended();
}

#[test]
fn who_kills_all_that_are_called_fencepost_misses_the_guardian() {
    let world = World::new();
    let mut running = world.run(&[], "a", "echo $$; exec sleep 1000");
    let child = running.line_pid();
    let name = |pid: Pid| std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_pid())).unwrap();
    assert_eq!((name(running.pid()).as_str(), name(running.guardian()).as_str()), ("fencepost\n", "guardian\n"));
    running.signal(Signal::TERM);
    assert!(ends_within(child, LONG));
    running.ended();
}

/// A process of another user, which only root can make: a copy of `setpriv` that becomes root by its set-user-id bit.
#[test]
fn what_the_system_protects_from_the_guardian_is_reported_by_number() {
    if !rustix::process::getuid().is_root() {
        eprintln!("passed over: only root can make a process that another user cannot kill");
        return;
    }
    let world = World::new();
    let (shared, setpriv) = (world.directory.path(), world.directory.path().join("setpriv"));
    std::fs::copy("/usr/bin/setpriv", &setpriv).unwrap();
    std::fs::set_permissions(&setpriv, Permissions::from_mode(0o4755)).unwrap();
    std::fs::copy(env!("CARGO_BIN_EXE_fencepost"), shared.join("fencepost")).unwrap();
    std::fs::set_permissions(shared, Permissions::from_mode(0o777)).unwrap();
    let protected = "./setpriv --reuid 0 --regid 0 --clear-groups sh -c 'echo $$; exec sleep 1000'; wait";
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "./fencepost", "run", "--grace", "100ms"]);
    command.args(["--max-hold", "1s", "a", "--", "sh", "-c", protected]).env("FENCEPOST_STORE", &world.store);
    command.current_dir(shared).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::of(&mut command);
    let pid = running.line_pid();
    // It keeps the pipes open, which only its end closes.
    let told = within(LONG, move || running.next_error());
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    assert!(
        told.contains(&format!("could not be ended and run on without the lock: [{}]", pid.as_raw_pid())),
        "{told}"
    );
}

/// A lock is not given back while anything of the job runs.
#[test]
fn what_a_command_leaves_behind_may_finish_and_is_then_ended() {
    let world = World::new();
    let quick = world.run(&["--grace", "10s"], "a", "(sleep 0.3; echo late) & exit 3").ended();
    assert_eq!((quick.code, quick.stdout.as_str(), quick.stderr.as_str()), (3, "late\n", ""));
    let mut endless = world.run(&["--grace", "200ms"], "a", "setsid sh -c 'echo $$; exec sleep 1000' & exit 3");
    let left = endless.line_pid();
    let next = world.run(&[], "a", &format!("kill -0 {} 2>/dev/null && echo lives; true", left.as_raw_pid())).ended();
    assert_eq!((next.code, next.stdout.as_str()), (0, ""));
    let finished = endless.ended();
    assert_eq!(finished.code, 3);
    assert!(finished.stderr.contains("1 process that the command left behind was ended"), "{}", finished.stderr);
}

#[test]
fn max_hold_ends_a_command_that_takes_too_long() {
    let world = World::new();
    let began = Instant::now();
    let mut running = world.run(&["--max-hold", "1s", "--grace", "200ms"], "a", "echo $$; exec sleep 1000");
    let child = running.line_pid();
    let finished = running.ended();
    assert_eq!(finished.code, 76, "{}", finished.stderr);
    assert!(began.elapsed() >= Duration::from_millis(700) && began.elapsed() < Duration::from_secs(10));
    assert!(!is_alive(child));
}

#[test]
fn min_hold_keeps_the_next_one_waiting_and_a_signal_ends_it() {
    let world = World::new();
    let began = Instant::now();
    assert_eq!(world.run(&["--min-hold", "600ms"], "a", "true").ended().code, 0);
    assert!(began.elapsed() >= Duration::from_millis(600));
    let mut long = world.run(&["--min-hold", "1h"], "a", "echo $$");
    let child = long.line_pid();
    assert!(ends_within(child, LONG));
    assert_eq!(world.run(&["--wait", "0s"], "a", "true").ended().code, 75);
    long.signal(Signal::TERM);
    assert_eq!(long.ended().code, 0, "the command had ended well");
}

//! `once`: a command is run once for its key, and who asks again gets what it said.

use rustix::process::Signal;

use crate::world::{Running, World, eventually, finish};

fn once(world: &World, flags: &[&str], key: &str, script: &str) -> Running {
    world.start(&[&["once"], flags, &[key, "--", "sh", "-c", script]].concat())
}

/// Appends to a file, so that each run shows.
fn noting(world: &World, script: &str) -> String {
    format!("echo ran >>{}/runs; {script}", world.directory.path().display())
}

fn runs(world: &World) -> usize {
    std::fs::read_to_string(world.directory.path().join("runs")).unwrap_or_default().lines().count()
}

#[test]
fn of_many_that_ask_at_once_one_runs_and_all_say_the_same() {
    let world = World::new();
    let script = noting(&world, "echo one; echo not kept >&2; printf two; exit 7");
    let all: Vec<_> = (0..8).map(|_| once(&world, &["--json"], "a", &script)).collect();
    let all: Vec<_> = all.into_iter().map(Running::ended).collect();
    for one in &all {
        assert_eq!((one.code, one.stdout.as_str()), (7, "one\ntwo"), "{}", one.stderr);
    }
    assert_eq!(runs(&world), 1);
    assert_eq!(all.iter().filter(|one| one.stderr.contains("not kept\n")).count(), 1);
    assert_eq!(all.iter().filter(|one| one.ending()["outcome"] == "repeated").count(), 7);
}

#[test]
fn another_command_or_payload_under_the_same_key_is_refused() {
    let world = World::new();
    assert_eq!(once(&world, &[], "a", "echo one").ended().code, 0);
    let other = once(&world, &["--json"], "a", "echo two").ended();
    assert_eq!((other.code, other.stdout.as_str()), (65, ""));
    assert_eq!(other.ending()["outcome"], "other_payload");
    let named = ["--fingerprint", "invoice 7"];
    assert_eq!(once(&world, &named, "b", "echo one").ended().stdout, "one\n");
    assert_eq!(once(&world, &named, "b", "echo two").ended().stdout, "one\n");
    // Also while it runs, and without a wait.
    let go = world.directory.path().join("go");
    let waiting = format!("echo ready; until [ -e {} ]; do sleep 0.01; done", go.display());
    let mut running = once(&world, &[], "c", &waiting);
    assert_eq!(running.line(), "ready");
    assert_eq!(once(&world, &["--wait", "0s"], "c", "echo two").ended().code, 65);
    let busy = once(&world, &["--wait", "0s"], "c", &waiting).ended();
    assert_eq!(busy.code, 75);
    assert!(busy.stderr.contains("busy: c: it is being done by "), "{}", busy.stderr);
    std::fs::write(go, "").unwrap();
    assert_eq!(running.ended().code, 0);
}

#[test]
fn a_failure_is_kept_unless_it_is_to_be_tried_again_and_a_start_that_failed_never() {
    let world = World::new();
    let failing = noting(&world, "exit 3");
    assert_eq!(once(&world, &[], "a", &failing).ended().code, 3);
    assert_eq!(once(&world, &[], "a", &failing).ended().code, 3);
    assert_eq!(runs(&world), 1);
    for _ in 0..2 {
        assert_eq!(once(&world, &["--retry-failed"], "b", &failing).ended().code, 3);
    }
    assert_eq!(runs(&world), 3);
    for _ in 0..2 {
        assert_eq!(world.finish(&["once", "c", "--", "/no/such/program"]).code, 127);
    }
}

#[test]
fn a_run_that_was_killed_or_interrupted_is_done_again() {
    let world = World::new();
    for signal in [Signal::KILL, Signal::TERM] {
        let key = format!("{signal:?}");
        let script = noting(&world, "echo ready; [ -e go ] || exec sleep 1000");
        let mut running = once(&world, &["--grace", "100ms"], &key, &script);
        assert_eq!(running.line(), "ready");
        running.signal(signal);
        running.ended();
        let directory = world.directory.path();
        std::fs::write(directory.join("go"), "").unwrap();
        let mut again = world.command(&["once", &key, "--", "sh", "-c", &script]);
        assert_eq!(finish(again.current_dir(directory)).stdout, "ready\n");
        std::fs::remove_file(directory.join("go")).unwrap();
        assert_eq!(once(&world, &[], &key, &script).ended().stdout, "ready\n");
    }
    assert_eq!(runs(&world), 4);
}

#[test]
fn any_bytes_come_back_and_too_many_are_noted() {
    let world = World::new();
    for _ in 0..2 {
        let printed = world.command(&["once", "bytes", "--", "printf", r"\377\000\001x"]).output().unwrap();
        assert_eq!(printed.stdout, b"\xff\0\x01x");
    }

    let script = noting(&world, "head -c 400000 /dev/zero | tr '\\0' x");
    let first = once(&world, &[], "much", &script).ended();
    assert_eq!((first.code, first.stdout.len()), (0, 400_000));
    assert!(first.stderr.contains("a repetition is told that it was done and gets no result"), "{}", first.stderr);
    let second = once(&world, &[], "much", &script).ended();
    assert_eq!((second.code, second.stdout.len(), runs(&world)), (65, 0, 1));
    assert!(second.stderr.contains("printed too much to keep"), "{}", second.stderr);
}

/// The lease is renewed and the work goes on, whoever reads.
#[test]
fn a_reader_that_is_slow_or_gone_neither_loses_the_lease_nor_the_result() {
    let world = World::new();
    let script = noting(&world, "head -c 200000 /dev/zero | tr '\\0' x; echo end");
    let mut slow = world.command(&["once", "--ttl", "1s", "slow", "--", "sh", "-c", &script]).spawn().unwrap();
    let reader = slow.stdout.take().unwrap();
    eventually(|| runs(&world) == 1);
    std::thread::sleep(std::time::Duration::from_millis(2500)); // more than two TTLs without a byte read
    let mut text = String::new();
    std::io::Read::read_to_string(&mut { reader }, &mut text).unwrap();
    assert_eq!((slow.wait().unwrap().code(), text.len()), (Some(0), 200_004));

    let gone = ["once", "gone", "--", "sh", "-c", &script];
    assert_eq!(world.without_a_reader(&gone), Some(0));
    assert_eq!(world.finish(&gone).stdout.len(), 200_004);
    assert_eq!(runs(&world), 2);
}

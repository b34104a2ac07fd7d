//! Several locks at once, readers, and permits.

use fencepost::capabilities::Capabilities;
use rustix::process::Signal;

use crate::world::{LONG, World, ends_within};

/// One line for each lock, in the same order in each variable.
#[test]
fn several_locks_are_told_line_by_line_in_the_order_of_their_names() {
    let world = World::new();
    let script = r#"echo "$FENCEPOST_LOCK"; echo "$FENCEPOST_FENCE"; echo "$FENCEPOST_OWNER""#;
    let flags = ["--json", "run", "orders/2", "orders/1", "--", "sh", "-c", script];
    let finished = world.finish(&flags);
    let lines: Vec<_> = finished.stdout.lines().collect();
    assert_eq!((lines.len(), lines[0], lines[1]), (6, "orders/1", "orders/2"), "{}", finished.stderr);
    let fences = &finished.ending()["fences"];
    assert_eq!((fences["orders/1"].to_string(), fences["orders/2"].to_string()), (lines[2].into(), lines[3].into()));
    assert!(lines[4..].iter().all(|owner| owner.len() == 40), "{lines:?}");
}

#[test]
fn several_locks_are_all_held_or_none() {
    let world = World::new();
    let mut holder = world.run(&[], "b", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    let refused = world.finish(&["run", "--wait", "100ms", "a", "b", "c", "--", "echo", "ran"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (75, ""), "{}", refused.stderr);
    assert!(refused.stderr.contains("busy: b, one of a, b, c, is held by"), "{}", refused.stderr);
    for free in ["a", "c"] {
        assert!(world.who(free)["holders"].as_array().unwrap().is_empty());
        assert_eq!(world.run(&["--wait", "0s"], free, "true").ended().code, 0);
    }
    holder.signal(Signal::TERM);
    holder.ended();
    let nested =
        format!("for lock in a b c; do {} run --wait 0s $lock -- true; echo $?; done", env!("CARGO_BIN_EXE_fencepost"));
    let finished = world.finish(&["run", "a", "b", "c", "--", "sh", "-c", &nested]);
    assert_eq!(finished.stdout, "75\n75\n75\n", "{}", finished.stderr);
}

/// The first loss is the loss of all, and it is told which.
#[test]
fn one_broken_lock_of_several_ends_the_command_and_is_named() {
    let world = World::new();
    let flags = ["--json", "run", "--grace", "300ms", "a", "b", "--", "sh", "-c", "echo $$; exec sleep 1000"];
    let mut running = world.start(&flags);
    let command = running.line_pid();
    assert_eq!(world.finish(&["break", "b"]).code, 0);
    assert!(ends_within(command, LONG));
    let finished = running.ended();
    assert_eq!(finished.code, 76, "{}", finished.stderr);
    assert!(finished.stderr.contains(r#"lock "b": the lease is lost"#), "{}", finished.stderr);
    assert_eq!(world.run(&["--wait", "20s"], "a", "true").ended().code, 0, "the other one was given back");
}

/// Each kernel lock's descriptor is with the guardian, so that killing the process which took them frees none of them.
#[test]
fn case_39_kill_9_lets_none_of_several_locks_go_while_the_command_runs() {
    let world = World::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 1000; done";
    let mut first = world.start(&["run", "--grace", "500ms", "a", "b", "c", "--", "sh", "-c", script]);
    let command = first.line_pid();
    let check = format!("kill -0 {} 2>/dev/null && echo overlap; echo checked", command.as_raw_pid());
    let others: Vec<_> = ["a", "b", "c"].map(|name| (name, world.run(&[], name, &check))).into();
    others.iter().for_each(|(name, _)| world.await_waiters(name, 1));
    first.signal(Signal::KILL);
    for (name, other) in others {
        let finished = other.ended();
        assert_eq!((finished.code, finished.stdout.as_str()), (0, "checked\n"), "{name}: {}", finished.stderr);
    }
    first.ended();
}

#[test]
fn as_many_locks_as_one_message_takes_are_held_at_once() {
    let world = World::new();
    let names: Vec<_> = (0..250).map(|n| format!("{n:0>500}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let script =
        r#"echo "$FENCEPOST_LOCK" | wc -l; echo "$FENCEPOST_FENCE" | wc -l; ls -l /proc/$PPID/fd | grep -c locks"#;
    let finished = world.finish(&[&["run"], &names[..], &["--", "sh", "-c", script]].concat());
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "250\n250\n250\n"), "{}", finished.stderr);
    let one_more = world.finish(&[&["run", "more"], &names[..], &["--", "true"]].concat());
    assert_eq!(one_more.code, 64, "{}", one_more.stderr);
}

/// On the memory store, which every build has and which gives all of it.
#[test]
fn the_command_learns_its_slots_and_a_reader_has_no_fence_before_anybody_wrote() {
    let world = World::on("memory:x".into());
    let script = "echo $FENCEPOST_SLOTS $FENCEPOST_FENCE ${FENCEPOST_TERM-none}";
    assert_eq!(world.run(&["--permits", "2", "--of", "5"], "a", script).ended().stdout, "0,1 1 none\n");
    let mut command = world.command(&["run", "--shared", "a", "--", "sh", "-c", "echo ${FENCEPOST_FENCE-none}"]);
    // An outer `fencepost` may have set it for another lock.
    command.env("FENCEPOST_FENCE", "7");
    assert_eq!(crate::world::finish(&mut command).stdout, "none\n");
}

#[test]
fn what_cannot_be_meant_is_refused_before_anything_is_taken() {
    let world = World::new();
    let refused: [&[&str]; 12] = [
        &["--permits", "0", "--of", "3", "a"],
        &["--permits", "4", "--of", "3", "a"],
        &["--permits", "1", "a"],
        &["--of", "3", "a"],
        &["--shared", "--permits", "1", "--of", "3", "a"],
        &["--shared", "a", "b"],
        &["--permits", "1", "--of", "3", "a", "b"],
        &["--once-per", "1m", "a", "b"],
        &["--once-per", "0s", "a"],
        &["--retry-failed", "a"],
        &["a", "b", "a"],
        &["a", ""],
    ];
    for flags in refused {
        let finished = world.finish(&[&["run"], flags, &["--", "echo", "ran"]].concat());
        assert_eq!((finished.code, finished.stdout.as_str()), (64, ""), "{flags:?}: {}", finished.stderr);
        assert_eq!(finished.stderr.lines().count(), 1, "{flags:?}: {}", finished.stderr);
    }
    assert_eq!(world.finish(&["ls", "--json"]).stdout, "[]\n");
}

/// Whether the directory store can do it, with a word where not.
fn on_a_directory(what: &str, can: impl Fn(&Capabilities) -> bool) -> bool {
    let scheme = fencepost::registry::SCHEMES.iter().find(|scheme| scheme.names.contains(&"file")).unwrap();
    let can = can(&(scheme.capabilities)());
    if !can {
        eprintln!("does not apply: the directory store has no {what} yet");
    }
    can
}

#[test]
fn readers_run_beside_each_other_and_never_beside_a_writer() {
    let world = World::new();
    if !on_a_directory("shared locks", |store| store.shared) {
        assert_eq!(world.run(&["--shared"], "a", "echo ran").ended().code, 78);
        return;
    }
    let mut reader = world.run(&["--shared"], "a", "echo reads; exec sleep 1000");
    assert_eq!(reader.line(), "reads");
    assert_eq!(world.run(&["--shared", "--wait", "20s"], "a", "true").ended().code, 0);
    assert_eq!(world.run(&["--wait", "0s"], "a", "true").ended().code, 75);
    assert_eq!(world.who("a")["holders"][0]["mode"], "shared");
    reader.signal(Signal::KILL);
    assert_eq!(world.run(&["--wait", "20s"], "a", "true").ended().code, 0);
    reader.ended();
}

#[test]
fn permits_are_slots_that_nobody_else_has_and_the_limit_is_one_for_all() {
    let world = World::new();
    if !on_a_directory("permits", |store| store.permits) {
        assert_eq!(world.run(&["--permits", "1", "--of", "2"], "a", "echo ran").ended().code, 78);
        return;
    }
    let mut two = world.run(&["--permits", "2", "--of", "3"], "a", "echo $FENCEPOST_SLOTS; exec sleep 1000");
    assert_eq!(two.line(), "0,1");
    let one = world.run(&["--permits", "1", "--of", "3"], "a", "echo $FENCEPOST_SLOTS").ended();
    assert_eq!(one.stdout, "2\n", "{}", one.stderr);
    assert_eq!(world.run(&["--permits", "2", "--of", "3", "--wait", "0s"], "a", "true").ended().code, 75);
    assert_eq!(world.run(&["--permits", "1", "--of", "4", "--wait", "0s"], "a", "true").ended().code, 78);
    let holder = &world.who("a")["holders"][0];
    assert_eq!((&holder["mode"], &holder["of"], &holder["slots"]), (&"permits".into(), &3.into(), &vec![0, 1].into()));
    two.signal(Signal::KILL);
    two.ended();
}

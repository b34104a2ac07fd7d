//! Several locks at once, readers, and permits.

use rustix::process::Signal;

use crate::{
    redis::Server,
    world::{LONG, World, ends_within},
};

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

/// On a directory and on Redis alike.
fn on_each_store(test: impl Fn(&World)) {
    test(&World::new());
    let server = Server::start(&[]);
    test(&server.world());
}

#[test]
fn readers_run_beside_each_other_and_never_beside_a_writer() {
    on_each_store(|world| {
        let mut reader = world.run(&["--shared"], "a", "echo reads; exec sleep 1000");
        assert_eq!(reader.line(), "reads");
        assert_eq!(world.run(&["--shared", "--wait", "20s"], "a", "true").ended().code, 0);
        let writer = world.run(&["--wait", "0s"], "a", "true").ended();
        assert!(writer.code == 75 && writer.stderr.contains("busy: a is held by"), "{}", writer.stderr);
        let holder = &world.who("a")["holders"][0];
        assert_eq!(holder["mode"], "shared");
        assert!(world.finish(&["ls"]).stdout.contains("shared"), "the table says how it is held");
        reader.signal(Signal::TERM);
        reader.ended();
        assert_eq!(world.run(&["--wait", "20s"], "a", "true").ended().code, 0);
    });
}

/// The guardian has the seat: a reader whose `fencepost` was killed still reads until its command has ended.
#[test]
fn kill_9_lets_no_writer_in_while_the_readers_command_runs() {
    let world = World::new();
    let script = "trap '' TERM; echo $$; while :; do sleep 1000; done";
    let mut reader = world.run(&["--shared", "--grace", "500ms"], "a", script);
    let command = reader.line_pid();
    let check = format!("kill -0 {} 2>/dev/null && echo overlap; echo checked", command.as_raw_pid());
    let writer = world.run(&[], "a", &check);
    world.await_waiters("a", 1);
    reader.signal(Signal::KILL);
    let finished = writer.ended();
    assert_eq!((finished.code, finished.stdout.as_str()), (0, "checked\n"), "{}", finished.stderr);
    reader.ended();
}

#[test]
fn permits_are_slots_that_nobody_else_has_and_the_limit_is_one_for_all() {
    on_each_store(|world| {
        let mut two = world.run(&["--permits", "2", "--of", "3"], "a", "echo $FENCEPOST_SLOTS; exec sleep 1000");
        assert_eq!(two.line(), "0,1");
        let one = world.run(&["--permits", "1", "--of", "3"], "a", "echo $FENCEPOST_SLOTS").ended();
        assert_eq!(one.stdout, "2\n", "{}", one.stderr);
        let busy = world.run(&["--permits", "2", "--of", "3", "--wait", "0s"], "a", "true").ended();
        assert!(busy.code == 75 && busy.stderr.contains("too few of the 3 permits of a are free"), "{}", busy.stderr);
        let refused = [&["--permits", "1", "--of", "4", "--wait", "0s"][..], &["--wait", "0s"]];
        for flags in refused {
            let refused = world.run(flags, "a", "true").ended();
            let said = "in use as a semaphore of 3 permits";
            assert!(refused.code == 78 && refused.stderr.contains(said), "{}", refused.stderr);
        }
        let holder = &world.who("a")["holders"][0];
        let seen = (&holder["mode"], &holder["of"], &holder["slots"]);
        assert_eq!(seen, (&"permits".into(), &3.into(), &vec![0, 1].into()));
        assert!(world.finish(&["ls"]).stdout.contains("2 of 3: 0,1"));
        two.signal(Signal::TERM);
        two.ended();
        assert_eq!(world.run(&["--wait", "20s"], "a", "true").ended().code, 0, "a lock again, once nobody uses it");
    });
}

#[test]
fn several_that_are_busy_say_which_on_a_store_that_takes_them_in_one_step() {
    let server = Server::start(&[]);
    let world = server.world();
    let mut holder = world.run(&[], "b", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    for wait in ["0s", "300ms"] {
        let refused = world.finish(&["run", "--wait", wait, "c", "b", "a", "--", "true"]);
        assert_eq!(refused.code, 75, "{}", refused.stderr);
        assert!(refused.stderr.contains("busy: b, one of a, b, c, is held by"), "{}", refused.stderr);
    }
    holder.signal(Signal::TERM);
    holder.ended();
    let script = r#"echo "$FENCEPOST_OWNER" | sort -u | wc -l"#;
    let finished = world.finish(&["run", "--wait", "20s", "a", "b", "c", "--", "sh", "-c", script]);
    assert_eq!((finished.code, finished.stdout.trim()), (0, "1"), "one grant for all: {}", finished.stderr);
}

/// Taken by one line of a script, given back by another.
#[test]
fn acquire_takes_readers_permits_and_several() {
    on_each_store(|world| {
        let lines = |flags: &[&str]| {
            let finished = world.finish(&[&["acquire"], flags].concat());
            assert_eq!(finished.code, 0, "{flags:?}: {}", finished.stderr);
            let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
            finished.stdout.lines().map(words).collect::<Vec<_>>()
        };
        let release = |name: &str, owner: &str| world.finish(&["release", name, "--owner", owner]).code;

        let (one, two) = (lines(&["--shared", "r"]), lines(&["--shared", "--wait", "5s", "r"]));
        assert_eq!(world.who("r")["holders"].as_array().map(Vec::len), Some(2));
        assert_eq!(world.finish(&["acquire", "--wait", "0s", "r"]).code, 75);
        for reader in [one, two] {
            assert_eq!(world.finish(&["check", "r", "--owner", &reader[0][0]]).code, 0);
            assert_eq!(world.finish(&["renew", "r", "--owner", &reader[0][0]]).code, 0);
            assert_eq!(release("r", &reader[0][0]), 0);
        }
        assert_eq!(world.run(&["--wait", "20s"], "r", "true").ended().code, 0);

        let permits = lines(&["--permits", "2", "--of", "3", "s"]);
        assert_eq!((permits.len(), permits[0].len(), &*permits[0][2]), (1, 3, "0,1"), "{permits:?}");
        let json = world.finish(&["--json", "acquire", "--permits", "1", "--of", "3", "s"]);
        let other: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(other["slots"], serde_json::json!([2]));
        assert_eq!(release("s", &permits[0][0]), 0);
        assert_eq!(release("s", other["owner"].as_str().unwrap()), 0);

        let several = lines(&["y", "x"]);
        assert_eq!(several.len(), 2, "{several:?}");
        let busy = world.finish(&["acquire", "--wait", "0s", "w", "x"]);
        assert!(busy.code == 75 && busy.stderr.contains("busy: x, one of w, x, is held by"), "{}", busy.stderr);
        assert_eq!(release("x", &several[0][0]), 0);
        // The first that is released gives all of them back.
        assert_eq!(world.run(&["--wait", "40s"], "y", "true").ended().code, 0);
    });
}

use rustix::process::Signal;

use crate::world::{Running, World, eventually};

/// Held by whoever runs the tests, so that the lock lasts until it is released.
fn acquire(world: &World, name: &str) -> (String, String) {
    let finished = world.finish(&["acquire", name]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let (owner, fence) = finished.stdout.trim_end().split_once(' ').expect("an owner and a fence");
    (owner.to_owned(), fence.to_owned())
}

#[test]
fn a_script_takes_checks_renews_and_releases_by_the_owner_value() {
    let world = World::new();
    let (owner, fence) = acquire(&world, "a");
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 75);
    for verb in ["check", "renew"] {
        assert_eq!(world.finish(&[verb, "a", "--owner", &owner]).code, 0, "{verb}");
    }
    let checked = world.finish(&["--json", "check", "a", "--owner", &owner]);
    assert_eq!(checked.ending()["fence"].to_string(), fence);
    assert_eq!(world.finish(&["release", "a", "--owner", &owner]).code, 0);
    for verb in ["check", "renew", "release"] {
        assert_eq!(world.finish(&[verb, "a", "--owner", &owner]).code, 76, "{verb}");
    }
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 0);
}

/// O2: a stale owner value changes nothing.
#[test]
fn o2_another_owner_value_releases_nothing() {
    let world = World::new();
    let (first, _) = acquire(&world, "a");
    assert_eq!(world.finish(&["release", "a", "--owner", &first]).code, 0);
    let (second, _) = acquire(&world, "a");
    assert_eq!(world.finish(&["release", "a", "--owner", &first]).code, 76);
    assert_eq!(world.finish(&["check", "a", "--owner", &second]).code, 0);
    assert_eq!(world.finish(&["release", "a", "--owner", &second]).code, 0);
}

#[test]
fn the_lock_goes_with_the_script_that_took_it() {
    let world = World::new();
    let mut script = std::process::Command::new("sh");
    let program = env!("CARGO_BIN_EXE_fencepost");
    script.args(["-c", &format!("{program} acquire a --json; read x; :")]).env("FENCEPOST_STORE", &world.store);
    script
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut running = Running::of(&mut script);
    let granted: serde_json::Value = serde_json::from_str(&running.line()).unwrap();
    assert!(granted["owner"].is_string() && granted["fence"].is_u64(), "{granted}");
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 75);
    running.signal(Signal::KILL);
    running.ended();
    assert_eq!(world.finish(&["run", "--wait", "20s", "a", "--", "true"]).code, 0);
}

#[test]
fn a_detached_lock_outlives_its_script_until_it_is_released_or_held_too_long() {
    let world = World::new();
    let program = env!("CARGO_BIN_EXE_fencepost");
    for (flags, ended_by_time) in [("", false), ("--max-hold 700ms", true)] {
        let mut script = std::process::Command::new("sh");
        script.args(["-c", &format!("{program} acquire a --detach {flags}; :")]).env("FENCEPOST_STORE", &world.store);
        script
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let finished = crate::world::finish(&mut script);
        let owner = finished.stdout.split(' ').next().unwrap().to_owned();
        assert_eq!(world.finish(&["check", "a", "--owner", &owner]).code, 0, "{}", finished.stderr);
        if !ended_by_time {
            assert_eq!(world.finish(&["release", "a", "--owner", &owner]).code, 0);
        }
        eventually(|| world.finish(&["check", "a", "--owner", &owner]).code == 76);
    }
}

/// Issue 2: a lock whose owner value nobody got is a lock that nobody can give back.
#[test]
fn a_grant_that_could_not_be_told_is_given_back() {
    let world = World::new();
    let server = crate::redis::Server::start(&[]);
    let redis = server.world();
    let ways: [(&World, &[&str]); 4] =
        [(&world, &[]), (&world, &["--detach"]), (&redis, &["--detach"]), (&redis, &["--no-keep"])];
    for (world, flags) in ways {
        for unread in [true, false] {
            let mut command = world.command(&[&["acquire", "a"], flags].concat());
            if unread {
                let (reader, writer) = std::io::pipe().unwrap();
                drop(reader);
                command.stdout(writer);
            } else {
                command.stdout(std::fs::File::create("/dev/full").unwrap());
            }
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!((output.status.code(), said.lines().count()), (Some(70), 1), "{flags:?} {said}");
            assert!(said.contains("given back"), "{said}");
            let free = world.finish(&["run", "--wait", "5s", "a", "--", "true"]);
            assert_eq!(free.code, 0, "{flags:?} {}", free.stderr);
        }
    }
}

#[test]
fn a_detached_lock_wants_somebody_who_learns_its_owner_value() {
    let world = World::new();
    let program = env!("CARGO_BIN_EXE_fencepost");
    for (redirection, flags, code) in [(">&-", "", 64), (">/dev/null", "", 64), (">/dev/null", "--max-hold 100ms", 0)] {
        let mut script = std::process::Command::new("sh");
        script.args(["-c", &format!("{program} acquire a --detach {flags} {redirection}")]);
        script.env("FENCEPOST_STORE", &world.store).stdout(std::process::Stdio::piped());
        let finished = crate::world::finish(script.stderr(std::process::Stdio::piped()));
        assert_eq!(finished.code, code, "{redirection} {flags}: {}", finished.stderr);
        assert_eq!(world.finish(&["run", "--wait", "20s", "a", "--", "true"]).code, 0);
    }
}

#[test]
fn acquire_waits_and_tells_busy_like_run() {
    let world = World::new();
    let (owner, _) = acquire(&world, "a");
    let busy = world.finish(&["acquire", "--wait", "0s", "a"]);
    assert_eq!((busy.code, busy.stdout.as_str(), busy.stderr.lines().count()), (75, "", 1), "{}", busy.stderr);
    let waiting = world.start(&["acquire", "a"]);
    world.await_waiters("a", 1);
    // Ended by the terminal, say: the keeper behind it leaves the queue.
    waiting.signal(Signal::INT);
    waiting.ended();
    world.await_waiters("a", 0);
    let waiting = world.start(&["acquire", "a"]);
    world.await_waiters("a", 1);
    assert_eq!(world.finish(&["release", "a", "--owner", &owner]).code, 0);
    let finished = waiting.ended();
    let next = finished.stdout.split(' ').next().unwrap();
    assert_eq!(world.finish(&["release", "a", "--owner", next]).code, 0, "{}", finished.stderr);
}

#[test]
fn a_lock_without_a_keeper_is_refused_where_locks_have_no_ttl() {
    let world = World::new();
    let refused = world.finish(&["acquire", "--no-keep", "a"]);
    assert_eq!((refused.code, refused.stderr.lines().count()), (78, 1), "{}", refused.stderr);
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 0);
}

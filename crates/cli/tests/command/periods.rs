//! Once in a period, for timers on many hosts.

use rustix::process::Signal;

use crate::world::World;

#[test]
fn of_many_that_a_timer_starts_at_once_one_runs_and_the_others_say_who_did() {
    let world = World::new();
    let all: Vec<_> = (0..8).map(|_| world.run(&["--json", "--once-per", "1h"], "a", "echo ran")).collect();
    let all: Vec<_> = all.into_iter().map(crate::world::Running::ended).collect();
    assert_eq!(all.iter().filter(|one| one.stdout == "ran\n" && one.code == 0).count(), 1);
    for other in all.iter().filter(|one| one.stdout.is_empty()) {
        assert_eq!((other.code, &other.ending()["outcome"]), (75, &"not_due".into()), "{}", other.stderr);
        assert!(
            other.stderr.contains("not due: a was begun by ") && other.stderr.contains(" pid "),
            "{}",
            other.stderr
        );
    }
    let later = world.run(&["--once-per", "1h", "--busy-code", "0"], "a", "echo ran").ended();
    assert_eq!((later.code, later.stdout.as_str()), (0, ""));
}

#[test]
fn it_is_due_again_when_the_period_is_over() {
    let world = World::new();
    assert_eq!(world.run(&["--once-per", "1s"], "a", "true").ended().code, 0);
    crate::world::eventually(|| world.run(&["--once-per", "1s"], "a", "true").ended().code == 0);
}

/// A failing job would otherwise run once on each host, one right after the other.
#[test]
fn a_failed_command_counts_unless_it_is_to_be_tried_again() {
    let world = World::new();
    assert_eq!(world.run(&["--once-per", "1h"], "counts", "exit 3").ended().code, 3);
    assert_eq!(world.run(&["--once-per", "1h"], "counts", "true").ended().code, 75);
    let again = ["--once-per", "1h", "--retry-failed"];
    assert_eq!(world.run(&again, "again", "exit 3").ended().code, 3);
    assert_eq!(world.run(&again, "again", "true").ended().code, 0);
    assert_eq!(world.run(&again, "again", "true").ended().code, 75);
}

#[test]
fn a_command_that_could_not_be_started_does_not_count() {
    let world = World::new();
    assert_eq!(world.finish(&["run", "--once-per", "1h", "a", "--", "/no/such/program"]).code, 127);
    assert_eq!(world.run(&["--once-per", "1h"], "a", "true").ended().code, 0);
}

#[test]
fn a_command_that_was_killed_with_all_above_it_counts() {
    let world = World::new();
    let mut running = world.run(&["--once-per", "1h", "--grace", "100ms"], "a", "echo ready; exec sleep 1000");
    assert_eq!(running.line(), "ready");
    running.signal(Signal::KILL);
    running.ended();
    assert_eq!(world.run(&["--once-per", "1h"], "a", "true").ended().code, 75);
}

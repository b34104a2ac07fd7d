//! Elections: who leads runs, who loses the leadership is stopped first, and everybody hears of it.

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{LONG, Running, World, ends_within, is_alive};

/// Prints its pid and term and runs on.
const LEAD: &str = "echo $$ $FENCEPOST_TERM; exec sleep 1000";

impl World {
    fn elect(&self, flags: &[&str], script: &str) -> Running {
        self.start(&[&["elect"], flags, &["scheduler", "--", "sh", "-c", script]].concat())
    }
}

fn pid_and_term(candidate: &mut Running) -> (rustix::process::Pid, u64) {
    let line = candidate.line();
    let (pid, term) = line.split_once(' ').unwrap_or_else(|| panic!("no pid and term: {line:?}"));
    (rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap(), term.parse().unwrap())
}

#[test]
fn a_leader_that_is_killed_takes_its_command_along_before_the_next_one_leads() {
    let world = World::new();
    let script = "trap '' TERM; echo $$ $FENCEPOST_TERM; while :; do sleep 1000; done";
    let mut first = world.elect(&["--grace", "300ms"], script);
    let (command, term) = pid_and_term(&mut first);
    let check = format!("kill -0 {} 2>/dev/null && echo overlap; {LEAD}", command.as_raw_pid());
    let mut second = world.elect(&[], &check);
    world.await_waiters("scheduler", 1);
    first.signal(Signal::KILL);
    let (next, higher) = pid_and_term(&mut second);
    assert!(!is_alive(command) && higher > term, "{term} {higher}");
    first.ended();
    // TERM ends the command and the candidate, with the command's code.
    second.signal(Signal::TERM);
    assert!(ends_within(next, LONG));
    assert_eq!(second.ended().code, 143);
}

#[test]
fn who_loses_the_leadership_is_stopped_and_stands_again_behind_the_others() {
    let world = World::new();
    let mut first = world.elect(&["--grace", "300ms"], LEAD);
    let (command, term) = pid_and_term(&mut first);
    let mut second = world.elect(&[], LEAD);
    world.await_waiters("scheduler", 1);
    assert_eq!(world.finish(&["break", "scheduler"]).code, 0);
    let (next, higher) = pid_and_term(&mut second);
    assert!(higher > term);
    assert!(ends_within(command, LONG), "it was stopped");
    world.await_waiters("scheduler", 1);
    second.signal(Signal::INT);
    assert!(ends_within(next, LONG));
    second.ended();
    assert!(pid_and_term(&mut first).1 > higher, "it leads again");
    first.signal(Signal::INT);
    assert_eq!(first.ended().code, 130);
}

#[test]
fn it_stands_again_after_a_command_that_ended_and_once_means_once() {
    let world = World::new();
    let mut candidate = world.elect(&[], "echo $FENCEPOST_TERM; exit 3");
    let terms: Vec<u64> = (0..3).map(|_| candidate.line().parse().unwrap()).collect();
    assert!(terms.is_sorted() && terms[0] < terms[2], "{terms:?}");
    candidate.signal(Signal::TERM);
    let finished = candidate.ended();
    assert!(
        finished.stderr.contains("the command ended with code 3; standing for leader again in"),
        "{}",
        finished.stderr
    );
    let once = world.elect(&["--json", "--once"], "exit 3").ended();
    assert_eq!((once.code, &once.ending()["outcome"]), (3, &"ended".into()));
    assert_eq!(world.finish(&["elect", "scheduler", "--", "/no/such/program"]).code, 127, "it would never lead");
}

#[test]
fn a_signal_while_waiting_ends_it_and_leaves_nobody_in_the_queue() {
    let world = World::new();
    let mut leader = world.elect(&[], LEAD);
    let (command, _) = pid_and_term(&mut leader);
    let waiting = world.elect(&[], LEAD);
    world.await_waiters("scheduler", 1);
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.ended().code, 143);
    world.await_waiters("scheduler", 0);
    let busy = world.elect(&["--wait", "0s"], LEAD).ended();
    assert_eq!((busy.code, busy.stdout.as_str()), (75, ""), "{}", busy.stderr);
    leader.signal(Signal::KILL);
    assert!(ends_within(command, LONG));
    leader.ended();
}

#[test]
fn the_higher_priority_leads_next_and_never_never_does() {
    let world = World::new();
    let mut leader = world.elect(&["--priority", "0"], LEAD);
    pid_and_term(&mut leader);
    let low = world.elect(&["--priority", "-1"], "echo low; exec sleep 1000");
    world.await_waiters("scheduler", 1);
    let mut high = world.elect(&["--priority", "7"], "echo high; exec sleep 1000");
    world.await_waiters("scheduler", 2);
    let never = world.elect(&["--priority", "never", "--wait", "100ms"], "echo never").ended();
    assert_eq!((never.code, never.stdout.as_str()), (75, ""));
    leader.signal(Signal::TERM);
    leader.ended();
    assert_eq!(high.line(), "high");
    for candidate in [low, high] {
        candidate.signal(Signal::TERM);
        candidate.ended();
    }
}

#[test]
fn everybody_hears_who_leads_and_what_the_leader_says() {
    let world = World::new();
    let mut watching = world.start(&["observe", "--json", "scheduler"]);
    let mut next = || -> Value { serde_json::from_str(&watching.line()).unwrap() };
    assert_eq!(next()["leader"], Value::Null);
    let mut leader = world.elect(&["--word", "10.0.0.5:8080", "--label", "rack=7"], LEAD);
    let (_, term) = pid_and_term(&mut leader);
    let news = next();
    assert_eq!((&news["name"], &news["leader"]["term"]), (&"scheduler".into(), &term.into()), "{news}");
    assert_eq!((&news["leader"]["word"], &news["leader"]["labels"]["rack"]), (&"10.0.0.5:8080".into(), &"7".into()));
    assert_eq!(news["leader"]["pid"], leader.pid().as_raw_pid());
    leader.signal(Signal::TERM);
    leader.ended();
    assert_eq!(next()["leader"], Value::Null);
    watching.signal(Signal::KILL);
    watching.ended();
}

#[test]
fn observe_ends_when_nobody_reads_any_more() {
    assert_eq!(World::new().without_a_reader(&["observe", "scheduler"]), Some(0));
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let world = World::new();
    let long = "x".repeat(4097);
    let refused: [&[&str]; 5] =
        [&["--priority", "high", "a"], &["--label", "priority=7", "a"], &["--word", &long, "a"], &[""], &["a", "b"]];
    for flags in refused {
        let finished = world.finish(&[&["elect"], flags, &["--", "echo", "ran"]].concat());
        assert_eq!((finished.code, finished.stdout.as_str()), (64, ""), "{flags:?}: {}", finished.stderr);
    }
}

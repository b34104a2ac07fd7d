//! On a Redis server of Debian's package `redis-server`, for what only a store that expires can show.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal};

use crate::world::{LONG, World, ends_within, eventually, is_alive};

pub(crate) struct Server {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Server {
    pub(crate) fn start(options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut command = Command::new("redis-server");
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(options).arg("--dir").arg(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("the package `redis-server` is missing");
        let server = Self { child, port, _directory: directory };
        eventually(|| TcpStream::connect(("127.0.0.1", port)).is_ok());
        server
    }

    pub(crate) fn world(&self) -> World {
        World::on(format!("redis://127.0.0.1:{}", self.port))
    }

    fn pause(&self) {
        rustix::process::kill_process(self.pid(), Signal::STOP).unwrap();
    }

    fn resume(&self) {
        rustix::process::kill_process(self.pid(), Signal::CONT).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().try_into().unwrap()).unwrap()
    }

    /// One command in the server's inline form, and its answer.
    fn tell(&self, command: &str) -> String {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        connection.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TREE: &str =
    "setsid sh -c 'trap \"\" TERM; echo $$; while :; do sleep 1000; done' & sleep 0.1; echo $$; wait; sleep 1000";

/// Cases 11 and 40: whoever renews is stopped, and the guardian ends the command before another can hold the lock.
#[test]
fn case_40_a_stopped_holders_command_is_dead_before_the_next_one_holds() {
    let server = Server::start(&[]);
    let world = server.world();
    let mut first = world.run(&["--ttl", "3s", "--grace", "500ms"], "a", TREE);
    let (grandchild, child) = (first.line_pid(), first.line_pid());
    first.signal(Signal::STOP);
    let check = format!(
        "for pid in {} {}; do kill -0 $pid 2>/dev/null && echo $pid lives; done; echo checked",
        grandchild.as_raw_pid(),
        child.as_raw_pid()
    );
    let second = world.run(&["--wait", "20s"], "a", &check).ended();
    assert_eq!((second.code, second.stdout.as_str()), (0, "checked\n"), "{}", second.stderr);
    first.signal(Signal::CONT);
    let finished = first.ended();
    assert_eq!(finished.code, 76, "{}", finished.stderr);
}

/// Case 12 (RedLock.net 93): an administrator deletes the record.
#[test]
fn case_40_a_deleted_record_ends_the_command() {
    let server = Server::start(&[]);
    let world = server.world();
    let mut running = world.run(&["--json", "--ttl", "3s", "--grace", "500ms"], "a", TREE);
    let (grandchild, child) = (running.line_pid(), running.line_pid());
    server.tell("FLUSHALL");
    assert!(ends_within(child, LONG) && ends_within(grandchild, LONG));
    let finished = running.ended();
    assert_eq!((finished.code, &finished.ending()["outcome"]), (76, &"lost".into()), "{}", finished.stderr);
}

/// Case 11: a pause between the grant and the start of the command, longer than the lease.
#[test]
fn a_lease_that_ended_meanwhile_starts_nothing() {
    let server = Server::start(&[]);
    let world = server.world();
    for on_lost in ["term", "ignore"] {
        let mut first = world.run(&["--ttl", "1s"], "a", "echo held; exec sleep 1000");
        assert_eq!(first.line(), "held");
        let second = world.run(&["--ttl", "1s", "--on-lost", on_lost], "a", "echo ran");
        world.await_waiters("a", 1);
        let guardian = second.guardian();
        rustix::process::kill_process(guardian, Signal::STOP).unwrap();
        first.signal(Signal::TERM);
        first.ended();
        eventually(|| world.who("a")["holders"][0]["pid"] == second.pid().as_raw_pid());
        second.signal(Signal::STOP);
        eventually(|| world.who("a")["holders"].as_array().unwrap().is_empty());
        rustix::process::kill_process(guardian, Signal::CONT).unwrap();
        second.signal(Signal::CONT);
        let finished = second.ended();
        assert_eq!((finished.code, finished.stdout.as_str()), (76, ""), "{on_lost}: {}", finished.stderr);
        assert!(finished.stderr.contains("it was not started"), "{}", finished.stderr);
    }
}

#[test]
fn a_lease_is_renewed_for_as_long_as_the_command_runs() {
    let server = Server::start(&[]);
    let world = server.world();
    let finished = world.run(&["--ttl", "600ms", "--grace", "100ms"], "a", "sleep 2; exit 4").ended();
    assert_eq!(finished.code, 4, "{}", finished.stderr);
}

#[test]
fn a_server_that_dies_ends_the_command_before_the_lease_ends() {
    let mut server = Server::start(&[]);
    let world = server.world();
    let mut running = world.run(&["--ttl", "3s", "--grace", "500ms"], "a", "echo $$; exec sleep 1000");
    let child = running.line_pid();
    server.child.kill().unwrap();
    assert!(ends_within(child, Duration::from_secs(5)));
    assert_eq!(running.ended().code, 76);
}

#[test]
fn kill_9_leaves_no_command_while_the_lease_lasts() {
    let server = Server::start(&[]);
    let world = server.world();
    let mut running = world.run(&["--ttl", "20s", "--grace", "300ms"], "a", TREE);
    let (grandchild, child) = (running.line_pid(), running.line_pid());
    running.signal(Signal::KILL);
    assert!(ends_within(child, Duration::from_secs(5)) && ends_within(grandchild, Duration::from_secs(5)));
    running.ended();
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 75, "nobody gave it back");
}

#[test]
fn fenced_is_refused_with_the_reason_and_the_stores_that_can() {
    let server = Server::start(&[]);
    let world = server.world();
    let refused = world.finish(&["run", "--fenced", "a", "--", "true"]);
    assert_eq!((refused.code, refused.stderr.lines().count()), (78, 1), "{}", refused.stderr);
    assert!(refused.stderr.contains("Redis") && refused.stderr.contains("file:"), "{}", refused.stderr);
    let plain = world.run(&[], "a", "echo ${FENCEPOST_FENCE-none}").ended();
    assert_eq!((plain.code, plain.stdout.as_str()), (0, "none\n"));
}

#[test]
fn a_wrong_password_is_permission_refused_and_never_shown() {
    let server = Server::start(&["--requirepass", "right"]);
    let address = format!("127.0.0.1:{}", server.port);
    for url in [format!("redis://:hunter2@{address}"), format!("redis://{address}")] {
        let refused = World::on(url).finish(&["run", "--wait", "2s", "a", "--", "true"]);
        assert_eq!((refused.code, refused.stderr.lines().count()), (77, 1), "{}", refused.stderr);
        assert!(!refused.stderr.contains("hunter2"), "{}", refused.stderr);
    }
    assert_eq!(World::on(format!("redis://:right@{address}")).finish(&["run", "a", "--", "true"]).code, 0);
}

/// Issue 2: a job that looked at another store than its own would find every lock free.
#[test]
fn a_url_with_a_password_reaches_no_command_and_a_fencepost_in_it_refuses_instead_of_looking_elsewhere() {
    let server = Server::start(&["--requirepass", "hunter2"]);
    let program = env!("CARGO_BIN_EXE_fencepost");
    let script = format!("env; {program} run --wait 0s b -- echo in; echo code $?; {program} check a; echo code $?");
    let secret = World::on(format!("redis://:hunter2@127.0.0.1:{}", server.port));
    let finished = secret.run(&[], "a", &script).ended();
    assert!(!finished.stdout.contains("hunter2") && !finished.stderr.contains("hunter2"), "{}", finished.stdout);
    assert!(
        finished.stdout.ends_with("\ncode 78\ncode 78\n") && !finished.stdout.contains("in\ncode"),
        "{} {}",
        finished.stdout,
        finished.stderr
    );
    assert!(finished.stderr.contains("password_file"), "{}", finished.stderr);

    let file = secret.directory.path().join("password");
    std::fs::write(&file, "hunter2\n").unwrap();
    let named = World::on(format!("redis://127.0.0.1:{}?password_file={}", server.port, file.display()));
    let finished = named.run(&[], "a", &script).ended();
    assert!(finished.stdout.ends_with("in\ncode 0\ncode 0\n"), "{} {}", finished.stdout, finished.stderr);
}

#[test]
fn without_a_keeper_a_lock_lasts_for_its_ttl_unless_renewed() {
    let server = Server::start(&[]);
    let world = server.world();
    let finished = world.finish(&["acquire", "--no-keep", "--ttl", "1500ms", "a"]);
    assert_eq!(finished.code, 0, "{}", finished.stderr);
    let owner = finished.stdout.trim_end();
    assert_eq!(owner.len(), 40, "an owner value and no fence");
    assert_eq!(world.finish(&["renew", "a", "--owner", owner, "--ttl", "3s"]).code, 0);
    assert_eq!(world.finish(&["check", "a", "--owner", owner]).code, 0);
    assert!(world.who("a")["holders"][0]["expires_in_ms"].as_u64().unwrap() > 1500);
    assert_eq!(world.finish(&["run", "--wait", "20s", "a", "--", "true"]).code, 0);
    assert_eq!(world.finish(&["renew", "a", "--owner", owner]).code, 76);
}

#[test]
fn the_guardian_is_told_of_every_renewal_and_a_broken_lock_of_its_loss() {
    let server = Server::start(&[]);
    let world = server.world();
    let mut running = world.run(&["--ttl", "1s", "--grace", "200ms"], "a", "echo $$; exec sleep 1000");
    let child = running.line_pid();
    assert!(!ends_within(child, Duration::from_secs(3)) && is_alive(child));
    assert_eq!(world.finish(&["break", "a"]).code, 0);
    assert_eq!(running.ended().code, 76);
}

/// On a store where nothing ends with the process, what was free of several goes back before the command ends.
#[test]
fn several_locks_of_which_one_is_busy_leave_none_behind() {
    let server = Server::start(&[]);
    let world = server.world();
    let mut holder = world.run(&["--grace", "100ms"], "b", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    for wait in ["0s", "200ms"] {
        assert_eq!(world.finish(&["run", "--wait", wait, "a", "b", "--", "true"]).code, 75);
        let a = world.who("a");
        assert_eq!((&a["holders"], &a["waiters"]), (&serde_json::json!([]), &serde_json::json!([])), "{wait}");
        assert_eq!(world.who("b")["waiters"], serde_json::json!([]), "{wait}");
    }
    holder.signal(Signal::TERM);
    holder.ended();
}

/// Cases 11 and 40 for several locks and for a leadership: whoever renews is stopped, and the guardian ends the command
/// before another can hold or lead.
#[test]
fn case_40_the_command_of_a_stopped_leader_or_holder_of_several_is_dead_before_the_next_one() {
    let server = Server::start(&[]);
    let world = server.world();
    let ways: [&[&str]; 2] = [&["run", "a", "b"], &["elect", "--once", "b"]];
    for way in ways {
        let script = "trap '' TERM; echo $$; while :; do sleep 1000; done";
        let terms = ["--ttl", "2s", "--grace", "300ms", "--", "sh", "-c", script];
        let mut first = world.start(&[way, &terms[..]].concat());
        let command = first.line_pid();
        first.signal(Signal::STOP);
        let check = format!("kill -0 {} 2>/dev/null && echo overlap; echo checked", command.as_raw_pid());
        let next = world.run(&["--wait", "20s"], "b", &check).ended();
        assert_eq!((next.code, next.stdout.as_str()), (0, "checked\n"), "{way:?}: {}", next.stderr);
        first.signal(Signal::CONT);
        assert_eq!(first.ended().code, 76, "{way:?}");
    }
}

/// It is away for longer than a lease lasts: the command is ended, and leads again when the store is back.
#[test]
fn a_candidate_bears_a_store_that_is_away() {
    let server = Server::start(&[]);
    let world = server.world();
    let lead = ["elect", "--ttl", "1s", "--grace", "200ms", "scheduler", "--", "sh", "-c"];
    let mut candidate = world.start(&[&lead[..], &["echo $$ $FENCEPOST_TERM; exec sleep 1000"]].concat());
    let mut next = || {
        let line = candidate.line();
        let (pid, term) = line.split_once(' ').unwrap();
        (Pid::from_raw(pid.parse().unwrap()).unwrap(), term.parse::<u64>().unwrap())
    };
    let (command, term) = next();
    server.pause();
    assert!(ends_within(command, LONG));
    server.resume();
    let (command, higher) = next();
    assert!(is_alive(command) && higher > term, "{term} {higher}");
    candidate.signal(Signal::TERM);
    candidate.ended();
}

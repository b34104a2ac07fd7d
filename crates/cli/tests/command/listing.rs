use std::{
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use crate::world::{Running, World, eventually, finish};

#[test]
fn holders_and_waiters_are_listed_without_the_owner_value() {
    let world = World::new();
    assert_eq!(world.finish(&["ls", "--json"]).stdout, "[]\n");
    let mut holder = world.run(&["--label", "job=nightly"], "a/b", "echo $FENCEPOST_OWNER; exec sleep 1000");
    let owner = holder.line();
    let waiter = world.run(&[], "a/b", "true");
    world.await_waiters("a/b", 1);
    let listed = world.finish(&["ls", "--json"]);
    let all: Value = serde_json::from_str(&listed.stdout).unwrap();
    let lock = &all[0];
    assert_eq!((lock["name"].as_str(), all.as_array().unwrap().len()), (Some("a/b"), 1));
    assert_eq!(lock["holders"][0]["pid"], holder.pid().as_raw_pid());
    assert_eq!(lock["holders"][0]["labels"]["job"], "nightly");
    assert!(lock["holders"][0]["fence"].is_u64() && lock["holders"][0]["since_unix_ms"].is_u64());
    assert_eq!(lock["waiters"][0]["pid"], waiter.pid().as_raw_pid());
    let table = world.finish(&["who", "a/b"]);
    assert_eq!(table.stdout.lines().count(), 3, "{}", table.stdout);
    for text in [listed.stdout, listed.stderr, table.stdout, table.stderr] {
        assert!(!text.contains(&owner), "{text}");
    }
    holder.signal(Signal::TERM);
    assert_eq!((holder.ended().code, waiter.ended().code), (143, 0));
    let free = world.finish(&["who", "a/b"]);
    assert_eq!((free.code, free.stderr.as_str()), (0, "fencepost: a/b is free\n"));
}

/// A group is listed by its name beside the lock of that name, for as long as somebody is in it.
#[tokio::test(flavor = "multi_thread")] // the member goes on while we wait
async fn the_members_of_a_group_are_listed() {
    let world = World::new();
    let locks = fencepost::Locks::open(&world.store).await.unwrap().for_efficiency();
    let member = locks.members("workers").unwrap().join("w1", Duration::from_secs(60)).await.unwrap();
    let mut holder = world.run(&[], "workers", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    let listed = || -> Value { serde_json::from_str(&world.finish(&["ls", "--json"]).stdout).unwrap() };
    eventually(|| listed()[0]["members"].is_array());
    let listed = listed();
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["members"][0]["id"], "w1");
    assert_eq!(listed[0]["members"][0]["pid"], std::process::id());
    assert!(listed[0]["holders"][0]["pid"].is_u64());
    let table = world.finish(&["who", "workers"]).stdout;
    assert!(table.lines().any(|line| line.contains("member") && line.contains("w1")), "{table}");
    holder.signal(Signal::TERM);
    holder.ended();
    drop(member);
    locks.close().await;
    eventually(|| world.finish(&["ls", "--json"]).stdout == "[]\n");
}

/// Issue 2: a second value on stderr is one too many for whoever reads both streams as one.
#[test]
fn a_listing_for_programs_is_one_value_on_stdout_and_nothing_on_stderr() {
    let world = World::new();
    let mut holder = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    for listing in [&["ls", "--json"][..], &["who", "--json", "a"], &["who", "--json", "b"]] {
        let finished = world.finish(listing);
        assert_eq!((finished.code, finished.stderr.as_str()), (0, ""), "{listing:?}");
        assert_eq!(finished.stdout.lines().count(), 1, "{listing:?}");
        serde_json::from_str::<Value>(&finished.stdout).unwrap();
    }
    let failed = World::on("carrier-pigeon:x".into()).finish(&["ls", "--json"]);
    assert_eq!((failed.stdout.as_str(), &failed.ending()["outcome"]), ("", &"usage".into()));
    holder.signal(Signal::TERM);
    holder.ended();
}

/// Cron sets no USER, and a USER can say anything.
#[test]
fn a_holder_is_shown_by_its_users_name_whatever_the_environment_says() {
    let world = World::new();
    let name = finish(Command::new("id").arg("-un").stdout(Stdio::piped())).stdout;
    for user in [None, Some(""), Some("somebody-else")] {
        let mut command = world.command(&["run", "a", "--", "sh", "-c", "echo held; read x; :"]);
        command.env_remove("LOGNAME").env_remove("USER").stdin(Stdio::piped());
        user.map(|user| command.env("USER", user));
        let mut holder = Running::of(&mut command);
        assert_eq!(holder.line(), "held");
        assert_eq!(world.who("a")["holders"][0]["user"], name.trim(), "{user:?}");
        holder.signal(Signal::TERM);
        holder.ended();
    }
}

/// F4 and case 30: a forced lock's fence does not go back.
#[test]
fn f4_break_keeps_to_the_fence_it_was_told_and_the_next_fence_is_higher() {
    let world = World::new();
    assert_eq!(world.finish(&["--json", "break", "a"]).ending()["outcome"], "not_held");
    let mut holder = world.run(&["--grace", "100ms"], "a", "echo $FENCEPOST_FENCE; exec sleep 1000");
    let fence: u64 = holder.line().parse().unwrap();
    let other = (fence + 1).to_string();
    assert_eq!(world.finish(&["break", "a", "--if-fence", &other]).code, 75);
    assert_eq!(world.who("a")["holders"][0]["fence"], fence);
    let broken = world.finish(&["--json", "break", "a", "--if-fence", &fence.to_string()]);
    assert_eq!((broken.code, &broken.ending()["fence"]), (0, &fence.into()), "{}", broken.stderr);
    let next = world.run(&["--wait", "20s"], "a", "echo $FENCEPOST_FENCE").ended();
    assert!(next.stdout.trim().parse::<u64>().unwrap() > fence);
    assert_eq!(holder.ended().code, 76);
}

#[test]
fn watch_tells_each_change() {
    let world = World::new();
    let mut watching = world.start(&["watch", "--json", "a"]);
    let mut next = || -> (String, Value) {
        let change: Value = serde_json::from_str(&watching.line()).unwrap();
        (change["event"].as_str().unwrap().to_owned(), change["pid"].clone())
    };
    let mut holder = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(holder.line(), "held");
    assert_eq!(next(), ("held".into(), holder.pid().as_raw_pid().into()));
    let mut waiter = world.run(&[], "a", "echo held; exec sleep 1000");
    assert_eq!(next(), ("waiting".into(), waiter.pid().as_raw_pid().into()));
    holder.signal(Signal::TERM);
    assert_eq!(waiter.line(), "held");
    assert_eq!(next(), ("freed".into(), holder.pid().as_raw_pid().into()));
    assert_eq!(next(), ("left".into(), waiter.pid().as_raw_pid().into()));
    assert_eq!(next(), ("held".into(), waiter.pid().as_raw_pid().into()));
    for running in [holder, waiter] {
        running.signal(Signal::KILL);
        running.ended();
    }
    watching.signal(Signal::KILL);
    watching.ended();
}

#[test]
fn watch_ends_when_nobody_reads_any_more() {
    assert_eq!(World::new().without_a_reader(&["watch", "a"]), Some(0));
}

//! On etcd and on ZooKeeper, real ones: every verb that people and scripts use, with a queue in its order.

use std::sync::Arc;

use fencepost_servers::{EtcdCluster, ZooKeeperServer};
use rustix::process::Signal;
use serde_json::Value;

use crate::world::World;

fn on_etcd() -> (EtcdCluster, World) {
    let cluster = EtcdCluster::start(1);
    let world = World::on(cluster.url());
    (cluster, world)
}

/// Below a chroot that no other test knows.
fn on_zookeeper(chroot: &str) -> (Arc<ZooKeeperServer>, World) {
    let server = ZooKeeperServer::shared();
    server.admin().create(chroot, b"").expect("a fresh chroot");
    let world = World::on(format!("{}{chroot}", server.url()));
    (server, world)
}

#[test]
fn etcd_shows_the_queue_in_its_order_and_hands_over_in_it() {
    let (_cluster, world) = on_etcd();
    shows_the_queue_and_hands_over(&world);
}

#[test]
fn zookeeper_shows_the_queue_in_its_order_and_hands_over_in_it() {
    let (_server, world) = on_zookeeper("/order");
    shows_the_queue_and_hands_over(&world);
}

#[test]
fn etcd_tells_and_breaks() {
    let (_cluster, world) = on_etcd();
    tells_and_breaks(&world);
}

#[test]
fn zookeeper_tells_and_breaks() {
    let (_server, world) = on_zookeeper("/breaks");
    tells_and_breaks(&world);
}

#[test]
fn etcd_keeps_a_scripts_lock_and_takes_it_back() {
    let (_cluster, world) = on_etcd();
    keeps_a_scripts_lock(&world);
    // Without a keeper as well: its session is kept alive by whoever has the owner value.
    let owner = owner(&world.finish(&["acquire", "b", "--no-keep"]).stdout);
    assert_eq!(world.finish(&["renew", "b", "--owner", &owner]).code, 0);
    assert_eq!(world.finish(&["release", "b", "--owner", &owner]).code, 0);
}

#[test]
fn zookeeper_keeps_a_scripts_lock_and_takes_it_back() {
    let (_server, world) = on_zookeeper("/scripts");
    keeps_a_scripts_lock(&world);
    // A session belongs to the process that took the lock, and it is said so.
    let owner = owner(&world.finish(&["acquire", "a"]).stdout);
    let renewed = world.finish(&["renew", "a", "--owner", &owner]);
    assert!(renewed.code != 0 && renewed.stderr.contains("session"), "{}", renewed.stderr);
    assert_eq!(world.finish(&["check", "a", "--owner", &owner]).code, 0, "nothing was changed");
    assert_eq!(world.finish(&["release", "a", "--owner", &owner]).code, 0);
}

#[test]
fn etcd_tells_who_leads_and_who_leads_next() {
    let (_cluster, world) = on_etcd();
    tells_who_leads(&world);
}

#[test]
fn etcd_lets_readers_in_together_and_counts_permits() {
    let (_cluster, world) = on_etcd();
    lets_in_together(&world);
    let several = world.finish(&["run", "b", "a", "--", "sh", "-c", "echo $FENCEPOST_LOCK $FENCEPOST_FENCE"]);
    let told: Vec<_> = several.stdout.split_whitespace().collect();
    assert_eq!((told.len(), told[0], told[1]), (4, "a", "b"), "{}", several.stderr);
    assert_eq!(told[2], told[3], "one transaction has taken both");
}

#[test]
fn zookeeper_tells_who_leads_and_who_leads_next() {
    let (_server, world) = on_zookeeper("/leads");
    tells_who_leads(&world);
}

#[test]
fn zookeeper_lets_readers_in_together_and_counts_permits() {
    let (_server, world) = on_zookeeper("/together");
    lets_in_together(&world);
}

fn tells_who_leads(world: &World) {
    let mut watching = world.start(&["observe", "--json", "scheduler"]);
    let mut next = || -> Value { serde_json::from_str(&watching.line()).unwrap() };
    assert_eq!(next()["leader"], Value::Null);
    let elect = |word| {
        world.start(&["elect", "--word", word, "scheduler", "--", "sh", "-c", "echo $FENCEPOST_TERM; exec sleep 1000"])
    };
    let mut first = elect("10.0.0.5:8080");
    let term: u64 = first.line().parse().unwrap();
    let news = next();
    assert_eq!((&news["leader"]["term"], &news["leader"]["word"]), (&term.into(), &"10.0.0.5:8080".into()));
    let mut second = elect("10.0.0.6:8080");
    world.await_waiters("scheduler", 1);
    first.signal(Signal::TERM);
    assert_eq!(first.ended().code, 143);
    let higher: u64 = second.line().parse().unwrap();
    assert!(higher > term, "{higher} after {term}");
    let mut news = next();
    while news["leader"] == Value::Null {
        news = next(); // between the two nobody led
    }
    assert_eq!((&news["leader"]["term"], &news["leader"]["word"]), (&higher.into(), &"10.0.0.6:8080".into()));
    second.signal(Signal::TERM);
    second.ended();
    watching.signal(Signal::KILL);
    watching.ended();
}

fn lets_in_together(world: &World) {
    let start = |flags: &[&str]| {
        let mut running = world.run(flags, "a", "echo in; exec sleep 1000");
        assert_eq!(running.line(), "in");
        running
    };
    let readers = [start(&["--shared"]), start(&["--shared"])];
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 75);
    assert_eq!(world.who("a")["holders"][1]["mode"], "shared", "{}", world.who("a"));
    let refused = world.finish(&["run", "--permits", "1", "--of", "3", "a", "--", "true"]);
    assert!(refused.code != 0 && refused.stderr.contains("in use as a lock"), "{}", refused.stderr);
    for reader in readers {
        reader.signal(Signal::TERM);
        reader.ended();
    }
    let counted = start(&["--permits", "2", "--of", "3"]);
    assert_eq!(world.finish(&["run", "--wait", "0s", "--permits", "2", "--of", "3", "a", "--", "true"]).code, 75);
    let third = world.run(&["--permits", "1", "--of", "3"], "a", "echo $FENCEPOST_SLOTS").ended();
    assert_eq!(third.stdout, "2\n", "{}", third.stderr);
    counted.signal(Signal::TERM);
    counted.ended();
}

fn shows_the_queue_and_hands_over(world: &World) {
    assert_eq!(world.finish(&["ls", "--json"]).stdout, "[]\n");
    let mut holder = world.run(&["--label", "job=nightly"], "a/b", "echo $FENCEPOST_FENCE; exec sleep 1000");
    let fence: u64 = holder.line().parse().unwrap();
    let mut waiters = Vec::new();
    for count in 1..=4 {
        waiters.push(world.run(&[], "a/b", "echo $FENCEPOST_FENCE"));
        world.await_waiters("a/b", count);
    }
    let pids: Vec<_> = waiters.iter().map(|waiter| waiter.pid().as_raw_pid()).collect();
    let listed: Value = serde_json::from_str(&world.finish(&["ls", "--json"]).stdout).unwrap();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"a/b".into()));
    for lock in [&listed[0], &world.who("a/b")] {
        let shown: Vec<_> = lock["waiters"].as_array().unwrap().iter().map(|waiter| waiter["pid"].clone()).collect();
        assert_eq!(shown, pids);
        assert_eq!(lock["holders"][0]["pid"], holder.pid().as_raw_pid());
        assert_eq!(lock["holders"][0]["fence"], fence);
        assert_eq!(lock["holders"][0]["labels"]["job"], "nightly");
    }
    assert_eq!(world.finish(&["who", "a/b"]).stdout.lines().count(), 6, "a heading, the holder and four");
    holder.signal(Signal::TERM);
    assert_eq!(holder.ended().code, 143);
    let mut last = fence;
    for waiter in waiters {
        let finished = waiter.ended();
        let next: u64 = finished.stdout.trim().parse().unwrap_or_else(|_| panic!("{}", finished.stderr));
        assert!(next > last, "first come, first served: {next} after {last}");
        last = next;
    }
    assert_eq!(world.finish(&["who", "a/b"]).stderr, "fencepost: a/b is free\n");
}

fn tells_and_breaks(world: &World) {
    let mut watching = world.start(&["watch", "--json", "a"]);
    let mut next = || -> (String, Value) {
        let change: Value = serde_json::from_str(&watching.line()).unwrap();
        (change["event"].as_str().unwrap().to_owned(), change["pid"].clone())
    };
    let mut holder = world.run(&["--grace", "100ms"], "a", "echo $FENCEPOST_FENCE; exec sleep 1000");
    let fence: u64 = holder.line().parse().unwrap();
    assert_eq!(next(), ("held".into(), holder.pid().as_raw_pid().into()));
    let mut waiter = world.run(&[], "a", "echo $FENCEPOST_FENCE; exec sleep 1000");
    assert_eq!(next(), ("waiting".into(), waiter.pid().as_raw_pid().into()));
    let busy = world.finish(&["run", "--wait", "0s", "a", "--", "true"]);
    assert_eq!(busy.code, 75, "{}", busy.stderr);
    assert_eq!(world.finish(&["break", "a", "--if-fence", &(fence + 1_000_000).to_string()]).code, 75);
    assert_eq!(world.who("a")["holders"][0]["fence"], fence, "nothing was changed");
    let broken = world.finish(&["--json", "break", "a", "--if-fence", &fence.to_string()]);
    assert_eq!((broken.code, &broken.ending()["fence"]), (0, &fence.into()), "{}", broken.stderr);
    assert_eq!(holder.ended().code, 76, "its command was ended");
    let after: u64 = waiter.line().parse().unwrap();
    assert!(after > fence, "{after} after {fence}");
    waiter.signal(Signal::TERM);
    waiter.ended();
    watching.signal(Signal::KILL);
    watching.ended();
}

fn keeps_a_scripts_lock(world: &World) {
    let taken = world.finish(&["acquire", "a"]);
    assert_eq!(taken.code, 0, "{}", taken.stderr);
    let owner = owner(&taken.stdout);
    assert_eq!(world.finish(&["check", "a", "--owner", &owner]).code, 0);
    assert_eq!(world.finish(&["release", "a", "--owner", &"0".repeat(40)]).code, 76, "a stranger's");
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 75);
    assert_eq!(world.finish(&["release", "a", "--owner", &owner]).code, 0);
    assert_eq!(world.finish(&["check", "a", "--owner", &owner]).code, 76);
    assert_eq!(world.finish(&["run", "--wait", "0s", "a", "--", "true"]).code, 0);
}

/// `acquire` prints the owner value and the fence.
fn owner(printed: &str) -> String {
    printed.split_whitespace().next().expect("an owner value").to_owned()
}

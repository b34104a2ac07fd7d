//! Failovers while eight processes hold and wait.

use std::time::Duration;

use fencepost_conformance::{
    Proof,
    crowd::{Crowd, Served},
    holder::Holder,
    prove,
    site::Site,
    sites::{self, ClusterSite, EtcdSite, SentinelSite, ZooKeeperTrio},
};
use fencepost_core::clock::{BootClock, sleep};
use futures_util::future::join_all;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(12);
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

fn holder() -> &'static str {
    env!("CARGO_BIN_EXE_fencepost-holder")
}

/// Four processes hold and four wait. Through the failover and past the time at which what was not renewed would have
/// ended, nobody loses; then each waiter has its turn.
async fn nobody_notices(site: &dyn Site, failover: impl FnOnce()) {
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for name in NAMES {
        let mut holder = Holder::start(site).await;
        holder.acquire(name, TTL).await;
        holders.push(holder);
        let mut waiter = Holder::start(site).await;
        waiter.start_acquiring(name, TTL).await;
        waiters.push(waiter);
    }
    let store = fencepost::registry::open_store(&site.url(), site.namespace(), BootClock::shared()).await;
    let store = store.expect("the store opens");
    let waiting = async {
        while store
            .inspect(None)
            .await
            .is_ok_and(|locks| locks.iter().map(|lock| lock.waiters.len()).sum::<usize>() < 4)
        {
            sleep(&BootClock, Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("all wait");
    failover();
    sleep(&BootClock, TTL).await;
    for (holder, name) in holders.iter_mut().zip(NAMES) {
        assert_eq!(holder.look(name).await, None, "the failover alone is no loss");
    }
    for ((holder, waiter), name) in holders.iter_mut().zip(&mut waiters).zip(NAMES) {
        holder.release(name).await;
        waiter.acquired(name).await;
    }
}

#[test]
fn sentinel_a_planned_failover_is_not_noticed() {
    prove(sites::sentinel(), holder(), |site: &SentinelSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || {
                site.set.settle();
                site.set.fail_over();
            })
            .await;
            Ok(())
        })
    });
}

#[test]
fn sentinel_a_crash_of_the_master_is_not_noticed() {
    prove(sites::sentinel(), holder(), |site: &SentinelSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || {
                site.set.settle();
                let old = site.set.master();
                let address = old.address();
                old.kill();
                site.set.await_other_master(address);
            })
            .await;
            Ok(())
        })
    });
}

/// Every master at once hands over to its replica, as in a rolling restart.
#[test]
fn cluster_planned_failovers_are_not_noticed() {
    prove(sites::cluster_of_its_own(), holder(), |site: &ClusterSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || site.set().fail_over_everywhere()).await;
            Ok(())
        })
    });
}

#[test]
fn cluster_a_crash_of_a_master_is_not_noticed() {
    prove(sites::cluster_of_its_own(), holder(), |site: &ClusterSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || {
                site.set().settle();
                let slot = site.set().slot_of(NAMES[0]);
                let old = site.set().master_of(slot);
                let address = old.address();
                old.kill();
                site.set().await_other_master(slot, address);
            })
            .await;
            Ok(())
        })
    });
}

#[test]
fn etcd_a_crash_of_the_leader_is_not_noticed() {
    prove(sites::etcd_trio(), holder(), |site: &EtcdSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || site.cluster.kill(site.cluster.wait_for_leader())).await;
            Ok(())
        })
    });
}

/// For less than the TTL since the last keep-alive; what a longer one does is in the store's documentation.
#[test]
fn etcd_a_frozen_leader_is_not_noticed() {
    prove(sites::etcd_trio(), holder(), |site: &EtcdSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || {
                let leader = site.cluster.wait_for_leader();
                site.cluster.pause(leader);
                std::thread::sleep(Duration::from_secs(3));
                site.cluster.resume(leader);
            })
            .await;
            Ok(())
        })
    });
}

/// Eight processes take, hold and give back without a pause, while a leader is killed, another freezes, a follower
/// freezes, and members come back. No lock has two holders, nobody starves, and nothing is left.
#[test]
fn etcd_a_crowd_is_served_through_faults() {
    prove(sites::etcd_trio(), holder(), |site: &EtcdSite| -> Proof<'_> {
        Box::pin(async {
            let arena = tempfile::tempdir().expect("a directory");
            let crowd = Crowd { tasks: 4, names: 4, millis: 14_000, arena: arena.path().to_owned() };
            let processes = processes_of(site, &crowd).await;
            let pause = || sleep(&BootClock, Duration::from_secs(2));
            let cluster = &site.cluster;
            pause().await;
            let leader = cluster.wait_for_leader();
            cluster.kill(leader);
            pause().await;
            cluster.launch(leader);
            pause().await;
            let leader = cluster.wait_for_leader();
            cluster.pause(leader);
            pause().await;
            cluster.resume(leader);
            pause().await;
            let follower = (cluster.wait_for_leader() + 1) % 3;
            cluster.pause(follower);
            pause().await;
            cluster.resume(follower);
            everybody_was_served(site, processes).await;
            Ok(())
        })
    });
}

/// As on etcd, with the same crowd; the follower is cut off from the others.
#[test]
fn zookeeper_a_crowd_is_served_through_faults() {
    prove(sites::zookeeper_trio(), holder(), |site: &ZooKeeperTrio| -> Proof<'_> {
        Box::pin(async {
            let arena = tempfile::tempdir().expect("a directory");
            let crowd = Crowd { tasks: 4, names: 4, millis: 14_000, arena: arena.path().to_owned() };
            let processes = processes_of(site, &crowd).await;
            let pause = || sleep(&BootClock, Duration::from_secs(2));
            let (ensemble, servers) = (&site.ensemble, site.ensemble.servers());
            pause().await;
            let leader = ensemble.leader().await;
            servers[leader].kill();
            pause().await;
            tokio::task::block_in_place(|| servers[leader].launch());
            pause().await;
            let leader = ensemble.leader().await;
            servers[leader].freeze();
            pause().await;
            servers[leader].thaw();
            pause().await;
            let follower = ensemble.follower().await;
            ensemble.cut_off(follower);
            pause().await;
            ensemble.reunite(follower);
            everybody_was_served(site, processes).await;
            Ok(())
        })
    });
}

#[test]
fn zookeeper_a_crash_of_the_leader_is_not_noticed() {
    prove(sites::zookeeper_trio(), holder(), |site: &ZooKeeperTrio| -> Proof<'_> {
        Box::pin(async {
            let leader = site.ensemble.leader().await;
            nobody_notices(site, || site.ensemble.servers()[leader].kill()).await;
            Ok(())
        })
    });
}

/// Eight processes with the crowd's tasks.
async fn processes_of(site: &dyn Site, crowd: &Crowd) -> Vec<JoinHandle<Served>> {
    let mut processes = Vec::new();
    for _ in 0..8 {
        let (mut holder, crowd) = (Holder::start(site).await, crowd.clone());
        processes.push(tokio::spawn(async move { holder.crowd(crowd).await }));
    }
    processes
}

async fn everybody_was_served(site: &dyn Site, processes: Vec<JoinHandle<Served>>) {
    let all = join_all(processes).await.into_iter().map(|served| served.expect("the crowd ends")).collect::<Vec<_>>();
    let errors: Vec<_> = all.iter().flat_map(|served| &served.errors).collect();
    assert!(errors.is_empty(), "{errors:?}");
    for served in all {
        assert!(served.least >= 1, "a task starved while {} grants were made", served.grants);
    }
    let left = site.leftovers().await;
    assert!(left.is_empty(), "{left:?}");
}

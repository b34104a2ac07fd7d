//! Failovers while eight processes hold and wait.

use std::time::Duration;

use fencepost_conformance::{
    Proof,
    holder::Holder,
    prove,
    site::Site,
    sites::{self, ClusterSite, SentinelSite},
};
use fencepost_core::clock::{BootClock, sleep};

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
            nobody_notices(site, || NAMES.iter().for_each(|name| site.set.fail_over(site.set.slot_of(name)))).await;
            Ok(())
        })
    });
}

#[test]
fn cluster_a_crash_of_a_master_is_not_noticed() {
    prove(sites::cluster_of_its_own(), holder(), |site: &ClusterSite| -> Proof<'_> {
        Box::pin(async {
            nobody_notices(site, || {
                site.set.settle();
                let slot = site.set.slot_of(NAMES[0]);
                let old = site.set.master_of(slot);
                let address = old.address();
                old.kill();
                site.set.await_other_master(slot, address);
            })
            .await;
            Ok(())
        })
    });
}

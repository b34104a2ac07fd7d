//! A majority of servers stays while eight processes hold and wait, and the others come and go.

use std::time::Duration;

use fencepost_conformance::{
    Proof,
    crowd::Crowd,
    holder::Holder,
    prove,
    sites::{self, RedlockSite},
};
use fencepost_core::clock::{BootClock, Clock, sleep};
use tokio::task::JoinSet;

const TTL: Duration = Duration::from_secs(6);

fn holder() -> &'static str {
    env!("CARGO_BIN_EXE_fencepost-holder")
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// With the guard: a server that comes back empty is not counted before it has been up for a TTL.
fn guarded(site: RedlockSite) -> RedlockSite {
    site.with_options("node_timeout=1s")
}

/// One server is killed and comes back empty, again and again; another stands still for moments. Nobody overlaps, nobody
/// starves, and no verb fails.
#[test]
fn nobody_overlaps_while_a_minority_comes_and_goes() {
    prove(async { sites::redlock().await }, holder(), |site: &RedlockSite| -> Proof<'_> {
        Box::pin(async {
            let arena = tempfile::tempdir().expect("a directory");
            let crowd = Crowd { tasks: 4, names: 3, millis: 8_000, arena: arena.path().to_owned() };
            let mut processes = JoinSet::new();
            for _ in 0..8 {
                let (mut process, crowd) = (Holder::start(site).await, crowd.clone());
                processes.spawn(async move { process.crowd(crowd).await });
            }
            let until = BootClock.now().after(ms(8_000));
            while BootClock.now() < until {
                site.servers[3].kill();
                site.servers[3].forget();
                site.servers[4].freeze();
                sleep(&BootClock, ms(300)).await;
                site.servers[3].launch();
                site.servers[4].thaw();
                sleep(&BootClock, ms(300)).await;
            }
            let mut grants = 0;
            for served in processes.join_all().await {
                assert!(served.errors.is_empty(), "{:?}", served.errors);
                assert!(served.least >= 1, "a task starved while {} grants were made", served.grants);
                grants += served.grants;
            }
            println!("{grants} grants");
            Ok(())
        })
    });
}

/// Four processes hold and four wait. One server restarts empty and one is gone, past the time at which what was not
/// renewed would have ended: nobody loses, and each waiter has its turn.
#[test]
fn holders_keep_and_waiters_get_what_a_minority_lost() {
    prove(async { guarded(sites::redlock().await) }, holder(), |site: &RedlockSite| -> Proof<'_> {
        Box::pin(async {
            sleep(&BootClock, TTL + ms(2_100)).await; // the servers have just started themselves
            let names = ["a", "b", "c", "d"];
            let (mut holders, mut waiters) = (Vec::new(), Vec::new());
            for name in names {
                let mut holder = Holder::start(site).await;
                holder.acquire(name, TTL).await;
                holders.push(holder);
                let mut waiter = Holder::start(site).await;
                waiter.start_acquiring(name, TTL).await;
                waiters.push(waiter);
            }
            site.servers[0].kill();
            site.servers[0].forget();
            site.servers[0].launch();
            site.servers[1].kill();
            sleep(&BootClock, TTL + TTL / 3).await;
            for (holder, name) in holders.iter_mut().zip(names) {
                assert_eq!(holder.look(name).await, None, "three servers of five have it");
            }
            for ((holder, waiter), name) in holders.iter_mut().zip(&mut waiters).zip(names) {
                holder.release(name).await;
                waiter.acquired(name).await;
            }
            Ok(())
        })
    });
}

//! Three servers that agree, and what happens to locks when one of them fails.

use std::{io::Write, path::Path};

use fencepost::{Correctness, Locks};
use fencepost_conformance::ledger;
use fencepost_core::{
    cells::{Change, Expected},
    claim::{Mode, Renewal, Want},
    error::ErrorKind,
};
use fencepost_servers::{Weather, ZooKeeperEnsemble};
use tokio::task::JoinSet;

use super::*;

/// Eight clients hold and wait while a leader is killed and comes back, and the next one is frozen and comes back: no
/// grant is made twice, and everybody is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_that_die_and_freeze_cost_no_exclusion() {
    const EACH: u64 = 40;
    let ensemble = ZooKeeperEnsemble::start(3).await;
    let log = tempfile::NamedTempFile::new().unwrap();
    let lines = || std::fs::read(log.path()).unwrap().iter().filter(|byte| **byte == b'\n').count();
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let locks = Locks::builder(&ensemble.url()).open().await.unwrap().fenced().unwrap();
        let path = log.path().to_owned();
        clients.spawn(async move { log_fences(&locks, EACH, &path).await });
    }
    let grants = async |more: usize| {
        let before = lines();
        eventually(SOON * 6, "grants go on", async || lines() >= before + more).await;
    };
    grants(20).await;
    let leader = ensemble.leader().await;
    ensemble.servers()[leader].kill();
    grants(20).await;
    ensemble.servers()[leader].launch();
    let leader = ensemble.leader().await;
    ensemble.servers()[leader].freeze();
    grants(20).await;
    ensemble.servers()[leader].thaw();
    within(SOON * 12, "everybody is served", clients.join_all()).await;
    assert_eq!(ledger::assert_rising(log.path()), 8 * EACH as usize);

    /// What cannot be given back while nobody agrees is given back by the client later.
    async fn log_fences(locks: &Locks<Correctness>, count: u64, log: &Path) {
        let mut log = std::fs::OpenOptions::new().append(true).open(log).unwrap();
        for _ in 0..count {
            let attempt = locks.lock("x").ttl(Duration::from_secs(3)).acquire().await;
            let mut lease = attempt.unwrap().acquired().expect("no limit was set");
            log.write_all(format!("{}\n", lease.fence()).as_bytes()).unwrap(); // one call, which appends in one piece
            if let Err(error) = lease.release().await {
                assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            }
        }
    }
}

/// The reason for the heartbeats. A follower that lost its leader goes on answering pings while the leader ends the
/// session behind it and the lock passes on. The holder believes no longer than the leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_a_follower_that_lost_its_leader_keeps_no_belief_alive() {
    let ensemble = ZooKeeperEnsemble::start(3).await;
    let (follower, leader) = (ensemble.follower().await, ensemble.leader().await);
    let cut_off = &ensemble.servers()[follower];
    let (store, other) = (open(&cut_off.url()).await.unwrap(), open(&ensemble.servers()[leader].url()).await.unwrap());
    let (holder, waiter) = (claim("x", ms(600)), claim("x", LONG));
    // A session that took longer to open than it lasts is none.
    eventually(SOON * 2, "it is granted", async || {
        matches!(store.claim(&holder, Patience::Once).await, Ok(Claimed::Granted(_)))
    })
    .await;
    queued(&other, &waiter).await;
    let pinging = cut_off.admin();
    let (mut proven, mut lost) = (None, false);
    // Well past the first heartbeats, since what counts is how they go on.
    let cut_at = BootClock.now().after(ms(900));
    let mut cut = false;
    let turn = other.turn(&waiter);
    tokio::pin!(turn);
    loop {
        if !cut && BootClock.now() >= cut_at {
            ensemble.cut_off(follower);
            cut = true;
        }
        tokio::select! {
            biased;
            grant = &mut turn => {
                grant.unwrap();
                break;
            }
            answer = store.renew(std::slice::from_ref(&holder)), if !lost => match answer.into_iter().next() {
                Some(Ok(Renewal::Renewed { counted_from, ttl })) => proven = Some(counted_from.moment().after(ttl)),
                Some(Ok(Renewal::Lost(_))) => lost = true,
                _ => {}
            },
            () = tokio::time::sleep(ms(50)) => {}
        }
    }
    let passed_on = BootClock.now();
    assert!(cut, "it was renewed until the cut");
    assert!(pinging.ping(), "the follower still tells its clients that all is well");
    let believed = proven.expect("it was renewed");
    assert!(believed <= passed_on, "believed {:?} too long", believed.since(passed_on));
    ensemble.reunite(follower);
    assert!(ensemble.serves_within(SOON * 4).await);
    eventually(SOON * 2, "the client goes on", async || {
        matches!(store.claim(&claim("y", ms(600)), Patience::Once).await, Ok(Claimed::Granted(_)))
    })
    .await;
}

/// Without a quorum nothing is granted and nothing passes on; with one again, the same clients go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_nothing_moves() {
    let ensemble = ZooKeeperEnsemble::start(3).await;
    let store = open(&format!("{}?timeout=1s", ensemble.url())).await.unwrap();
    let other = open(&format!("{}?timeout=1s", ensemble.url())).await.unwrap();
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    let fence = granted(&store, &holder).await.fence;
    queued(&other, &waiter).await;
    let alone = ensemble.follower().await;
    let dead: Vec<_> = (0..3).filter(|number| *number != alone).collect();
    dead.iter().for_each(|number| ensemble.servers()[*number].kill());
    let error = store.claim(&claim("y", LONG), Patience::Queue).await.expect_err("nobody can agree");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(tokio::time::timeout(ms(500), other.turn(&waiter)).await.is_err(), "it waits on");
    for number in &dead {
        let server = &ensemble.servers()[*number];
        std::thread::scope(|scope| drop(scope.spawn(|| server.launch())));
    }
    assert!(ensemble.serves_within(SOON * 4).await);
    eventually(SOON * 2, "the holder is renewed", async || {
        matches!(&store.renew(std::slice::from_ref(&holder)).await[0], Ok(Renewal::Renewed { .. }))
    })
    .await;
    store.release(&holder.holding).await.unwrap();
    let next = within(SOON * 2, "the turn comes", async {
        loop {
            // Two seconds alone, as above, and a waiter leaves the queue.
            match other.claim(&waiter, Patience::Queue).await {
                Ok(Claimed::Granted(grant)) => return grant,
                _ => tokio::time::sleep(ms(20)).await,
            }
        }
    })
    .await;
    assert!(next.fence > fence);
}

/// A server that takes connections and answers nothing: the first test of each call.
#[tokio::test]
async fn every_call_ends_on_a_server_that_is_frozen() {
    let server = ZooKeeperServer::start();
    let store = open(&format!("{}?timeout=700ms", server.url())).await.unwrap();
    let (holder, waiter, next) = (claim("x", LONG), claim("x", LONG), claim("y", LONG));
    granted(&store, &holder).await;
    queued(&store, &waiter).await;
    server.freeze();
    let limit = SOON;
    let unavailable = |error: Error| assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    unavailable(within(limit, "a claim", store.claim(&next, Patience::Once)).await.unwrap_err());
    unavailable(within(limit, "a claim", store.claim(&next, Patience::Queue)).await.unwrap_err());
    unavailable(
        within(limit, "a claim of another TTL", store.claim(&claim("z", ms(7000)), Patience::Once)).await.unwrap_err(),
    );
    unavailable(within(limit, "a release", store.release(&next.holding)).await.unwrap_err());
    unavailable(within(limit, "a listing", store.inspect(None)).await.unwrap_err());
    unavailable(within(limit, "a break", store.force(&name("x"), None)).await.unwrap_err());
    unavailable(within(limit, "a renewal", store.renew(std::slice::from_ref(&holder))).await.remove(0).unwrap_err());
    unavailable(within(SOON * 2, "opening", open(&server.url())).await.unwrap_err());
    server.thaw();
    eventually(SOON * 2, "the client goes on", async || {
        matches!(&store.renew(std::slice::from_ref(&holder)).await[0], Ok(Renewal::Renewed { .. }))
    })
    .await;
    server.freeze();
    within(SOON * 2, "closing", store.close()).await;
    server.thaw();
}

/// The same for what is beside locks.
#[tokio::test]
async fn every_other_call_ends_where_nothing_is_answered() {
    let place = Place::new();
    let (network, url) = place.network().await;
    let store = open(&format!("{url}?timeout=700ms")).await.unwrap();
    let holder = claim("x", LONG);
    granted(&store, &holder).await;
    network.set(Weather::Silence);
    for mode in [Mode::Shared, Mode::Permits { count: 1, of: 2 }] {
        for patience in [Patience::Once, Patience::Queue] {
            let holding = Holding::one(Want { name: name("y"), mode }, Owner::random().unwrap());
            let claim = Claim { holding, ..(*holder).clone() };
            within(SOON, "a claim of another kind", store.claim(&claim, patience)).await.unwrap_err();
        }
    }
    within(SOON, "a downgrade", store.downgrade(&holder)).await.unwrap_err();
    within(SOON, "a change of the limit", store.resize(&name("y"), 3)).await.unwrap_err();
    let cells = store.cells().unwrap();
    within(SOON, "a cell", cells.read(&name("c"))).await.unwrap_err();
    let change = Change::write(name("c"), Expected::Absent, *b"x").unwrap();
    within(SOON, "a change", cells.change(&change)).await.unwrap_err();
}

//! Three members: leaders that die and freeze, members that are lost, no majority, requests that come late.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::SeqCst};

use fencepost_core::{
    cells::{Change, Expected},
    claim::{Claim, Claimed, Mode, Patience, Release, Renewal, Want},
    clock::{BootClock, Clock, Moment, sleep},
    error::{Applied, ErrorKind},
    store::Store,
};
use fencepost_servers::{EtcdCluster, Network, Weather};
use futures_util::future::join_all;

use super::*;

/// Longer than an election and two tries of a call.
const FAILOVER: Duration = Duration::from_secs(15);

/// Holds and waits through what `happens`, and then hands over.
async fn survives(cluster: &EtcdCluster, happens: impl FnOnce(usize)) {
    let (a, b) = (client(cluster).await, client(cluster).await);
    let mut losses = losses(&a);
    let held = claim("x", TTL);
    let fence = granted(&a, &held).await.fence;
    let waiter = claim("x", TTL);
    let turn = queue(&b, &waiter).await;
    happens(cluster.wait_for_leader());
    within(FAILOVER, "it is renewed", async {
        while !matches!(renew(&a, &held).await, Ok(Renewal::Renewed { .. })) {
            sleep(&BootClock, ms(50)).await;
        }
    })
    .await;
    let other = claim("y", TTL);
    within(FAILOVER, "another lock is taken", async {
        while !matches!(a.claim(&other, Patience::Once).await, Ok(Claimed::Granted(_))) {
            sleep(&BootClock, ms(50)).await;
        }
    })
    .await;
    assert!(losses.try_recv().is_err(), "a change of the leader is no loss");
    assert!(!turn.is_finished(), "the lock is still held");
    within(FAILOVER, "it is given back", async { while a.release(&held.holding).await.is_err() {} }).await;
    let grant = match within(FAILOVER, "the turn comes", turn).await.unwrap() {
        Ok(grant) => grant,
        // As the client does: the same claim again.
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            within(FAILOVER, "the turn comes", async {
                loop {
                    match b.claim(&waiter, Patience::Queue).await {
                        Ok(Claimed::Granted(grant)) => return grant,
                        Ok(_) => {
                            if let Ok(grant) = b.turn(&waiter).await {
                                return grant;
                            }
                        }
                        Err(_) => sleep(&BootClock, ms(50)).await,
                    }
                }
            })
            .await
        }
    };
    assert!(grant.fence > fence);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed() {
    let cluster = EtcdCluster::start(3);
    survives(&cluster, |leader| cluster.kill(leader)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_freezes() {
    let cluster = EtcdCluster::start(3);
    survives(&cluster, |leader| cluster.pause(leader)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_killed_and_comes_back() {
    let cluster = EtcdCluster::start(3);
    survives(&cluster, |leader| {
        let follower = (leader + 1) % 3;
        cluster.kill(follower);
        cluster.launch(follower);
    })
    .await;
}

/// The client's own member loses the others: it must refuse, and the client go to one that does not.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_cut_off_from_the_others_is_left() {
    let cluster = EtcdCluster::start(3);
    let leader = cluster.wait_for_leader();
    let follower = (leader + 1) % 3;
    let third = (leader + 2) % 3;
    // It alone, first: what it is connected to is known then.
    let store = open(&format!("etcd://{},{}", cluster.address(follower), cluster.address(leader))).await.unwrap();
    let held = take(&store, "x", TTL).await;
    let turn = queue(&store, &claim("x", TTL)).await;
    cluster.pause(leader);
    cluster.pause(third);
    eventually(FAILOVER, "the follower has no leader", async || {
        cluster.metric(follower, "etcd_server_has_leader") == Some(0.0)
    })
    .await;
    let error = within(FAILOVER, "an answer", store.claim(&claim("y", TTL), Patience::Once)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    cluster.resume(leader);
    cluster.resume(third);
    within(FAILOVER, "it goes on", async {
        while !matches!(renew(&store, &held).await, Ok(Renewal::Renewed { .. })) {
            sleep(&BootClock, ms(50)).await;
        }
    })
    .await;
    turn.abort();
}

/// A follower that the others cannot reach, while its clients can. Who is connected to it alone is told in time; who can
/// go elsewhere goes on, and so does everybody once it is back.
#[tokio::test(flavor = "multi_thread")]
async fn t1_a_follower_that_is_cut_off_keeps_no_belief_alive() {
    let cluster = EtcdCluster::start_apart(3).await;
    let follower = (cluster.wait_for_leader() + 1) % 3;
    let cut_off = open(&format!("etcd://{}", cluster.address(follower))).await.unwrap();
    let anywhere = open(&cluster.url()).await.unwrap();
    let mut losses = losses(&anywhere);
    let (alone, kept) = (take(&cut_off, "x", ms(3000)).await, take(&anywhere, "y", TTL).await);
    let Renewal::Renewed { counted_from, ttl } = renew(&cut_off, &alone).await.unwrap() else { panic!("renewed") };
    let mut believed = counted_from.moment().after(ttl);
    let waiter = claim("x", TTL);
    let mut turn = queue(&client_of_others(&cluster, follower).await, &waiter).await;
    cluster.cut_off(follower);
    let passed_on = loop {
        tokio::select! {
            biased;
            grant = &mut turn => {
                grant.unwrap().unwrap();
                break BootClock.now();
            }
            renewal = renew(&cut_off, &alone) => {
                if let Ok(Renewal::Renewed { counted_from, ttl }) = renewal {
                    believed = counted_from.moment().after(ttl);
                }
                sleep(&BootClock, ms(50)).await;
            }
        }
    };
    assert!(believed <= passed_on, "believed {:?} too long", believed.since(passed_on));
    let error = within(FAILOVER, "an answer", cut_off.claim(&claim("z", TTL), Patience::Once)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    within(FAILOVER, "another member renews", async {
        while !matches!(renew(&anywhere, &kept).await, Ok(Renewal::Renewed { .. })) {
            sleep(&BootClock, ms(50)).await;
        }
    })
    .await;
    cluster.reunite(follower);
    let again = claim("z", TTL);
    within(FAILOVER, "its clients go on", async {
        while !matches!(cut_off.claim(&again, Patience::Once).await, Ok(Claimed::Granted(_))) {
            sleep(&BootClock, ms(50)).await;
        }
    })
    .await;
    assert!(losses.try_recv().is_err(), "nothing that was held elsewhere was lost");
}

/// Whoever takes part in a crowd, through whatever the store answers meanwhile: that it cannot be reached is no reason to end.
async fn takes_turns(store: Arc<EtcdStore>, inside: Arc<AtomicI64>, last: Arc<AtomicU64>, until: Moment) -> Moment {
    let mut served = BootClock.now();
    while BootClock.now() < until {
        let mine = claim("x", TTL);
        let grant = loop {
            let answer = match store.claim(&mine, Patience::Queue).await {
                Ok(Claimed::Granted(grant)) => Ok(grant),
                Ok(Claimed::Queued(_)) => store.turn(&mine).await,
                Ok(Claimed::Busy(busy)) => panic!("a place was asked for: {busy:?}"),
                Err(error) => Err(error),
            };
            match answer {
                Ok(grant) => break grant,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            sleep(&BootClock, ms(20)).await;
        };
        assert_eq!(inside.fetch_add(1, SeqCst), 0, "two hold at once");
        let fence = grant.fence.unwrap().get();
        assert!(last.swap(fence, SeqCst) < fence, "fences rise in the order of the grants");
        served = BootClock.now();
        inside.fetch_sub(1, SeqCst);
        while let Err(error) = store.release(&mine.holding).await {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
    }
    served
}

/// Twelve clients, of which some are connected to the follower that the others cannot reach any more. A call that finds it out
/// may fail, as unavailable and after its limit; nobody is passed for good, and two never hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_goes_on_when_a_follower_is_cut_off() {
    let cluster = EtcdCluster::start_apart(3).await;
    let follower = (cluster.wait_for_leader() + 1) % 3;
    let (inside, last) = (Arc::default(), Arc::default());
    let (until, mut crowd) = (BootClock.now().after(ms(9000)), tokio::task::JoinSet::new());
    for _ in 0..12 {
        let store = open(&cluster.url()).await.unwrap();
        crowd.spawn(takes_turns(store, Arc::clone(&inside), Arc::clone(&last), until));
    }
    sleep(&BootClock, ms(1000)).await;
    cluster.cut_off(follower);
    let cut_off = BootClock.now();
    sleep(&BootClock, ms(5000)).await;
    cluster.reunite(follower);
    for served in within(TTL * 2, "all are served", crowd.join_all()).await {
        assert!(served > cut_off, "somebody was served no more");
    }
}

async fn client_of_others(cluster: &EtcdCluster, but: usize) -> Arc<EtcdStore> {
    let others: Vec<_> =
        (0..cluster.size()).filter(|member| *member != but).map(|member| cluster.address(member).to_string()).collect();
    open(&format!("etcd://{}", others.join(","))).await.unwrap()
}

/// Every call ends, the outcome is told apart from "busy", and what was held is still held when they are back.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_every_call_ends_and_nothing_is_lost() {
    let cluster = EtcdCluster::start(3);
    let store = client(&cluster).await;
    let mut losses = losses(&store);
    let held = take(&store, "x", TTL).await;
    cluster.kill(0);
    cluster.kill(1);
    let limit = Duration::from_secs(12);
    for _ in 0..2 {
        let error = within(limit, "a claim ends", store.claim(&claim("y", TTL), Patience::Once)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = within(limit, "a renewal ends", renew(&store, &held)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = within(limit, "a listing ends", store.inspect(None)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let error = within(limit, "breaking ends", store.force(&name("x"), None)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    cluster.launch(0);
    cluster.launch(1);
    within(TTL, "it is renewed", async {
        while !matches!(renew(&store, &held).await, Ok(Renewal::Renewed { .. })) {
            sleep(&BootClock, ms(50)).await;
        }
    })
    .await;
    assert!(losses.try_recv().is_err(), "nothing was lost");
    assert_eq!(release(&store, &held).await, Release::Released);
}

/// The first test of each call: a server that is stopped and says nothing.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_frozen_server_costs_the_limit_at_each_call() {
    let cluster = EtcdCluster::start(1);
    let url = format!("{}?timeout=400ms&connect_timeout=400ms", cluster.url());
    let store = open(&url).await.unwrap();
    let (held, queued) = (take(&store, "x", TTL).await, claim("x", TTL));
    let turn = queue(&store, &queued).await;
    cluster.pause(0);
    let limit = ms(2500);
    let lost = claim("y", TTL);
    let error = within(limit, "claim", store.claim(&lost, Patience::Once)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    within(limit, "claim", store.claim(&claim("z", TTL), Patience::Queue)).await.unwrap_err();
    within(limit, "renew", renew(&store, &held)).await.unwrap_err();
    within(limit, "inspect", store.inspect(None)).await.unwrap_err();
    within(limit, "force", store.force(&name("x"), None)).await.unwrap_err();
    within(limit, "release", store.release(&held.holding)).await.unwrap_err();
    within(limit, "a new session", store.claim(&claim("z", TTL * 3), Patience::Once)).await.unwrap_err();
    within(limit, "open", open(&url)).await.unwrap_err();
    let told = within(SOON * 2, "a waiter is told, too", turn).await.unwrap();
    let told = told.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Unavailable, "{told}");
    cluster.resume(0);
    // What it took or gave back while nobody heard the answer is cleared up by the same owner values.
    for claim in [&lost, &held, &queued] {
        within(SOON * 2, "it answers again", async { while store.release(&claim.holding).await.is_err() {} }).await;
    }
    eventually(SOON * 2, "nothing is left", async || {
        store.inspect(None).await.is_ok_and(|locks| locks.iter().all(|lock| lock.name == name("z")))
    })
    .await;
    within(limit, "closing ends", async {
        cluster.pause(0);
        store.close().await;
    })
    .await;
    cluster.resume(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_frozen_server_costs_the_limit_for_what_is_beside_locks() {
    let cluster = EtcdCluster::start(1);
    let store = open(&format!("{}?timeout=400ms&connect_timeout=400ms", cluster.url())).await.unwrap();
    let held = take(&store, "x", TTL).await;
    cluster.pause(0);
    let limit = ms(2500);
    for mode in [Mode::Shared, Mode::Permits { count: 1, of: 2 }] {
        for patience in [Patience::Once, Patience::Queue] {
            let holding = Holding::one(Want { name: name("y"), mode }, Owner::random().unwrap());
            let claim = Claim { holding, ..(*claim("unused", TTL)).clone() };
            within(limit, "a claim of another kind", store.claim(&claim, patience)).await.unwrap_err();
        }
    }
    within(limit, "downgrade", store.downgrade(&held)).await.unwrap_err();
    within(limit, "resize", store.resize(&name("y"), 3)).await.unwrap_err();
    let cells = store.cells().unwrap();
    within(limit, "a cell", cells.read(&name("c"))).await.unwrap_err();
    let change = Change::write(name("c"), Expected::Absent, *b"x").unwrap();
    within(limit, "a change", cells.change(&change)).await.unwrap_err();
    cluster.resume(0);
}

/// A frozen member carries out a claim when it wakes, long after the client has given it back through another member.
/// On a shared session nothing would ever remove it.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_carried_out_late_has_no_effect() {
    let cluster = EtcdCluster::start(3);
    let follower = (cluster.wait_for_leader() + 1) % 3;
    let others: Vec<_> = (0..3).filter(|member| *member != follower).map(|member| cluster.address(member)).collect();
    for round in 0..4 {
        // Connected to the follower alone, with claims on their way to it that it never answers.
        let url = format!("etcd://{}?timeout=300ms&connect_timeout=300ms", cluster.address(follower));
        let store = open(&url).await.unwrap();
        take(&store, &format!("warm-up-{round}"), TTL).await;
        cluster.pause(follower);
        let late: Vec<_> = (0..20).map(|number| claim(&format!("late-{round}-{number}"), TTL)).collect();
        let claims = late.iter().map(|claim| store.claim(claim, Patience::Queue));
        for outcome in join_all(claims).await {
            assert_eq!(outcome.unwrap_err().applied(), Applied::Unknown);
        }
        let releases = late.iter().map(|claim| store.release(&claim.holding));
        join_all(releases).await;
        cluster.resume(follower);
        for claim in &late {
            within(FAILOVER, "it is given back", async { while store.release(&claim.holding).await.is_err() {} }).await;
        }
        // Whatever was still in its sockets has been carried out by now.
        sleep(&BootClock, ms(500)).await;
        let looking = open(&format!("etcd://{}", others[0])).await.unwrap();
        let left: Vec<_> = looking.inspect(None).await.unwrap().into_iter().map(|lock| lock.name.to_string()).collect();
        assert!(left.iter().all(|name| name.starts_with("warm-up")), "came back: {left:?}");
    }
}

/// The first try of a claim arrives when the second one has been answered long ago, and left nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn c1_an_answer_to_the_second_try_does_not_make_the_first_one_forgotten() {
    let cluster = EtcdCluster::start(1);
    let other = client(&cluster).await;
    let network = Network::before(cluster.address(0)).await.unwrap();
    let store = open(&format!("etcd://{}?timeout=400ms&connect_timeout=400ms", network.address)).await.unwrap();
    take(&store, "warm-up", TTL).await;
    let want = |lock: &str, mode| Want { name: name(lock), mode };
    let (exclusive, permit) = (Mode::Exclusive, Mode::Permits { count: 1, of: 1 });
    let claims =
        [vec![want("a", exclusive), want("b", exclusive)], vec![want("c", exclusive)], vec![want("d", permit)]];
    let claims = claims.map(|wants| {
        let holding = Holding::several(wants, Owner::random().unwrap()).unwrap();
        Arc::new(Claim { holding, ..(*claim("unused", TTL)).clone() })
    });
    let late = ms(4000);
    network.set(Weather::SlowRequests(late));
    for outcome in join_all(claims.iter().map(|claim| store.claim(claim, Patience::Once))).await {
        assert_eq!(outcome.unwrap_err().applied(), Applied::Unknown);
    }
    let sent = BootClock.now();
    network.set(Weather::Fair);
    let held = join_all(["b", "c", "d"].map(|lock| take(&other, lock, TTL))).await;
    // A permit of a lock that is held is refused.
    for (claim, busy) in claims.iter().zip([true, true, false]) {
        within(SOON, "an answer", async {
            loop {
                match store.claim(claim, Patience::Once).await {
                    Ok(claimed) => break assert!(busy && matches!(claimed, Claimed::Busy(_)), "{claimed:?}"),
                    Err(error) if error.kind() == ErrorKind::Mismatch => break assert!(!busy, "{error}"),
                    Err(_) => sleep(&BootClock, ms(20)).await,
                }
            }
        })
        .await;
    }
    for claim in &held {
        release(&other, claim).await;
    }
    assert!(BootClock.now() < sent.after(late), "free before the first tries arrive; the machine is too slow for this");
    sleep(&BootClock, late + ms(1000)).await;
    let left = other.inspect(None).await.unwrap();
    assert_eq!(left.len(), 1, "the first tries have come back: {left:?}");
}

/// A frozen cluster costs each of those who ask at once one try, however many they are.
#[tokio::test(flavor = "multi_thread")]
async fn those_who_ask_at_once_wait_for_one_try_of_their_session() {
    let cluster = EtcdCluster::start(1);
    let url = format!("{}?timeout=500ms&connect_timeout=500ms", cluster.url());
    let (without, with) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let ttl = Duration::from_secs(6); // past the half of it after 3 s
    take(&with, "x", ttl).await;
    cluster.pause(0);
    sleep(&BootClock, ms(3500)).await;
    for (store, what) in [(&without, "a session to be opened"), (&with, "one to be kept alive")] {
        let claims: Vec<_> = (0..40).map(|number| claim(&format!("x{number}"), ttl)).collect();
        let asked = join_all(claims.iter().map(|claim| store.claim(claim, Patience::Once)));
        for outcome in within(SOON, what, asked).await {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unavailable);
        }
    }
    cluster.resume(0);
}

/// A claim that the network holds up arrives when it was given back long ago.
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_claim_that_the_network_holds_up_has_no_effect() {
    let cluster = EtcdCluster::start(1);
    let network = Network::before(cluster.address(0)).await.unwrap();
    let store = open(&format!("etcd://{}?timeout=400ms&connect_timeout=400ms", network.address)).await.unwrap();
    take(&store, "warm-up", TTL).await;
    let late = ms(2500);
    network.set(Weather::SlowRequests(late));
    let (once, queued) = (claim("x", TTL), claim("y", TTL));
    let (a, b) = tokio::join!(store.claim(&once, Patience::Once), store.claim(&queued, Patience::Queue));
    assert_eq!([a.unwrap_err().applied(), b.unwrap_err().applied()], [Applied::Unknown; 2]);
    network.set(Weather::Fair);
    for claim in [&once, &queued] {
        within(SOON, "it is given back", async { while store.release(&claim.holding).await.is_err() {} }).await;
    }
    sleep(&BootClock, late + ms(1000)).await;
    let left = client(&cluster).await.inspect(None).await.unwrap();
    assert_eq!(left.len(), 1, "the late claims have come back: {left:?}");
}

/// A removal that the network holds up arrives when its claim is long gone, and the lock is held again by the same client.
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_removal_that_is_carried_out_late_takes_no_later_claim() {
    let cluster = EtcdCluster::start(1);
    let network = Network::before(cluster.address(0)).await.unwrap();
    let store = open(&format!("etcd://{}?timeout=400ms&connect_timeout=400ms", network.address)).await.unwrap();
    let first = take(&store, "x", TTL).await;
    let late = ms(2500);
    network.set(Weather::SlowRequests(late));
    let sent = BootClock.now();
    assert_eq!(store.release(&first.holding).await.unwrap_err().applied(), Applied::Unknown);
    network.set(Weather::Fair);
    within(SOON, "it is given back", async { while store.release(&first.holding).await.is_err() {} }).await;
    let second = claim("x", TTL);
    within(SOON, "it is free", async {
        while !matches!(store.claim(&second, Patience::Once).await, Ok(Claimed::Granted(_))) {}
    })
    .await;
    assert!(BootClock.now() < sent.after(late), "taken before the removal arrives; the machine is too slow for this");
    sleep(&BootClock, late + ms(1000)).await;
    assert!(matches!(renew(&store, &second).await.unwrap(), Renewal::Renewed { .. }), "the late removal took it away");
}

/// What the documentation says of it: fences repeat, so the counter must be made to pass the old one first.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_restored_snapshot_rewinds_fences_until_the_counter_has_passed_them() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let fence = async |store: &EtcdStore| {
        let mine = claim("x", TTL);
        let fence = granted(store, &mine).await.fence.unwrap().get();
        release(store, &mine).await;
        fence
    };
    fence(&store).await;
    let snapshot = cluster.snapshot();
    for _ in 0..10 {
        fence(&store).await;
    }
    let newest = fence(&store).await;
    cluster.restore(&snapshot);
    let store = client(&cluster).await;
    let rewound = fence(&store).await;
    assert!(rewound <= newest, "{rewound} after {newest}: the documentation can be relaxed");
    for _ in rewound..newest {
        cluster.etcdctl(&["put", "bump", "x"]);
    }
    assert!(fence(&store).await > newest);
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_dead_server_is_unavailable_at_once() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    take(&store, "warm-up", TTL).await;
    cluster.kill(0);
    let before = BootClock.now();
    for _ in 0..5 {
        let error = within(SOON, "the refusal", store.claim(&claim("x", TTL), Patience::Once)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    assert!(BootClock.now().since(before) < SOON);
}

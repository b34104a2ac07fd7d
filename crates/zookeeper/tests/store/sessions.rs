//! Sessions: shared by many locks, lost as a whole, opened anew.

use std::time::SystemTime;

use fencepost_core::{
    claim::{Release, Renewal},
    clock::{self, Moment},
    error::{Applied, ErrorKind},
    store::BoxFuture,
};
use fencepost_servers::Weather;

use super::*;

/// A clock that runs at a tenth of the machine's pace: it believes in a session long after the servers do.
#[derive(Debug)]
struct SlowClock(Moment);

impl Clock for SlowClock {
    fn now(&self) -> Moment {
        self.0.after(BootClock.now().since(self.0) / 10)
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        BootClock.sleep_until(self.0.after(until.since(self.0) * 10))
    }

    fn wall(&self) -> SystemTime {
        BootClock.wall()
    }
}

#[tokio::test]
async fn l1_one_session_lost_is_every_lock_on_it_lost() {
    let place = Place::new();
    // A third of it is the limit for an answer, and a thousand claims are asked at once.
    let ttl = ms(3000);
    let (network, url) = place.network().await;
    let store = open_on(&url, Arc::new(SlowClock(BootClock.now()))).await.unwrap();
    let mut told = losses(&store);
    let claims: Vec<_> = (0..1000).map(|number| claim(&format!("{number}"), ttl)).collect();
    let elsewhere = claim("elsewhere", LONG);
    futures_util::future::join_all(claims.iter().map(|claim| granted(&store, claim))).await;
    granted(&store, &elsewhere).await;
    network.set(Weather::Cut);
    let other = place.store().await;
    eventually(SOON * 2, "the servers free them", async || {
        other.inspect(None).await.unwrap().iter().all(|state| state.name == name("elsewhere"))
    })
    .await;
    network.set(Weather::Fair);
    let mut lost = std::collections::HashSet::new();
    while lost.len() < claims.len() {
        let (owner, reason) = within(SOON * 2, "every holder is told", told.recv()).await.unwrap();
        assert_eq!(reason, LossReason::SessionExpired);
        assert!(lost.insert(owner), "once each");
    }
    assert!(!lost.contains(elsewhere.owner()), "another TTL is another session");
    assert!(matches!(&store.renew(std::slice::from_ref(&claims[0])).await[0], Ok(Renewal::Lost(_))));
    // And the same client goes on.
    let again = claim("0", ttl);
    within(SOON * 2, "a new session", async {
        while !matches!(store.claim(&again, Patience::Once).await, Ok(Claimed::Granted(_))) {
            tokio::time::sleep(ms(10)).await;
        }
    })
    .await;
    assert_eq!(store.release(&claims[0].holding).await.unwrap(), Release::HeldByOther);
}

/// What a renewal counts from, and for how long; `None` for one that is lost. On a busy machine one may come to nothing, which
/// a watchdog would repeat as well.
async fn renewed(store: &ZooKeeperStore, holder: &Arc<Claim>) -> Option<(Moment, Duration)> {
    let repeated = async {
        loop {
            if let Ok(renewal) = store.renew(std::slice::from_ref(holder)).await.remove(0) {
                return renewal;
            }
        }
    };
    match within(SOON * 2, "a renewal is answered", repeated).await {
        Renewal::Renewed { counted_from, ttl } => Some((counted_from.moment(), ttl)),
        Renewal::Lost(_) => None,
    }
}

/// Believing ends before the servers can hand on, though nobody tells us anything.
#[tokio::test]
async fn t1_belief_ends_before_the_lock_passes_on() {
    let place = Place::new();
    let (network, url) = place.network().await;
    let (store, other) = (open(&url).await.unwrap(), place.store().await);
    let mut rounds = 0;
    while rounds < 5 {
        network.set(Weather::Fair);
        let (holder, waiter) = (claim("x", ms(1000)), claim("x", LONG));
        eventually(SOON, "it is granted", async || {
            matches!(store.claim(&holder, Patience::Once).await, Ok(Claimed::Granted(_)))
        })
        .await;
        queued(&other, &waiter).await;
        // Whatever of a heartbeat is under way by then.
        tokio::time::sleep(ms(300 + 90 * rounds)).await;
        let renewal = renewed(&store, &holder).await;
        network.set(if rounds % 2 == 0 { Weather::Silence } else { Weather::LostReplies });
        within(SOON * 2, "the lock passes on", other.turn(&waiter)).await.unwrap();
        let passed_on = BootClock.now();
        other.release(&waiter.holding).await.unwrap();
        // Lost when the machine stood still for longer than the session lasts.
        let Some((counted_from, ttl)) = renewal else { continue };
        let ends = counted_from.after(ttl);
        assert!(passed_on >= ends, "{:?} too early", ends.since(passed_on));
        rounds += 1;
    }
}

/// While all is well, at least a good third of the timeout is left, and a holder sees it rise.
#[tokio::test]
async fn t1_heartbeats_keep_belief_ahead() {
    let place = Place::new();
    let store = place.store().await;
    let holder = claim("x", ms(6000));
    let first = granted(&store, &holder).await.counted_from.moment();
    let mut last = first;
    for _ in 0..12 {
        let (counted_from, ttl) = renewed(&store, &holder).await.expect("nobody else wants it");
        let left = counted_from.after(ttl).since(BootClock.now());
        assert!(left > ms(2100), "{left:?} left of {ttl:?}");
        assert!(counted_from >= last);
        last = counted_from;
        tokio::time::sleep(ms(300)).await;
    }
    assert!(last > first, "it rises");
}

#[tokio::test]
async fn one_session_for_each_ttl_and_none_for_long_without_use() {
    let place = Place::new();
    let store = Arc::new(place.store().await);
    let connections = || {
        let answer = place.server.command("cons").unwrap();
        answer.lines().filter(|line| line.contains("to=7777") || line.contains("to=8888")).count()
    };
    let claims: Vec<_> = (0..50).map(|n| claim(&format!("{n}"), ms(if n % 2 == 0 { 7777 } else { 8888 }))).collect();
    futures_util::future::join_all(claims.iter().map(|claim| granted(&store, claim))).await;
    assert_eq!(connections(), 2, "single flight");
    for claim in &claims {
        store.release(&claim.holding).await.unwrap();
    }
    store.close().await;
    eventually(SOON, "closing ends them in the ensemble", async || connections() == 0).await;
}

/// C1: an opening that everybody gave up is there for the next one.
#[tokio::test]
async fn a_dropped_claim_does_not_keep_a_session_from_opening() {
    let place = Place::new();
    let store = place.store().await;
    for micros in 0..200 {
        let claim = claim("x", ms(5555));
        let _ = tokio::time::timeout(Duration::from_micros(micros), store.claim(&claim, Patience::Once)).await;
    }
    eventually(SOON * 2, "what they left goes by itself", async || place.nodes("x").is_empty()).await;
    granted(&store, &claim("x", ms(5555))).await;
}

/// The store alone, without a client that sends releases: nothing stays that nobody stands behind.
#[tokio::test]
async fn c1_what_nobody_awaits_or_renews_goes() {
    let place = Place::new();
    let store = place.store().await;
    let (holder, waiter) = (claim("x", ms(3000)), claim("x", LONG));
    granted(&store, &holder).await;
    queued(&store, &waiter).await;
    let _ = tokio::time::timeout(ms(50), store.turn(&waiter)).await;
    eventually(SOON + SOON, "both are gone", async || place.nodes("x").is_empty()).await;
    let answer = store.renew(std::slice::from_ref(&holder)).await.remove(0).unwrap();
    assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
}

/// The waiter may be anywhere in its asking when its store is closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let place = Place::new();
    let holder = place.store().await;
    granted(&holder, &claim("x", LONG)).await;
    for round in 0..60 {
        let (store, claim) = (Arc::new(place.store().await), claim("x", LONG));
        queued(&store, &claim).await;
        let waiting = store.clone();
        let turn = tokio::spawn(async move { waiting.turn(&claim).await });
        clock::sleep(&BootClock, Duration::from_micros(60 * round)).await;
        store.close().await;
        let error = within(SOON, "the waiter is told", turn).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

/// The first try made the node, its connection broke, and nobody could be asked after that.
#[tokio::test]
async fn c2_what_a_broken_connection_may_have_applied_stays_unknown() {
    let place = Place::new();
    let (network, url) = place.network().await;
    let store = open(&url).await.unwrap();
    let ttl = ms(600);
    // The session and the container are there before the weather changes.
    let before = claim("x", ttl);
    granted(&store, &before).await;
    store.release(&before.holding).await.unwrap();
    network.set(Weather::LostReplies);
    let lost = claim("x", ttl);
    let (answer, ()) = tokio::join!(store.claim(&lost, Patience::Once), async {
        eventually(SOON, "the servers have it", async || !place.nodes("x").is_empty()).await;
        network.set(Weather::Cut);
    });
    let error = answer.expect_err("no answer");
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
}

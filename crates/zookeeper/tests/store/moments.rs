//! What happens between two requests of one claim.

use fencepost_core::claim::{Mode, Release, Renewal, Want};
use tokio::task::JoinSet;

use super::{
    tap::{CHILDREN, CREATE, EXISTS, GET, Tap},
    *,
};

/// On the session that a store opens with, so that everything goes over one connection.
fn wanting(mode: Mode) -> Arc<Claim> {
    let holding = Holding::one(Want { name: name("x"), mode }, Owner::random().unwrap());
    Arc::new(Claim { holding, ttl: Ttl::DEFAULT, claimant: Arc::new(Claimant::here()) })
}

/// A store behind a tap, after a first lock was taken there.
async fn tapped(place: &Place) -> (Tap, Arc<ZooKeeperStore>) {
    let tap = Tap::before(place.server.address()).await;
    let store = Arc::new(open(&format!("zookeeper://{}{}", tap.address, place.chroot)).await.unwrap());
    let warm_up = wanting(Mode::Exclusive);
    granted(&store, &warm_up).await;
    assert_eq!(store.release(&warm_up.holding).await.unwrap(), Release::Released);
    (tap, store)
}

/// The container of a semaphore's slots is missing at first, and the claim looks whether its own node is there still.
#[tokio::test]
async fn c1_a_look_for_the_own_node_that_breaks_loses_no_place() {
    let place = Place::new();
    let (tap, store) = tapped(&place).await;
    tap.cut_at(EXISTS, "-p1of1-");
    granted(&store, &wanting(Mode::Permits { count: 1, of: 1 })).await;
    assert!(tap.is_done(), "the connection broke there");
    let claims: Vec<_> = place.nodes("x").into_iter().filter(|node| node.contains("-p1of1-")).collect();
    assert_eq!(claims.len(), 1, "{claims:?}");
}

/// Nobody asked for the claim any more, so that the sentry looks for its node and removes it; just then it is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn c1_a_repeated_claim_does_not_take_a_node_that_is_about_to_go() {
    let place = Place::new();
    let (tap, store) = tapped(&place).await;
    let (claim, lock) = (wanting(Mode::Exclusive), place.lock("x"));
    let claiming = || {
        let (store, claim) = (store.clone(), claim.clone());
        tokio::spawn(async move { store.claim(&claim, Patience::Once).await })
    };
    tap.hold_replies();
    let first = claiming();
    eventually(SOON, "its node is made", async || place.nodes("x").len() == 1).await;
    first.abort();
    tap.hold_replies_from(CHILDREN, &lock);
    tap.let_replies_through();
    eventually(SOON * 2, "the sentry looks for it", async || tap.is_done()).await;
    let made = tap.said().iter().filter(|said| said.is(CREATE, &lock)).count();
    let again = claiming();
    // It comes by now unless it waits for the sentry.
    let _ = tokio::time::timeout(ms(700), tap.heard(made + 1, CREATE, &lock)).await;
    tokio::time::sleep(ms(200)).await;
    tap.let_replies_through();
    let answer = within(SOON, "an answer", again).await.unwrap().unwrap();
    assert!(matches!(answer, Claimed::Granted(_)), "{answer:?}");
    tokio::time::sleep(ms(200)).await;
    assert_eq!(place.nodes("x").len(), 1, "the holder has its node");
    assert!(matches!(store.renew(std::slice::from_ref(&claim)).await[0], Ok(Renewal::Renewed { .. })));
}

/// Notes that were read before the reader's node was there may lack those of a writer that has come and gone since.
#[tokio::test]
async fn f3_notes_are_read_behind_the_readers_node_also_where_requests_stand_in_line() {
    let place = Place::new();
    let (tap, store) = tapped(&place).await;
    let first = wanting(Mode::Shared);
    granted(&store, &first).await; // marks the lock
    let before = tap.said().len();
    // More than a session takes at once, all of them before its task has its turn.
    let mut crowd = JoinSet::new();
    for _ in 0..600 {
        let store = store.clone();
        crowd.spawn(async move { store.inspect(Some(&name("elsewhere"))).await });
    }
    let claim = {
        let store = store.clone();
        tokio::spawn(async move { store.claim(&wanting(Mode::Shared), Patience::Once).await })
    };
    assert!(matches!(claim.await.unwrap(), Ok(Claimed::Granted(_))));
    let (said, lock) = (tap.said().split_off(before), place.lock("x"));
    let at = |operation| said.iter().position(|said| said.is(operation, &lock)).expect("it was asked");
    assert!(at(CREATE) > 256, "it stood in line: {}", at(CREATE));
    assert!(at(CREATE) < at(GET), "{} and {}", at(CREATE), at(GET));
}

/// A lock's claim in a semaphore's queue is about to go when the permit that was before it comes back. Whoever uses the semaphore
/// rightly meets it as the first one there.
#[tokio::test]
async fn a_claim_that_was_refused_refuses_nobody_on_its_way_out() {
    let place = Place::new();
    let (tap, mistaken) = tapped(&place).await;
    let (a, b) = (place.store().await, place.store().await);
    let (holder, next) = (wanting(Mode::Permits { count: 1, of: 1 }), wanting(Mode::Permits { count: 1, of: 1 }));
    granted(&a, &holder).await;
    tap.hold_replies();
    let wrong = wanting(Mode::Exclusive);
    let refused = {
        let (mistaken, wrong) = (mistaken.clone(), wrong.clone());
        tokio::spawn(async move { mistaken.claim(&wrong, Patience::Once).await })
    };
    eventually(SOON, "it stands there", async || place.nodes("x").iter().any(|node| node.contains("-x-"))).await;
    assert_eq!(a.release(&holder.holding).await.unwrap(), Release::Released);
    let (claimed, ()) = tokio::join!(b.claim(&next, Patience::Once), async {
        tokio::time::sleep(ms(60)).await;
        refused.abort(); // whoever asks again has the name for himself now
        tap.let_replies_through();
        assert_eq!(mistaken.release(&wrong.holding).await.unwrap(), Release::Released);
    });
    assert!(matches!(claimed.unwrap(), Claimed::Granted(_)));
}

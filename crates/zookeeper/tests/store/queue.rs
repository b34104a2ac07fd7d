//! The queue: what stands in it, in which order, and what gets lost on the way to it.

use fencepost_core::{
    claim::{Release, Renewal},
    error::ErrorKind,
};
use fencepost_servers::Weather;

use super::*;

#[tokio::test]
async fn stray_nodes_do_not_stand_in_the_way() {
    let place = Place::new();
    let store = place.store().await;
    granted(&store, &claim("x", LONG)).await;
    store.close().await;
    for stray in ["config", "0000000000", "lock-0000000000", "_c_0-lock-0000000000", "é"] {
        place.admin.create(&format!("{}/{stray}", place.lock("y")), b"").unwrap_or_else(|_| {
            let _ = place.admin.create(&place.lock("y"), b"");
            place.admin.create(&format!("{}/{stray}", place.lock("y")), b"").unwrap();
        });
    }
    let store = place.store().await;
    granted(&store, &claim("y", LONG)).await;
    let listed = store.inspect(Some(&name("y"))).await.unwrap();
    assert_eq!((listed[0].holders.len(), listed[0].waiters.len()), (1, 0));
}

/// Nobody would ever remove it.
#[tokio::test]
async fn c4_a_node_without_a_session_is_reported_wherever_it_stands() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    granted(&a, &holder).await;
    // In the middle of the queue.
    let lasting = format!("{}/{}-x-0000000001", place.lock("x"), "0".repeat(40));
    place.admin.create(&lasting, b"a copy").unwrap();
    queued(&b, &waiter).await;
    let error = within(SOON, "no endless wait", b.turn(&waiter)).await.expect_err("nobody would release it");
    assert_eq!(error.kind(), ErrorKind::ForeignValue, "{error}");
    assert!(error.to_string().contains("0000000001") && error.advice().is_some(), "it names the node: {error}");
}

/// Source: CURATOR-79; go-zookeeper 229.
#[tokio::test]
async fn a_node_whose_creation_was_never_answered_keeps_its_place() {
    let place = Place::new();
    let other = place.store().await;
    let held = claim("x", LONG);
    granted(&other, &held).await;
    let (network, url) = place.network().await;
    let store = open(&format!("{url}?timeout=500ms")).await.unwrap();
    granted(&store, &claim("warm-up", LONG)).await;
    network.set(Weather::LostReplies);
    let waiter = claim("x", LONG);
    store.claim(&waiter, Patience::Queue).await.expect_err("no answer");
    eventually(SOON, "the servers have it all the same", async || place.nodes("x").len() == 2).await;
    let made = place.nodes("x");
    queued(&other, &claim("x", LONG)).await;
    network.set(Weather::Fair);
    eventually(SOON * 2, "it is answered after the reconnect", async || {
        matches!(store.claim(&waiter, Patience::Queue).await, Ok(Claimed::Queued(_)))
    })
    .await;
    let now = place.nodes("x");
    assert!(made.iter().all(|node| now.contains(node)) && now.len() == 3, "one node for one claim: {now:?}");
    assert_eq!(other.release(&held.holding).await.unwrap(), Release::Released);
    within(SOON, "it has its first place", store.turn(&waiter)).await.unwrap();
}

/// A node of an earlier session is no grant, whatever its name: that session may be over at any moment.
#[tokio::test]
async fn a_node_of_another_session_is_not_believed() {
    let place = Place::new();
    let (network, url) = place.network().await;
    let owner = Owner::random().unwrap();
    let first = open(&url).await.unwrap();
    let old = granted(&first, &claim_of("x", LONG, owner)).await;
    network.set(Weather::Cut); // it lives on in the ensemble, and nobody keeps it alive
    let second = place.store().await;
    let new = granted(&second, &claim_of("x", LONG, owner)).await;
    assert!(new.fence > old.fence, "a grant of its own: {new:?} after {old:?}");
    assert_eq!(place.nodes("x").len(), 1, "and the old node is gone");
}

/// Who looked only for the node before its own would believe that it holds.
#[tokio::test]
async fn a_waiter_whose_own_node_is_gone_does_not_believe_in_its_turn() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    granted(&a, &holder).await;
    let held = place.nodes("x").remove(0);
    queued(&b, &waiter).await;
    let own = place.nodes("x").into_iter().find(|node| *node != held).unwrap();
    place.admin.delete_all(&format!("{}/{own}", place.lock("x")));
    a.release(&holder.holding).await.unwrap();
    let error = within(SOON, "it is told", b.turn(&waiter)).await.expect_err("it stands nowhere");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a repeated claim helps: {error}");
    assert!(matches!(b.claim(&waiter, Patience::Queue).await.unwrap(), Claimed::Granted(_)));
}

#[tokio::test]
async fn a_container_that_vanishes_is_made_anew() {
    let place = Place::new();
    let store = place.store().await;
    let mut last = None;
    for _ in 0..3 {
        let claim = claim("x", LONG);
        let grant = granted(&store, &claim).await;
        assert!(grant.fence > last, "its counter starts again, the fence does not");
        last = grant.fence;
        store.release(&claim.holding).await.unwrap();
        place.admin.delete_all(&format!("{}/tests", place.chroot));
    }
    let lock = place.lock("x");
    granted(&store, &claim("x", LONG)).await;
    assert!(place.admin.read(&lock).unwrap().1 > 0, "it is there again");
}

/// The holder's node, its container and all: a loss, told without asking, and everybody else comes in.
#[tokio::test]
async fn l4_a_queue_that_is_removed_under_everybody() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let mut told = losses(&a);
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    place.admin.delete_all(&format!("{}/tests", place.chroot));
    let (owner, reason) = within(SOON, "the holder is told", told.recv()).await.unwrap();
    assert_eq!((owner, reason), (*holder.owner(), LossReason::Deleted));
    let error = within(SOON, "the waiter is told", b.turn(&waiter)).await.expect_err("its place is gone");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    granted(&b, &waiter).await;
    assert!(matches!(&a.renew(std::slice::from_ref(&holder)).await[0], Ok(Renewal::Lost(LossReason::TakenOver))));
}

/// Somebody writes into the holder's node: that is no loss, and the watch is set anew.
#[tokio::test]
async fn l4_a_node_that_was_written_to_is_watched_on() {
    let place = Place::new();
    let store = place.store().await;
    let mut told = losses(&store);
    let holder = claim("x", LONG);
    granted(&store, &holder).await;
    let node = format!("{}/{}", place.lock("x"), place.nodes("x")[0]);
    eventually(SOON, "it is watched", async || watches(&place) > 0).await;
    place.admin.write(&node, b"scribbled").unwrap();
    eventually(SOON, "it is watched again", async || watches(&place) > 0).await;
    assert!(told.try_recv().is_err());
    place.admin.delete(&node).unwrap();
    let (owner, reason) = within(SOON, "the holder is told", told.recv()).await.unwrap();
    assert_eq!((owner, reason), (*holder.owner(), LossReason::Deleted));

    fn watches(place: &Place) -> usize {
        let by_path = place.server.command("wchp").unwrap();
        by_path.lines().filter(|line| line.starts_with(&place.lock("x"))).count()
    }
}

/// W2: whoever leaves the middle of the queue wakes one, who looks and waits on.
#[tokio::test]
async fn a_waiter_that_leaves_wakes_only_the_one_behind_it() {
    let server = ZooKeeperServer::start(); // whose figures are nobody else's
    let store = Arc::new(open(&server.url()).await.unwrap());
    let holder = claim("x", LONG);
    granted(&store, &holder).await;
    let waiters: Vec<_> = (0..20).map(|_| claim("x", LONG)).collect();
    let mut turns = Vec::new();
    for waiter in &waiters {
        queued(&store, waiter).await;
        let (store, waiter) = (store.clone(), waiter.clone());
        turns.push(tokio::spawn(async move { store.turn(&waiter).await }));
    }
    tokio::time::sleep(ms(200)).await;
    let before = received(&server).await;
    turns.remove(10).abort();
    store.release(&waiters[10].holding).await.unwrap();
    tokio::time::sleep(ms(100)).await;
    let asked = received(&server).await - before;
    assert!(asked <= 12.0, "a release, a look of the one behind and a new watch, heartbeats: {asked}");
    assert_eq!(turns.iter().filter(|turn| turn.is_finished()).count(), 0);
}

/// A renewal may be dropped at any point (C1), also in the midst of having the grant watched.
#[tokio::test]
async fn l4_a_renewal_that_was_dropped_does_not_leave_its_grant_unwatched() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let mut told = losses(&a);
    let claims = [claim("x", LONG)];
    granted(&a, &claims[0]).await;
    tokio::select! {
        biased;
        renewed = a.renew(&claims) => panic!("nothing was answered yet: {renewed:?}"),
        () = std::future::ready(()) => {}
    }
    b.force(&name("x"), None).await.unwrap();
    assert!(matches!(&a.renew(&claims).await[0], Ok(Renewal::Lost(_))), "the next one finds it broken");
    let (owner, _) = within(SOON, "it is told", told.recv()).await.unwrap();
    assert_eq!(owner, *claims[0].owner());
}

//! Waits whose event does not come, and waits that must hold up nobody else.

use std::{fs, sync::Arc, time::Duration};

use fencepost_core::{
    clock::{self, BootClock, Clock},
    error::{Applied, ErrorKind},
    store::Store,
};
use rustix::fs::{FlockOperation, Mode, OFlags, flock};

use super::{Scene, claim, fence, granted, queued, refused, within};

/// A look at a ticket locks it for that moment. Should two look at once, and the first be killed before it has removed
/// the ticket of a dead one, the second has seen a living one, and no event will tell it otherwise.
#[tokio::test]
async fn w1_a_waiter_behind_another_finds_out_although_no_event_tells_it() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let first = queued(&store, "x").await;
    let second = queued(&store, "x").await;
    let ticket = scene.file("x.queue").join(format!("{:020}", 1));
    let dead = fs::read(&ticket).unwrap();
    store.release(&first.holding).await.unwrap();
    fs::write(&ticket, dead).unwrap();
    // Closing a file that was opened to be read makes no event for those who wait.
    let looked_at = rustix::fs::open(&ticket, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    flock(&looked_at, FlockOperation::NonBlockingLockExclusive).unwrap();
    let turn = tokio::spawn({
        let (store, second) = (Arc::clone(&store), second.clone());
        async move { store.turn(&second).await }
    });
    clock::sleep(&BootClock, Duration::from_millis(100)).await;
    drop(looked_at);
    store.release(&held.holding).await.unwrap();
    within(turn).await.unwrap().unwrap();
}

/// A holder whose forked child still has the descriptor unlocks without an event.
#[tokio::test]
async fn w1_the_first_waiter_finds_out_although_no_event_tells_it() {
    let scene = Scene::new();
    let store = scene.store();
    fence(&store, "x").await;
    let silent = rustix::fs::open(scene.file("x.lock"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    flock(&silent, FlockOperation::NonBlockingLockExclusive).unwrap();
    let waiter = queued(&store, "x").await;
    let turn = tokio::spawn({
        let (store, waiter) = (Arc::clone(&store), waiter.clone());
        async move { store.turn(&waiter).await }
    });
    clock::sleep(&BootClock, Duration::from_millis(100)).await;
    flock(&silent, FlockOperation::Unlock).unwrap();
    within(turn).await.unwrap().unwrap();
}

/// This test has one thread for both.
#[tokio::test]
async fn a_floor_that_another_has_holds_up_no_other_task() {
    let scene = Scene::new();
    let store = scene.store();
    fence(&store, "x").await;
    let floor = rustix::fs::open(scene.file(".floor"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    flock(&floor, FlockOperation::NonBlockingLockExclusive).unwrap();
    let new = claim("new");
    let (grant, ()) = tokio::join!(granted(&store, &new), async {
        clock::sleep(&BootClock, Duration::from_millis(50)).await;
        drop(floor);
    });
    assert!(grant.fence.is_some());
}

#[tokio::test]
async fn c2_a_floor_that_is_never_given_up_is_named() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let floor = rustix::fs::open(scene.file(".floor"), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).unwrap();
    flock(&floor, FlockOperation::NonBlockingLockExclusive).unwrap();
    let before = BootClock.now();
    let error = within(refused(&store, "new")).await;
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert!(error.to_string().contains("look for a stopped process"), "{error}");
    assert!(BootClock.now().since(before) > Duration::from_secs(1), "others have it for an fsync");
    // Who has a range already does without.
    store.release(&held.holding).await.unwrap();
    fence(&store, "x").await;
}

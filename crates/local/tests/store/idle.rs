//! The file of a lock that was given back stays open for the next claim, and nobody may notice.

use std::{fs, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, Patience, Release},
    clock::{self, BootClock, Clock},
    store::Store,
};

use super::{Scene, claim, fence, granted, queued};

#[tokio::test]
async fn a_file_that_was_moved_while_it_lay_open_is_nobodys_lock() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let last = fence(&store, "x").await;
    fs::rename(scene.file("x.lock"), scene.file("away")).unwrap();
    let held = claim("x");
    assert!(granted(&other, &held).await.fence.unwrap().get() > last);
    let answer = store.claim(&claim("x"), Patience::Once).await.unwrap();
    assert!(matches!(answer, Claimed::Busy(_)), "{answer:?}");
    other.release(&held.holding).await.unwrap();
    fence(&store, "x").await;
}

#[tokio::test]
async fn a_directory_that_was_replaced_is_noticed_soon() {
    let scene = Scene::new();
    let store = scene.store();
    fence(&store, "x").await;
    fence(&store, "x").await;
    let path = scene.file("");
    fs::rename(&path, scene.directory.path().join("away")).unwrap();
    let other = scene.store();
    granted(&other, &claim("x")).await;
    // By then the directory is looked for again.
    clock::sleep(&BootClock, Duration::from_millis(100)).await;
    let answer = store.claim(&claim("x"), Patience::Once).await.unwrap();
    assert!(matches!(answer, Claimed::Busy(_)), "{answer:?}");
}

#[tokio::test]
async fn f4_a_file_that_was_removed_while_it_lay_open_is_left_alone() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let mut last = 0;
    for round in 0..6 {
        fs::remove_file(scene.file("x.lock")).ok();
        let taker = if round % 2 == 0 { &store } else { &other };
        for _ in 0..2 {
            let next = fence(taker, "x").await;
            assert!(next > last);
            last = next;
        }
    }
}

#[tokio::test]
async fn what_lies_open_is_bounded_and_closed_with_the_store() {
    let scene = Scene::new();
    let store = scene.store();
    let open_files = || {
        let files = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
        files.filter(|file| file.starts_with(scene.directory.path()) && file.is_file()).count()
    };
    for number in 0..200 {
        fence(&store, &format!("lock-{number}")).await;
        fence(&store, &format!("lock-{number}")).await;
    }
    let open = open_files();
    assert!((1..=64).contains(&open), "{open}");
    store.close().await;
    assert_eq!(open_files(), 0);
}

/// A close is what wakes a waiter, so that a file that stays open must not be one that somebody waits for, whenever he
/// came. A lost event costs the backstop of a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w1_no_waiter_is_missed_by_a_release_that_keeps_its_file_open() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let mut slow = 0;
    for round in 0..200 {
        // Without a waiter, so that the mark of the last one goes and the file stays open.
        fence(&store, "x").await;
        fence(&store, "x").await;
        let held = claim("x");
        granted(&store, &held).await;
        let before = BootClock.now();
        let waits = tokio::spawn({
            let other = Arc::clone(&other);
            async move {
                let waiter = claim("x");
                let claimed = other.claim(&waiter, Patience::Queue).await.unwrap();
                if matches!(claimed, Claimed::Queued(_)) {
                    other.turn(&waiter).await.unwrap();
                }
                assert_eq!(other.release(&waiter.holding).await.unwrap(), Release::Released);
            }
        });
        for _ in 0..(round * 37) % 400 {
            std::hint::spin_loop();
            tokio::task::yield_now().await;
        }
        assert_eq!(store.release(&held.holding).await.unwrap(), Release::Released);
        super::within(waits).await.unwrap();
        slow += u32::from(BootClock.now().since(before) > Duration::from_millis(900));
        assert!(slow <= 2, "in round {round} the third waited for the backstop");
    }
}

/// Tickets tell of the one before, and the record of the lock of the one who was served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w3_the_order_holds_when_some_give_up() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let held = claim("x");
    granted(&store, &held).await;
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut stay = Vec::new();
    for number in 0..40 {
        let store = if number % 2 == 0 { &store } else { &other };
        let waiter = queued(store, "x").await;
        let (turning, turned, sender) = (Arc::clone(store), waiter.clone(), sender.clone());
        let task = tokio::spawn(async move {
            turning.turn(&turned).await.unwrap();
            sender.send(number).unwrap();
            turning.release(&turned.holding).await.unwrap();
        });
        if number % 3 == 1 {
            task.abort();
            stay.push((number, Some(waiter)));
        } else {
            stay.push((number, None));
        }
    }
    for (number, waiter) in &stay {
        if let Some(waiter) = waiter {
            let store = if number % 2 == 0 { &store } else { &other };
            assert_eq!(store.release(&waiter.holding).await.unwrap(), Release::Released);
        }
    }
    store.release(&held.holding).await.unwrap();
    for (number, waiter) in stay {
        if waiter.is_none() {
            assert_eq!(super::within(order.recv()).await, Some(number));
        }
    }
    assert!(!scene.file("x.queue").join(format!("{:020}", 1)).exists());
}

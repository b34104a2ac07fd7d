//! A kernel without watches to give, a full disk, a directory that turns read-only.

use std::{fs, path::Path, process::Command, time::Duration};

use fencepost_core::{
    claim::{Claimed, LossReason, Patience, Release},
    clock::{self, BootClock},
    error::{Applied, ErrorKind},
    store::{LossReporter, Store},
};

use super::{
    Scene, claim,
    elsewhere::{in_namespaces, task},
    entries, fence, granted, open, queued, refused, within,
};

/// Both of the kernel's limits: no inotify instance at all, and an instance without a watch.
#[tokio::test]
async fn l4_w1_holders_are_told_and_waiters_woken_where_there_are_no_file_events() {
    if let Some((_, directory)) = task() {
        return without_file_events(&directory).await;
    }
    for limit in ["max_inotify_instances", "max_inotify_watches"] {
        let scene = Scene::new();
        in_namespaces(
            "surroundings::l4_w1_holders_are_told_and_waiters_woken_where_there_are_no_file_events",
            limit,
            &format!("echo 0 >/proc/sys/user/{limit}"),
            scene.directory.path(),
        );
    }
}

async fn without_file_events(directory: &Path) {
    let instance = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    let watch = instance.and_then(|i| rustix::fs::inotify::add_watch(i, "/", rustix::fs::inotify::WatchFlags::ATTRIB));
    watch.expect_err("there are file events here, so that this would show nothing");
    let (store, other) = (open(directory).unwrap(), open(directory).unwrap());
    let (reporter, mut losses) = LossReporter::channel();
    store.report_losses(reporter);
    let held = claim("x");
    let grant = granted(&store, &held).await;
    let waiters = [queued(&other, "x").await, queued(&other, "x").await];
    // By then the one look at every file, which follows the setting up of a watch, is over.
    clock::sleep(&BootClock, Duration::from_millis(300)).await;
    other.force(held.name(), grant.fence).await.unwrap();
    assert_eq!(within(losses.recv()).await, Some((*held.owner(), LossReason::Deleted)));
    // The first by the break, the second by the first one's release.
    let turns = waiters.map(|waiter| {
        let other = other.clone();
        tokio::spawn(async move {
            other.turn(&waiter).await.unwrap();
            other.release(&waiter.holding).await.unwrap()
        })
    });
    for turn in turns {
        assert_eq!(within(turn).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn c4_a_full_disk_refuses_new_locks_and_keeps_the_old_ones() {
    if let Some((_, directory)) = task() {
        return on_a_small_disk(&directory).await;
    }
    let scene = Scene::new();
    in_namespaces(
        "surroundings::c4_a_full_disk_refuses_new_locks_and_keeps_the_old_ones",
        "fill",
        "mount -t tmpfs -o size=256k none \"$1\"",
        scene.directory.path(),
    );
}

async fn on_a_small_disk(directory: &Path) {
    let (store, other) = (open(directory).unwrap(), open(directory).unwrap());
    let last = fence(&store, "old").await;
    let held = claim("held");
    granted(&store, &held).await;
    let error = loop {
        match store.claim(&claim(&format!("new-{}", entries(directory).len())), Patience::Once).await {
            Ok(Claimed::Granted(_)) => fs::write(directory.join(entries(directory).len().to_string()), [1; 4096]).ok(),
            Ok(other) => panic!("{other:?}"),
            Err(error) => break error,
        };
    };
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert!(error.to_string().contains("make room on the disk"), "{error}");
    // What has its page goes on as before.
    assert!(fence(&other, "old").await > last);
    assert_eq!(store.release(&held.holding).await.unwrap(), Release::Released);
    let held = claim("held");
    granted(&store, &held).await;
    // A place in the queue needs room, and nothing of it stays.
    let error = other.claim(&claim("held"), Patience::Queue).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert_eq!(store.inspect(None).await.unwrap().iter().map(|state| state.waiters.len()).sum::<usize>(), 0);
    // And with room again, the lock that was refused is a new one.
    for entry in entries(directory).iter().filter(|entry| entry.parse::<u32>().is_ok()) {
        fs::remove_file(directory.join(entry)).unwrap();
    }
    let waiter = queued(&other, "held").await;
    assert_eq!(store.release(&held.holding).await.unwrap(), Release::Released);
    within(other.turn(&waiter)).await.unwrap();
    fence(&store, "refused").await;
}

#[tokio::test]
async fn c4_a_directory_that_turns_read_only_is_named_at_once() {
    if let Some((_, directory)) = task() {
        return on_a_disk_that_turns_read_only(&directory).await;
    }
    let scene = Scene::new();
    in_namespaces(
        "surroundings::c4_a_directory_that_turns_read_only_is_named_at_once",
        "remount",
        "mount -t tmpfs none \"$1\"",
        scene.directory.path(),
    );
}

async fn on_a_disk_that_turns_read_only(directory: &Path) {
    let remount = |how| Command::new("mount").args(["-o", how]).arg(directory).status().unwrap().success();
    let store = open(directory).unwrap();
    let last = fence(&open(directory).unwrap(), "x").await;
    assert!(remount("remount,ro"));
    for name in ["x", "new"] {
        let error = refused(&store, name).await;
        assert_eq!((error.kind(), error.applied()), (ErrorKind::PermissionDenied, Applied::No), "{error}");
        assert!(error.to_string().contains("must be writable"), "{error}");
    }
    assert_eq!(open(directory).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(store.inspect(None).await.unwrap(), [], "looking needs no right to write");
    assert!(remount("remount,rw"));
    assert!(fence(&store, "x").await > last);
}

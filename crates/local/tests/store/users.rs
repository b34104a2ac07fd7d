//! A directory that users who do not trust each other share.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use fencepost_core::{claim::Patience, store::Store};

use super::{
    Scene, claim,
    elsewhere::{Doer, say, skip, task},
    granted, open, queued, within,
};

/// Two accounts that own nothing here.
const SOMEBODY: u32 = 61_001;
const SOMEBODY_ELSE: u32 = 61_002;

/// In a sticky directory only its own user may remove a dead waiter's ticket.
#[tokio::test]
async fn w1_a_dead_waiter_of_another_user_blocks_nobody() {
    const TEST: &str = "users::w1_a_dead_waiter_of_another_user_blocks_nobody";
    if let Some((task, directory)) = task() {
        return wait_as_another_user(&task, &directory).await;
    }
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "only root can act as several users");
    }
    let scene = Scene::new();
    let open_to_all = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    open_to_all(scene.directory.path(), 0o1777);
    // The executable may lie where others cannot reach it.
    let executable = scene.directory.path().join("test");
    fs::copy(std::env::current_exe().unwrap(), &executable).unwrap();
    open_to_all(&executable, 0o755);
    let locks = scene.directory.path().join("locks");
    fs::create_dir(&locks).unwrap();
    open_to_all(&locks, 0o1777);

    let store = open(&locks).unwrap();
    let held = claim("x");
    granted(&store, &held).await;
    let mut dies = Doer::start(&executable, Some(SOMEBODY), TEST, "wait", &locks);
    dies.await_word("queued");
    let mut waits = Doer::start(&executable, Some(SOMEBODY_ELSE), TEST, "wait", &locks);
    waits.await_word("queued");
    dies.kill();
    store.release(&held.holding).await.unwrap();
    waits.await_word("granted");
    waits.kill();
    // Nor does what the two dead ones left keep a newcomer out.
    let mut newcomer = Doer::start(&executable, Some(SOMEBODY_ELSE), TEST, "take", &locks);
    newcomer.await_word("granted");
}

async fn wait_as_another_user(task: &str, directory: &Path) {
    let store = open(directory).unwrap();
    if task == "take" {
        within(async {
            while !matches!(
                store.claim(&claim("x"), Patience::Once).await.unwrap(),
                fencepost_core::claim::Claimed::Granted(_)
            ) {
                tokio::task::yield_now().await;
            }
        })
        .await;
        return say("granted");
    }
    let waiter = queued(&store, "x").await;
    say("queued");
    within(store.turn(&waiter)).await.unwrap();
    say("granted");
    std::future::pending::<()>().await;
}

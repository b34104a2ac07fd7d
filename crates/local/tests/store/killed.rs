//! Processes that are killed in the midst of whatever they do.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::Write,
    path::Path,
    time::Duration,
};

use fencepost_core::{
    claim::{Claimed, Patience},
    clock::{self, BootClock},
    store::Store,
};

use super::{
    Scene, claim,
    elsewhere::{Doer, say, task},
    open,
};

const TAKERS: usize = 3;
const KILLS: usize = 60;

/// The log is written by whoever holds, so that its order is that of the grants, removals by hand aside.
#[tokio::test]
async fn f1_fences_rise_over_kills_at_any_point() {
    const TEST: &str = "killed::f1_fences_rise_over_kills_at_any_point";
    if let Some((name, directory)) = task() {
        return take_again_and_again(&name, &directory).await;
    }
    let scene = Scene::new();
    let directory = scene.directory.path();
    let executable = std::env::current_exe().unwrap();
    let start = |lock: &str| Doer::start(&executable, None, TEST, lock, directory);
    let mut takers: Vec<_> = (0..TAKERS).map(|_| start("x")).collect();
    let mut removals = 0;
    for kill in 0..KILLS {
        // The one that was started last is killed young half of the time: in the making of directory, floor and file.
        let taker = &mut takers[kill % TAKERS];
        if kill % 2 == 0 {
            taker.await_word("once");
        }
        clock::sleep(&BootClock, Duration::from_micros(731 * (kill as u64 % 13))).await;
        taker.kill();
        if kill % 7 == 0 {
            removals += usize::from(fs::remove_file(scene.file("x.lock")).is_ok()); // or it is not there yet
        }
        *taker = start("x");
    }
    for taker in &mut takers {
        taker.await_word("once");
        taker.kill();
    }
    let log = fs::read_to_string(directory.join("x.log")).unwrap();
    // A line that the kill cut short was that of the last grant before.
    let fences: Vec<u64> = log.lines().filter_map(|line| line.strip_suffix('.')?.parse().ok()).collect();
    assert!(fences.len() > KILLS / 2, "{}", fences.len());
    let distinct: HashSet<_> = fences.iter().collect();
    assert_eq!(distinct.len(), fences.len(), "a fence was issued twice");
    // Whoever looked just before a removal by hand may write just after it: that line, and no other, comes late.
    let late = fences.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(late <= removals, "{late} lines came late after {removals} removals");
    // The last one's place in the queue and all else that the dead left is in nobody's way.
    super::fence(&scene.store(), "x").await;
}

async fn take_again_and_again(name: &str, directory: &Path) {
    let store = open(directory).unwrap();
    let mut log = File::options().append(true).create(true).open(directory.join(format!("{name}.log"))).unwrap();
    for round in 0.. {
        let claim = claim(name);
        let grant = match store.claim(&claim, Patience::Queue).await.unwrap() {
            Claimed::Granted(grant) => grant,
            _ => store.turn(&claim).await.unwrap(),
        };
        // A removal by hand takes the lock from its holder, who must not write then.
        if store.renew(&[claim.clone().into()]).await[0].is_err() {
            let line = format!("{}.\n", grant.fence.unwrap().get());
            log.write_all(line.as_bytes()).unwrap();
        }
        store.release(&claim.holding).await.unwrap();
        if round == 0 {
            say("once");
        }
    }
}

//! Several locks in one step.

use std::sync::Arc;

use fencepost_core::{
    claim::{Claim, Claimed, LossReason, Mode, Patience, Release, Renewal},
    error::{Applied, ErrorKind},
    store::{LossReporter, Store},
};
use fencepost_servers::PostgresServer;
use tokio::task::JoinSet;

use super::{
    SOON, TTL, claim, claim_as, claim_of, client, eventually, granted, migrated, ms, name, open, queued, renewed,
    within,
};

fn several(locks: &[&str]) -> Arc<Claim> {
    claim_of(locks, TTL, Mode::Exclusive)
}

fn held(server: &PostgresServer) -> String {
    server.value(
        "postgres",
        "SELECT coalesce(string_agg(name, '' ORDER BY name), '') FROM fencepost.locks WHERE owner IS NOT NULL",
    )
}

/// One number for all of them, which is above the last one of each.
#[tokio::test(flavor = "multi_thread")]
async fn f1_one_fence_of_several_is_above_the_last_of_each() {
    let server = migrated(&[]).await;
    for mode in ["lease", "session"] {
        let store = open(&format!("{}?mode={mode}", server.url("postgres"))).await.unwrap();
        let mut last = std::collections::HashMap::new();
        let mut rises = async |locks: &[&'static str]| {
            let claim = several(locks);
            let fence = granted(&store, &claim).await.fence.unwrap();
            assert_eq!(granted(&store, &claim).await.fence, Some(fence), "a repeat answers as the first");
            for lock in locks {
                let before = last.insert(*lock, fence);
                assert!(before.is_none_or(|before| before < fence), "{lock}: {fence:?} after {before:?}");
                let shown = store.inspect(Some(&name(lock))).await.unwrap();
                assert_eq!(shown[0].holders[0].fence, Some(fence), "what the row has, the resource will see");
            }
            assert_eq!(store.release(&claim.holding).await.unwrap(), Release::Released);
            assert_eq!(store.release(&claim.holding).await.unwrap(), Release::AlreadyExpired);
        };
        for _ in 0..3 {
            rises(&["a"]).await;
        }
        rises(&["c", "b", "a"]).await; // two of them new
        rises(&["b"]).await;
        rises(&["a", "b", "c"]).await;
        rises(&["c"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_busy_is_named_and_nothing_is_taken() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    granted(&b, &claim("b", TTL)).await;
    for patience in [Patience::Once, Patience::Queue] {
        let Ok(Claimed::Busy(busy)) = a.claim(&several(&["c", "b", "a"]), patience).await else { panic!("b is held") };
        assert_eq!(busy.lock, Some(name("b")));
        assert!(busy.holder.is_some_and(|holder| holder.fence.is_some() && holder.expires_in.is_some()));
        assert_eq!(held(&server), "b");
    }
    // Free, and somebody waits for it: he comes first.
    let (holder, waiter) = (claim("d", TTL), claim("d", TTL));
    granted(&b, &holder).await;
    queued(&b, &waiter).await;
    server.sql("postgres", "UPDATE fencepost.locks SET owner = NULL, expires_at = NULL, ttl = NULL WHERE name = 'd'");
    let Ok(Claimed::Busy(busy)) = a.claim(&several(&["c", "d"]), Patience::Once).await else {
        panic!("d is waited for")
    };
    assert_eq!(busy.lock, Some(name("d")));
    within(SOON, "the turn", b.turn(&waiter)).await.unwrap();
    assert_eq!(held(&server), "bd");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_try_of_several_writes_nothing() {
    let server = migrated(&["autovacuum=off", "bgwriter_lru_maxpages=0"]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let all = several(&["a", "b", "c"]);
    granted(&a, &all).await;
    a.release(&all.holding).await.unwrap();
    granted(&b, &claim("c", TTL)).await;
    let try_once = async || {
        let answer = a.claim(&several(&["a", "b", "c"]), Patience::Once).await;
        assert!(matches!(answer, Ok(Claimed::Busy(_))), "{answer:?}");
    };
    try_once().await; // the first look at the row may note that its writer has committed
    server.sql("postgres", "CHECKPOINT");
    let before = super::rows::wal(&server);
    for _ in 0..20 {
        try_once().await;
    }
    let written = super::rows::wal(&server) - before;
    assert!(written < 200, "{written} bytes for 20 busy tries");
}

/// Everybody locks the rows in one order, whatever the order of the names and however many are new.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_wait_for_each_other_in_the_server() {
    let server = migrated(&[]).await;
    let mut crowd = JoinSet::new();
    for task in 0..8 {
        let store = client(&server).await;
        crowd.spawn(async move {
            let mut granted = 0;
            for round in 0..60 {
                // Some of them new, and one of them that everybody wants.
                let all = [format!("{round}"), format!("x{}", (round + task) % 5), format!("{}", round + 1)];
                let mut locks: Vec<&str> = all.iter().map(String::as_str).collect();
                locks.rotate_left(task % 3);
                let wanted = several(&locks);
                // A deadlock that the server has to break is an error.
                if let Claimed::Granted(_) = store.claim(&wanted, Patience::Once).await.unwrap() {
                    granted += 1;
                    assert_eq!(store.release(&wanted.holding).await.unwrap(), Release::Released);
                }
            }
            granted
        });
    }
    let granted: u32 = within(SOON * 4, "all come to an end", crowd.join_all()).await.iter().sum();
    assert!(granted > 20, "{granted}");
    assert_eq!(server.value("postgres", "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'"), "0");
    assert_eq!(held(&server), "");
}

/// What one of them is lost by is told to the holder, and a repeat of the claim that finds the rest does not keep it.
#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_one_is_told_and_a_repeat_leaves_nothing_of_the_rest() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let (losses, mut told) = LossReporter::channel();
    a.report_losses(losses);
    let all = several(&["a", "b", "c"]);
    let first = granted(&a, &all).await.fence;
    let listens = "SELECT count(*) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND objid > 0";
    eventually(SOON, "the holder listens", async || server.value("postgres", listens) == "1").await;
    b.force(&name("b"), None).await.unwrap();
    assert_eq!(within(SOON, "it is told", told.recv()).await.unwrap().0, *all.owner());
    assert_eq!(renewed(&a, &all).await.unwrap(), Renewal::Lost(LossReason::Deleted));
    let second = granted(&a, &all).await.fence;
    assert!(second > first, "taken anew, with a fence of its own for all: {second:?} after {first:?}");
    b.force(&name("b"), None).await.unwrap();
    granted(&b, &claim("b", TTL)).await;
    assert_eq!(renewed(&a, &all).await.unwrap(), Renewal::Lost(LossReason::TakenOver));
    assert!(matches!(a.claim(&all, Patience::Once).await, Ok(Claimed::Busy(busy)) if busy.lock == Some(name("b"))));
    assert_eq!(held(&server), "b");
}

/// In one statement for all the leases of a client, and each by itself (R1).
#[tokio::test(flavor = "multi_thread")]
async fn r1_several_are_renewed_beside_others() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let many: Vec<String> = (0..300).map(|number| format!("m{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let claims = [claim("x", TTL), several(&["a", "b"]), several(&many), several(&["c", "d"]), claim("y", TTL)];
    for claim in &claims {
        granted(&a, claim).await;
    }
    b.force(&name("b"), None).await.unwrap();
    let answers = a.renew(&claims).await;
    for (place, answer) in answers.iter().enumerate() {
        let lost = matches!(answer, Ok(Renewal::Lost(LossReason::Deleted)));
        assert!(if place == 1 { lost } else { matches!(answer, Ok(Renewal::Renewed { .. })) }, "{place}: {answer:?}");
    }
    assert_eq!(a.release(&claims[1].holding).await.unwrap(), Release::AlreadyExpired, "the first that was not ours");
    assert_eq!(a.release(&claims[2].holding).await.unwrap(), Release::Released);
    assert_eq!(held(&server), "cdxy");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_among_them_and_readers_are_refused() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    granted(&store, &claim_as("s", TTL, Mode::Permits { count: 1, of: 3 })).await;
    let error = store.claim(&several(&["t", "s"]), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.lock()), (ErrorKind::Mismatch, Some(&name("s"))), "{error}");
    assert_eq!(held(&server), "");
    let readers = claim_of(&["a", "b"], TTL, Mode::Shared);
    let error = store.claim(&readers, Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unsupported, Applied::No), "{error}");
}

/// One lease that has run out among several is one that is free.
#[tokio::test(flavor = "multi_thread")]
async fn those_that_have_run_out_are_taken_with_the_rest() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let dead = claim("b", ms(50));
    let before = granted(&a, &dead).await.fence;
    let all = several(&["a", "b", "c"]);
    let mut answer = None;
    eventually(SOON, "the dead holder's lock comes free", async || {
        answer = match b.claim(&all, Patience::Once).await.unwrap() {
            Claimed::Granted(grant) => grant.fence,
            _ => None,
        };
        answer.is_some()
    })
    .await;
    assert!(answer > before);
    assert_eq!(renewed(&a, &dead).await.unwrap(), Renewal::Lost(LossReason::TakenOver));
}

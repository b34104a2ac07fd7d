//! C1: what a future leaves behind that was dropped.

use std::time::Duration;

use fencepost_core::{
    claim::Patience,
    clock::{BootClock, sleep},
};

use crate::{
    site::{Site, Verdict},
    steps::{
        LONG, SHORT, SOON, acquired, claim, eventually, granted, is_busy, locks, ms, nothing_left, queued,
        start_waiting, store, take, waiters, within,
    },
};

/// Source: redisson 2714, 4368, 7272; sqlx 4198.
pub async fn c1_dropped_acquires_leave_nothing(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut random = seed;
    for round in 0..1000_u32 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let micros = (random >> 33) % 1500;
        let acquire = locks.lock(format!("{}", round % 10)).ttl(SHORT).wait(LONG).acquire();
        // Dropped at whatever await point it stands at by then; what was granted is dropped as a guard.
        let _ = tokio::time::timeout(Duration::from_micros(micros), acquire).await;
    }
    nothing_left(site, SHORT * 2 + SOON).await;
    sleep(&BootClock, SHORT / 2).await;
    nothing_left(site, Duration::ZERO).await;
    Ok(())
}

pub async fn c1_a_cancelled_waiter_leaves_the_queue(site: &dyn Site) -> Verdict {
    let (a, b, c) = (locks(site).await, locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    let cancelled = start_waiting(&b, "x", LONG).await;
    let next = start_waiting(&c, "x", LONG).await;
    cancelled.abort();
    eventually(SOON, "one waiter is left", async || waiters(a.store(), "x").await == 1).await;
    drop(held);
    drop(acquired(within(SOON, "the next one has it", next).await.expect("no panic")));
    nothing_left(site, SOON).await;
    Ok(())
}

/// Bare calls of the store, dropped in the middle: the connection serves the next call.
pub async fn c1_a_dropped_claim_poisons_nothing(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let holder = claim("x", LONG);
    granted(&store, &holder).await;
    for round in 0..40 {
        let dropped = claim("x", LONG);
        let limit = Duration::from_micros(round * 50);
        let queue = store.claim(&dropped, Patience::Queue);
        if tokio::time::timeout(limit, queue).await.is_ok() {
            let _ = tokio::time::timeout(limit, store.turn(&dropped)).await;
        }
        store.release(&dropped.holding).await.expect("the next call is answered");
        let other = claim(&format!("other/{round}"), LONG);
        granted(&store, &other).await;
        store.release(&other.holding).await.expect("the next call is answered");
    }
    // A request that was under way when its future was dropped may have been applied after the release.
    let waiter = claim("x", LONG);
    queued(&store, &waiter).await;
    store.release(&holder.holding).await.expect("a release");
    within(SOON + SOON, "dead claims are passed over", store.turn(&waiter)).await.expect("a grant");
    Ok(())
}

pub async fn c1_a_waiting_limit_leaves_no_waiter(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    for _ in 0..5 {
        let outcome = b.lock("x").wait(ms(300)).acquire().await.expect("an answer");
        assert!(outcome.acquired().is_none());
    }
    eventually(SOON, "nobody waits", async || waiters(a.store(), "x").await == 0).await;
    drop(held);
    eventually(SOON, "it is free", async || !is_busy(&b, "x").await).await;
    nothing_left(site, SOON).await;
    Ok(())
}

//! R1 and R2: who is renewed and who is not.

use std::time::Duration;

use fencepost::Acquired;
use fencepost_core::{
    claim::LossReason,
    clock::{BootClock, sleep},
};

use crate::{
    site::{Site, Tampering, Verdict},
    steps::{
        LONG, SHORT, SOON, acquired, eventually, expires, is_busy, locks, ms, name, nothing_left, reason_of_loss, take,
        within,
    },
};

pub async fn r1_a_lease_outlives_its_ttl(site: &dyn Site) -> Verdict {
    expires(site)?;
    let (a, b) = (locks(site).await, locks(site).await);
    let default = acquired(a.lock("default").acquire().await);
    let left = default.remaining().expect("a deadline");
    assert!(left > ms(25_000) && left <= ms(30_000), "thirty seconds unless said otherwise: {left:?}");
    let lease = take(&a, "x", SHORT).await;
    sleep(&BootClock, SHORT * 2).await;
    lease.check().expect("renewed");
    assert!(is_busy(&b, "x").await);
    Ok(())
}

/// For three TTLs. Where each is an open file instead, as many as a process may have by default.
/// Source: redisson 6303, 6962, 6483.
pub async fn r1_ten_thousand_leases_are_kept(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let (ttl, batches) = if expires(site).is_ok() { (ms(10_000), 100) } else { (ms(200), 5) };
    let mut leases = Vec::new();
    for batch in 0..batches {
        let takers: Vec<_> = (0..100)
            .map(|number| tokio::spawn(locks.lock(format!("{batch}/{number}")).ttl(ttl).wait(LONG).acquire()))
            .collect();
        for taker in takers {
            leases.push(acquired(taker.await.expect("no panic")));
        }
    }
    sleep(&BootClock, ttl * 2).await;
    let lost: Vec<_> = leases.iter().filter_map(|lease| lease.check().err()).collect();
    assert!(lost.is_empty(), "{} of {} lost: {}", lost.len(), leases.len(), lost[0]);
    locks.close().await;
    Ok(())
}

pub async fn r1_one_bad_lease_disturbs_no_other(site: &dyn Site) -> Verdict {
    expires(site)?;
    let locks = locks(site).await;
    let mut leases = Vec::new();
    for number in 0..20 {
        leases.push(take(&locks, &format!("{number}"), SHORT).await);
    }
    // One gone, one replaced by something that is no record of ours.
    site.tamper(Tampering::Delete(&name("7"))).await?;
    let foreign = site.tamper(Tampering::PlantForeign(&name("11"))).await.is_ok();
    sleep(&BootClock, SHORT * 2).await;
    for (number, lease) in leases.iter().enumerate() {
        let bad = number == 7 || (number == 11 && foreign);
        assert_eq!(lease.check().is_err(), bad, "lease {number}: {:?}", lease.check());
    }
    Ok(())
}

pub async fn r1_the_time_held_can_be_bounded(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let lease = acquired(locks.lock("x").ttl(LONG).max_hold(ms(400)).acquire().await);
    assert_eq!(reason_of_loss(&lease, SOON).await, LossReason::HeldTooLong);
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn r2_a_dropped_guard_is_freed(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    drop(take(&a, "x", LONG).await);
    acquired(within(SOON, "it is free at once", b.lock("x").acquire()).await).release().await.expect("an answer");
    nothing_left(site, SOON).await;
    Ok(())
}

/// Source: redisson 3521.
pub async fn r2_a_panicking_task_does_not_keep_its_lock(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let request = a.lock("x").ttl(LONG);
    let task = tokio::spawn(async move {
        let _lease = acquired(request.acquire().await);
        std::panic::resume_unwind(Box::new("a task that fails")); // without the hook's noise in the test's output
    });
    assert!(task.await.expect_err("it panicked").is_panic());
    acquired(within(SOON, "it is free at once", b.lock("x").acquire()).await).release().await.expect("an answer");
    nothing_left(site, SOON).await;
    Ok(())
}

/// At the latest after its TTL, and without a panic or a hang. Source: distributed-lock-rs; rslock 30.
pub async fn r2_a_guard_dropped_with_its_runtime_is_freed(site: &dyn Site) -> Verdict {
    let (url, namespace) = (site.url(), site.namespace());
    let ended = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let lease = runtime.block_on(async {
            let locks = fencepost::Locks::builder(&url).namespace(namespace).open().await?.for_efficiency();
            locks.lock("x").ttl(SHORT).acquire().await
        });
        runtime.shutdown_timeout(Duration::from_millis(100));
        drop(lease); // after its runtime
        std::io::Result::Ok(())
    });
    let b = locks(site).await;
    eventually(SOON, "dropping ends", async || ended.is_finished()).await;
    ended.join().expect("no panic").expect("a runtime");
    let limit = SHORT + SOON;
    eventually(limit, "it is free after its TTL", async || {
        let attempt = b.lock("x").wait(ms(200)).acquire().await.expect("an answer");
        matches!(attempt, Acquired(_))
    })
    .await;
    Ok(())
}

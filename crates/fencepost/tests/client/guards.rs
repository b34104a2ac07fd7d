use std::time::Duration;

use fencepost::{
    ErrorKind,
    claim::{LossReason, Release},
    clock::ManualClock,
};

use crate::{held, open, open_on};

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn l1_check_finds_out_before_the_watchdog_has_run() {
    let clock = ManualClock::new();
    let locks = open_on("l1-check", &clock).await;
    let lease = held(locks.lock("a").ttl(TTL).manual_renewal().acquire().await.unwrap());
    lease.check().unwrap();
    assert!(lease.remaining().unwrap() < TTL, "the drift allowance is taken off (T1)");

    // No await between the jump and the check: no task can have run, as after a SIGSTOP.
    clock.advance(TTL);
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Lost(LossReason::Expired));
    assert_eq!(lease.remaining(), Some(Duration::ZERO));
    assert_eq!(lease.lost().await, LossReason::Expired);
}

#[tokio::test]
async fn l2_the_work_is_dropped_when_the_lease_is_lost() {
    let locks = open("l2-run").await;
    let lease = held(locks.lock("a").ttl(TTL).acquire().await.unwrap());
    let (dropped, told) = tokio::sync::oneshot::channel::<()>();
    let store = locks.store().clone();
    let work = lease.run(async move {
        let _dropped = dropped;
        store.force(&fencepost::LockName::new("a").unwrap(), None).await.unwrap();
        std::future::pending::<()>().await
    });
    assert_eq!(work.await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Deleted));
    assert!(told.await.is_err(), "the work was dropped");
    assert_eq!(lease.run(async {}).await.unwrap_err().kind(), ErrorKind::Lost(LossReason::Deleted));
}

#[tokio::test]
async fn r1_a_lease_ends_at_its_max_hold_and_is_freed() {
    let clock = ManualClock::new();
    let locks = open_on("r1-max-hold", &clock).await;
    let lease = held(locks.lock("a").ttl(TTL).max_hold(Duration::from_secs(3)).acquire().await.unwrap());
    clock.advance(Duration::from_secs(3));
    assert_eq!(lease.lost().await, LossReason::HeldTooLong);
    drop(held(locks.lock("a").acquire().await.unwrap()));
}

#[tokio::test]
async fn r2_a_dropped_guard_is_given_back() {
    let locks = open("r2-drop").await;
    let first = held(locks.lock("a").acquire().await.unwrap());
    let fence = first.fence();
    drop(first);
    assert!(held(locks.lock("a").wait(Duration::from_secs(5)).acquire().await.unwrap()).fence() > fence);
}

#[tokio::test]
async fn r2_a_panicking_task_does_not_keep_its_lock() {
    let locks = open("r2-panic").await;
    let theirs = locks.clone();
    let task = tokio::spawn(async move {
        let _lease = held(theirs.lock("a").acquire().await.unwrap());
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
    drop(held(locks.lock("a").wait(Duration::from_secs(5)).acquire().await.unwrap()));
}

#[tokio::test]
async fn o3_a_second_release_changes_nothing_and_says_so() {
    let locks = open("o3-twice").await;
    let mut lease = held(locks.lock("a").acquire().await.unwrap());
    assert_eq!(lease.release().await.unwrap(), Release::Released);
    let other = held(locks.lock("a").acquire().await.unwrap());
    assert_eq!(lease.release().await.unwrap(), Release::HeldByOther);
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Closed);
    other.check().unwrap();
}

#[tokio::test]
async fn l1_nothing_is_believed_once_a_release_was_begun() {
    let locks = open("l1-begun").await;
    let mut lease = held(locks.lock("a").acquire().await.unwrap());
    let mut release = Box::pin(lease.release());
    std::future::poll_fn(|context| {
        let _ = release.as_mut().poll(context); // its answer, if there was one, is never seen
        std::task::Poll::Ready(())
    })
    .await;
    drop(release);
    assert_eq!(lease.check().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lease.lost().await, LossReason::Closed);
    assert!(lease.run(std::future::pending::<()>()).await.is_err());
}

#[tokio::test]
async fn closing_tells_every_holder_and_gives_everything_back() {
    let locks = open("close").await;
    let lease = held(locks.lock("a").acquire().await.unwrap());
    let (waiting, ()) = tokio::join!(locks.lock("a").acquire(), locks.close());
    assert_eq!(waiting.unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(lease.lost().await, LossReason::Closed);
    assert_eq!(locks.lock("b").acquire().await.unwrap_err().kind(), ErrorKind::Closed);
    drop(held(open("close").await.lock("a").wait(Duration::ZERO).acquire().await.unwrap()));
}

#[test]
fn a_guard_outlives_its_runtime_without_a_panic() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let lease = runtime.block_on(async { held(open("outlive").await.lock("a").acquire().await.unwrap()) });
    drop(runtime);
    drop(lease);
}

/// Nobody is left to renew it, and no task of the watchdog to tell; the holder may run in another runtime.
#[test]
fn l1_a_loss_is_told_although_the_runtime_of_the_locks_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let acquire =
        async { held(open("l1-ended").await.lock("a").ttl(Duration::from_millis(300)).acquire().await.unwrap()) };
    let lease = first.block_on(acquire);
    drop(first);
    let told = async { tokio::time::timeout(Duration::from_secs(20), lease.lost()).await };
    assert_eq!(runtime().block_on(told).expect("told in time"), LossReason::Expired);
}

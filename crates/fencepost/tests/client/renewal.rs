use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost::{
    Error, Locks, Namespace,
    claim::{Claim, Renewal},
    clock::{BootClock, Clock, ManualClock},
    layer::StoreLayer,
    purpose::{Correctness, TypedStore},
    registry::open_store,
    store::{BoxFuture, Store},
};

use crate::{held, open};

const TTL: Duration = Duration::from_secs(30);

/// A store around a store that counts renewals and can lose their answers.
#[derive(Debug)]
struct Counted {
    store: Arc<dyn Store>,
    calls: AtomicUsize,
    renewed: AtomicUsize,
    answers_to_lose: AtomicUsize,
}

async fn counted(name: &str, clock: Arc<dyn Clock>) -> (Arc<Counted>, Locks<Correctness>) {
    let store = open_store(&format!("memory:{name}"), Namespace::default(), clock.clone()).await.unwrap();
    let zero = AtomicUsize::default;
    let counted = Arc::new(Counted { store, calls: zero(), renewed: zero(), answers_to_lose: zero() });
    (counted.clone(), Locks::with_store(counted, clock).unwrap())
}

/// Lets the tasks run until nothing is left to do.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn r1_many_leases_share_a_command() {
    let clock = ManualClock::new();
    let (store, locks) = counted("r1-batch", Arc::new(clock.clone())).await;
    let mut leases = Vec::new();
    for i in 0..1_000 {
        leases.push(held(locks.lock(format!("lock-{i}")).ttl(TTL).acquire().await.unwrap()));
    }
    for _ in 0..120 {
        clock.advance(Duration::from_secs(1));
        settle().await;
    }
    leases.iter().for_each(|lease| lease.check().unwrap());
    let (calls, renewed) = (store.calls.load(Relaxed), store.renewed.load(Relaxed));
    assert!(renewed >= 11_000, "each lease is renewed every ten seconds or so: {renewed}");
    assert!(renewed / calls >= 50, "{renewed} renewals took {calls} commands");
}

#[tokio::test]
async fn t1_an_answer_of_unknown_outcome_never_moves_the_deadline_and_is_tried_again() {
    let clock = ManualClock::new();
    let (store, locks) = counted("t1-unknown", Arc::new(clock.clone())).await;
    let lease = held(locks.lock("a").ttl(TTL).acquire().await.unwrap());
    let deadline = lease.deadline().unwrap();
    store.answers_to_lose.store(2, Relaxed);
    while store.answers_to_lose.load(Relaxed) > 0 {
        assert_eq!(lease.deadline(), Some(deadline));
        clock.advance(Duration::from_millis(100));
        settle().await;
    }
    while lease.deadline() == Some(deadline) {
        clock.advance(Duration::from_millis(100));
        settle().await;
        lease.check().unwrap();
    }
    assert!(store.calls.load(Relaxed) >= 3);
}

#[tokio::test]
async fn r2_a_dropped_guard_is_never_renewed() {
    let clock = ManualClock::new();
    let (store, locks) = counted("r2-never", Arc::new(clock.clone())).await;
    drop(held(locks.lock("a").ttl(TTL).acquire().await.unwrap()));
    for _ in 0..60 {
        clock.advance(Duration::from_secs(1));
        settle().await;
    }
    assert_eq!(store.calls.load(Relaxed), 0);
}

#[tokio::test]
async fn manual_renewal_is_left_to_the_holder() {
    let clock = ManualClock::new();
    let (store, locks) = counted("manual", Arc::new(clock.clone())).await;
    let lease = held(locks.lock("a").ttl(TTL).manual_renewal().acquire().await.unwrap());
    for _ in 0..3 {
        clock.advance(TTL / 2);
        settle().await;
        assert!(lease.renew().await.unwrap().unwrap() > TTL / 2);
    }
    assert_eq!(store.calls.load(Relaxed), 3);
    clock.advance(TTL);
    assert!(lease.renew().await.is_err());
}

#[tokio::test]
async fn c1_a_thousand_cancelled_acquires_leave_nothing() {
    let (_, locks) = counted("c1-cancel", BootClock::shared()).await;
    let blocker = held(locks.lock("a").acquire().await.unwrap());
    for i in 0..1_000_u64 {
        let acquire = locks.lock("a").ttl(TTL).acquire();
        tokio::select! {
            biased;
            _ = acquire => panic!("it is held"),
            () = async { for _ in 0..i % 7 { tokio::task::yield_now().await } } => {}
        }
    }
    drop(blocker);
    let mut last = held(locks.lock("a").wait(Duration::from_secs(10)).acquire().await.unwrap());
    last.release().await.unwrap();
    locks.close().await;
    assert_eq!(open("c1-cancel").await.store().inspect(None).await.unwrap(), Vec::new());
}

impl TypedStore for Counted {
    type Serves = Correctness;
}

impl StoreLayer for Counted {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        self.calls.fetch_add(1, Relaxed);
        self.renewed.fetch_add(claims.len(), Relaxed);
        let lose = self.answers_to_lose.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok();
        Box::pin(async move {
            let answers = self.store.renew(claims).await;
            let lost = || {
                use fencepost::error::{ErrorKind, Operation};
                Err(Error::new(ErrorKind::Unavailable, Operation::Renew, "the answer was lost"))
            };
            if lose { answers.iter().map(|_| lost()).collect() } else { answers }
        })
    }
}

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost::{
    Correctness, Error, ErrorKind, Locks, Namespace,
    claim::{Holding, Release},
    clock::ManualClock,
    error::Operation,
    layer::StoreLayer,
    purpose::TypedStore,
    registry::open_store,
    store::{BoxFuture, Store},
};

use crate::{held, open_on};

/// Much shorter than a place in a queue can last.
const TTL: Duration = Duration::from_secs(1);

/// A store whose releases do not arrive while it is cut off.
#[derive(Debug)]
struct CutOff {
    store: Arc<dyn Store>,
    cut_off: AtomicBool,
    refused: AtomicUsize,
    closed: AtomicBool,
}

impl TypedStore for CutOff {
    type Serves = Correctness;
}

impl StoreLayer for CutOff {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        if !self.cut_off.load(Relaxed) {
            return self.store.release(holding);
        }
        self.refused.fetch_add(1, Relaxed);
        let error = Error::new(ErrorKind::Unavailable, Operation::Release, "cut off").not_applied();
        Box::pin(std::future::ready(Err(error)))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.closed.store(true, Relaxed);
        self.store.close()
    }
}

struct Scene {
    clock: ManualClock,
    store: Arc<CutOff>,
    locks: Locks<Correctness>,
}

impl Scene {
    /// A place in the queue for a lock that another client holds, given up while the store is cut off.
    async fn with_an_abandoned_place(space: &str) -> (Self, fencepost::Lease<Correctness>) {
        let clock = ManualClock::new();
        let holder =
            held(open_on(space, &clock).await.lock("a").ttl(Duration::from_secs(3600)).acquire().await.unwrap());
        let shared: Arc<ManualClock> = Arc::new(clock.clone());
        let store = open_store(&format!("memory:{space}"), Namespace::default(), shared.clone()).await.unwrap();
        let (cut_off, closed) = (AtomicBool::new(true), AtomicBool::new(false));
        let store = Arc::new(CutOff { store, cut_off, refused: AtomicUsize::new(0), closed });
        let locks = Locks::with_store(store.clone(), shared).unwrap();
        let scene = Self { clock, store, locks };
        let waiting = tokio::spawn({
            let locks = scene.locks.clone();
            async move { locks.lock("a").ttl(TTL).acquire().await.map(|_| ()) }
        });
        while scene.waiters().await == 0 {
            tokio::task::yield_now().await;
        }
        waiting.abort();
        (scene, holder)
    }

    async fn waiters(&self) -> usize {
        self.store.store.inspect(None).await.unwrap().iter().map(|state| state.waiters.len()).sum()
    }

    async fn pass(&self, span: Duration) {
        let step = Duration::from_millis(250);
        for _ in 0..span.as_millis() / step.as_millis() {
            self.clock.advance(step);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[tokio::test]
async fn c1_a_place_in_the_queue_is_given_back_although_the_store_was_away_for_longer_than_the_ttl() {
    let (scene, _holder) = Scene::with_an_abandoned_place("c1-patience").await;
    scene.pass(20 * TTL).await;
    assert!(scene.store.refused.load(Relaxed) > 5, "it goes on trying");
    assert_eq!(scene.waiters().await, 1);
    scene.store.cut_off.store(false, Relaxed);
    scene.pass(Duration::from_secs(5)).await;
    assert_eq!(scene.waiters().await, 0);
}

#[tokio::test]
async fn c1_a_clean_up_that_nothing_can_come_of_ends() {
    let (scene, _holder) = Scene::with_an_abandoned_place("c1-end").await;
    scene.pass(Duration::from_secs(40)).await;
    let tried = scene.store.refused.load(Relaxed);
    scene.pass(Duration::from_secs(20)).await;
    assert_eq!(scene.store.refused.load(Relaxed), tried);
    scene.locks.close().await;
}

/// Or its connections would stay for as long as anybody has a clone of the locks.
#[tokio::test]
async fn a_store_that_takes_nothing_back_is_closed_all_the_same() {
    let (scene, _holder) = Scene::with_an_abandoned_place("c1-closing").await;
    let closing = tokio::spawn({
        let locks = scene.locks.clone();
        async move { locks.close().await }
    });
    scene.pass(Duration::from_secs(3)).await;
    assert!(!scene.store.closed.load(Relaxed), "it has four seconds to take it back");
    scene.pass(Duration::from_secs(2)).await;
    tokio::time::timeout(Duration::from_secs(20), closing).await.expect("the closing ends").unwrap();
    assert!(scene.store.closed.load(Relaxed));
}

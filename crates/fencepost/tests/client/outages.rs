//! A store that is out of reach, or that carries a call out and cannot say so.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost::{
    Acquired, Attempt, Correctness, Edit, Error, ErrorKind, Lease, LockName, Locks, Namespace, Update, Wait,
    cells::{self, Cells, Change, Changed, Version},
    claim::{Claim, Claimed, Patience},
    clock::ManualClock,
    error::{Applied, Operation},
    layer::StoreLayer,
    purpose::TypedStore,
    registry::open_store,
    store::{BoxFuture, Store},
};
use tokio::task::JoinHandle;

/// A store that carries one call out and loses its answer, and refuses calls while it is away.
#[derive(Debug)]
struct Away {
    store: Arc<dyn Store>,
    unanswered: AtomicBool,
    away: AtomicBool,
}

impl Away {
    async fn answer<T>(&self, operation: Operation, call: BoxFuture<'_, Result<T, Error>>) -> Result<T, Error> {
        if self.unanswered.swap(false, Relaxed) {
            call.await?;
            return Err(Error::new(ErrorKind::Unavailable, operation, "the answer was lost"));
        }
        if self.away.load(Relaxed) {
            return Err(Error::new(ErrorKind::Unavailable, operation, "nobody is there").not_applied());
        }
        call.await
    }
}

impl TypedStore for Away {
    type Serves = Correctness;
}

impl StoreLayer for Away {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.answer(Operation::Claim, self.store.claim(claim, patience)))
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

impl Cells for Away {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<cells::Cell>, Error>> {
        self.store.cells().unwrap().read(key)
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(self.answer(Operation::Update, self.store.cells().unwrap().change(change)))
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        self.store.cells().unwrap().changed(key, seen)
    }
}

struct Scene {
    clock: ManualClock,
    store: Arc<Away>,
    locks: Locks<Correctness>,
}

impl Scene {
    async fn new(space: &str) -> Self {
        let clock = ManualClock::new();
        let shared: Arc<ManualClock> = Arc::new(clock.clone());
        let store = open_store(&format!("memory:{space}"), Namespace::default(), shared.clone()).await.unwrap();
        let store = Arc::new(Away { store, unanswered: AtomicBool::new(false), away: AtomicBool::new(false) });
        Self { clock, store: store.clone(), locks: Locks::with_store(store, shared).unwrap() }
    }

    fn acquire(&self, wait: Wait) -> JoinHandle<Result<Attempt<Lease<Correctness>>, Error>> {
        tokio::spawn(self.locks.lock("a").wait(wait).acquire())
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
async fn t3_a_waiter_with_a_limit_bears_an_outage_until_that_limit() {
    let scene = Scene::new("t3-outage").await;
    scene.store.away.store(true, Relaxed);
    let waiting = scene.acquire(Wait::AtMost(Duration::from_secs(60)));
    scene.pass(Duration::from_secs(45)).await;
    assert!(!waiting.is_finished(), "{:?}", waiting.await);
    scene.store.away.store(false, Relaxed);
    scene.pass(Duration::from_secs(5)).await;
    assert!(matches!(waiting.await.unwrap().unwrap(), Acquired(_)));
}

#[tokio::test]
async fn t3_a_waiter_without_a_limit_hears_of_an_outage() {
    let scene = Scene::new("t3-forever").await;
    scene.store.away.store(true, Relaxed);
    let waiting = scene.acquire(Wait::Forever);
    scene.pass(Duration::from_secs(40)).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
}

#[tokio::test]
async fn c2_a_claim_that_may_have_been_carried_out_stays_unknown_when_later_ones_are_refused() {
    let scene = Scene::new("c2-claim").await;
    for wait in [Wait::Forever, Wait::AtMost(Duration::from_secs(20))] {
        scene.store.unanswered.store(true, Relaxed);
        scene.store.away.store(true, Relaxed);
        let waiting = scene.acquire(wait);
        scene.pass(Duration::from_secs(40)).await;
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    }
}

#[tokio::test]
async fn c2_a_change_that_may_have_been_made_stays_unknown_when_later_tries_are_refused() {
    let scene = Scene::new("c2-cell").await;
    let cell = scene.locks.cell::<u32>("stock").unwrap();
    scene.store.unanswered.store(true, Relaxed);
    scene.store.away.store(true, Relaxed);
    let writing = tokio::spawn({
        let cell = cell.clone();
        async move { cell.update(|_| Edit::Write(1)).await }
    });
    scene.pass(Duration::from_secs(20)).await;
    let error = writing.await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    assert_eq!(cell.read().await.unwrap(), Some(1));
}

#[tokio::test]
async fn c2_a_removal_whose_answer_was_lost_is_found_to_be_done() {
    let scene = Scene::new("c2-removal").await;
    let cell = scene.locks.cell::<u32>("stock").unwrap();
    cell.update(|_| Edit::Write(1)).await.unwrap();
    scene.store.unanswered.store(true, Relaxed);
    let removing = tokio::spawn({
        let cell = cell.clone();
        async move { cell.update(|_| Edit::Remove).await }
    });
    scene.pass(Duration::from_secs(2)).await;
    assert_eq!(removing.await.unwrap().unwrap(), Update::Removed { conflicts: 0 });
}

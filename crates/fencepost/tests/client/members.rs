use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost::{
    Correctness, Edit, Error, ErrorKind, LockName, Locks, Namespace, ShardEvent,
    cells::{self, Cells, Change, Changed, Version},
    clock::{BootClock, ManualClock},
    error::{Applied, Operation},
    layer::StoreLayer,
    purpose::TypedStore,
    registry::open_store,
    store::{BoxFuture, Store},
};

use tokio::sync::{mpsc, oneshot};

use crate::open_on;

const TTL: Duration = Duration::from_secs(9);

/// A store that tells of no change, and makes none while it is away.
#[derive(Debug)]
struct Deaf {
    store: Arc<dyn Store>,
    away: AtomicBool,
}

impl TypedStore for Deaf {
    type Serves = Correctness;
}

impl StoreLayer for Deaf {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

fn away<T: 'static>() -> BoxFuture<'static, Result<T, Error>> {
    let error = Error::new(ErrorKind::Unavailable, Operation::Update, "nobody is there").not_applied();
    Box::pin(async { Err(error) })
}

impl Cells for Deaf {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<cells::Cell>, Error>> {
        self.store.cells().unwrap().read(key)
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        if self.away.load(Relaxed) { away() } else { self.store.cells().unwrap().change(change) }
    }

    fn changed<'a>(&'a self, _key: &'a LockName, _seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        away()
    }
}

async fn deaf(space: &str, clock: &ManualClock) -> (Arc<Deaf>, Locks<Correctness>) {
    let clock: Arc<ManualClock> = Arc::new(clock.clone());
    let store = open_store(&format!("memory:{space}"), Namespace::default(), clock.clone()).await.unwrap();
    let store = Arc::new(Deaf { store, away: AtomicBool::new(false) });
    (store.clone(), Locks::with_store(store, clock).unwrap())
}

async fn pass(clock: &ManualClock, span: Duration) {
    let step = Duration::from_millis(500);
    for _ in 0..span.as_millis() / step.as_millis() {
        clock.advance(step);
        for _ in 0..40 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn a_member_that_hears_of_no_change_shows_signs_of_life_all_the_same() {
    let clock = ManualClock::new();
    let (_store, locks) = deaf("members-deaf", &clock).await;
    let _deaf = locks.members("group").unwrap().join("deaf", TTL).await.unwrap();
    let other = open_on("members-deaf", &clock).await.members("group").unwrap().join("other", TTL).await.unwrap();
    for round in 0..3_000 {
        pass(&clock, Duration::from_millis(500)).await;
        assert!(other.present().contains("deaf"), "taken for dead in round {round}");
    }
}

/// Its next sign of life, for which it would wait otherwise, is far away.
#[tokio::test]
async fn closing_ends_a_member_that_waits_after_a_failure() {
    let clock = ManualClock::new();
    let (_store, locks) = deaf("members-closed", &clock).await;
    let _deaf = locks.members("group").unwrap().join("deaf", TTL).await.unwrap();
    pass(&clock, Duration::from_millis(500)).await;
    tokio::time::timeout(Duration::from_secs(20), locks.close()).await.expect("the closing ends");
    let other = open_on("members-closed", &clock).await.members("group").unwrap().join("other", TTL).await.unwrap();
    assert_eq!(other.present(), ["other".to_owned()].into());
}

#[tokio::test]
async fn closing_ends_who_waits_for_an_id() {
    let clock = ManualClock::new();
    let _alive = open_on("members-joining", &clock).await.members("group").unwrap().join("a", TTL).await.unwrap();
    let locks = open_on("members-joining", &clock).await;
    let members = locks.members("group").unwrap();
    let joining = tokio::spawn(async move { members.join("a", TTL).await });
    pass(&clock, Duration::from_millis(500)).await;
    locks.close().await;
    let joined = tokio::time::timeout(Duration::from_secs(20), joining).await.expect("it is told").unwrap();
    assert_eq!(joined.unwrap_err().kind(), ErrorKind::Closed);
}

/// A change that the store does not answer is made again after a pause.
#[tokio::test]
async fn closing_ends_a_change_that_is_tried_again() {
    let clock = ManualClock::new();
    let (store, locks) = deaf("members-changing", &clock).await;
    store.away.store(true, Relaxed);
    let cell = locks.cell::<u32>("number").unwrap();
    let changing = tokio::spawn(async move { cell.update(|_| Edit::Write(1)).await });
    pass(&clock, Duration::ZERO).await;
    tokio::task::yield_now().await;
    locks.close().await;
    let changed = tokio::time::timeout(Duration::from_secs(20), changing).await.expect("it is told").unwrap();
    let error = changed.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Closed, Applied::No), "{error}");
}

#[tokio::test]
async fn closing_is_told_to_whoever_shares_work() {
    let clock = ManualClock::new();
    let locks = open_on("members-sharing", &clock).await;
    let member = locks.members("group").unwrap().join("a", TTL).await.unwrap();
    let mut shards = member.shards(1, TTL).unwrap();
    let Ok(ShardEvent::Gained { lease, .. }) = shards.next().await else { panic!("nobody else is there") };
    let (event, ()) = tokio::join!(shards.next(), locks.close());
    assert!(matches!(event, Ok(ShardEvent::Leave { shard: 0 })), "{event:?}");
    assert!(lease.check().is_err());
    let end = tokio::time::timeout(Duration::from_secs(20), shards.next()).await.expect("it is told");
    assert_eq!(end.unwrap_err().kind(), ErrorKind::Closed);
    assert!(member.present().is_empty());
}

/// Its owner's TTL counts and not that of whoever comes next.
#[tokio::test]
async fn the_id_of_a_dead_member_is_free_again_after_its_ttl() {
    let clock = ManualClock::new();
    let (store, locks) = deaf("members-dead", &clock).await;
    let _dead = locks.members("group").unwrap().join("a", TTL * 5).await.unwrap();
    store.away.store(true, Relaxed);
    let members = open_on("members-dead", &clock).await.members("group").unwrap();
    let joining = tokio::spawn(async move { members.join("a", TTL).await });
    pass(&clock, TTL * 4).await;
    assert!(!joining.is_finished(), "{:?}", joining.await);
    pass(&clock, TTL * 2).await;
    assert_eq!(joining.await.unwrap().unwrap().id(), "a");
}

#[tokio::test]
async fn the_id_of_a_live_member_is_refused_at_its_next_sign_of_life() {
    let clock = ManualClock::new();
    let locks = open_on("members-alive", &clock).await;
    let members = locks.members("group").unwrap();
    let _alive = members.join("a", TTL).await.unwrap();
    let joining = tokio::spawn(async move { members.join("a", TTL * 5).await });
    pass(&clock, TTL).await;
    assert!(joining.is_finished());
    assert_eq!(joining.await.unwrap().unwrap_err().kind(), ErrorKind::Mismatch);
}

/// A store in which somebody joins a group just before its name is struck off the roll.
#[derive(Debug)]
struct Crossed {
    store: Arc<dyn Store>,
    joins: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

impl TypedStore for Crossed {
    type Serves = Correctness;
}

impl StoreLayer for Crossed {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

impl Cells for Crossed {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<cells::Cell>, Error>> {
        self.store.cells().unwrap().read(key)
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(async move {
            if change.key.as_str().starts_with("groups/") && change.value.is_none() {
                let (joined, joins) = oneshot::channel();
                self.joins.send(joined).unwrap();
                joins.await.unwrap();
            }
            self.store.cells().unwrap().change(change).await
        })
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        self.store.cells().unwrap().changed(key, seen)
    }
}

/// Whoever leaves last strikes the group out, and somebody may have joined it in between.
#[tokio::test]
async fn a_group_that_is_joined_while_its_last_member_leaves_is_listed() {
    let store = open_store("memory:members-roll", Namespace::default(), BootClock::shared()).await.unwrap();
    let (joins, mut crossing) = mpsc::unbounded_channel();
    let leaving = Locks::with_store(Arc::new(Crossed { store, joins }), BootClock::shared()).unwrap();
    let joining = Locks::open("memory:members-roll").await.unwrap().fenced().unwrap();
    let first = leaving.members("group").unwrap().join("first", TTL).await.unwrap();
    let listed = async || joining.groups().await.unwrap().into_iter().map(|group| group.name).collect::<Vec<_>>();
    while listed().await.is_empty() {
        tokio::task::yield_now().await;
    }
    drop(first);
    let joined = crossing.recv().await.unwrap();
    let _second = joining.members("group").unwrap().join("second", TTL).await.unwrap();
    joined.send(()).unwrap();
    leaving.close().await; // by then it has had its last word
    assert_eq!(listed().await, ["group"]);
}

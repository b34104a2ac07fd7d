//! Locks whose fences come from another store: the draw is a second step, and the lease is looked at after it.

use std::{sync::Arc, time::Duration};

use fencepost::{
    Acquired, Correctness, Error, ErrorKind, FencedBy, LockName, Locks,
    cells::{Cell, Cells, Change, Changed, Version},
    clock::ManualClock,
    layer::StoreLayer,
    purpose::TypedStore,
    registry::open_store,
    store::{BoxFuture, Store},
};

use crate::open;

/// Whose every answer takes a while on the clock.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Store>,
    clock: ManualClock,
    takes: Duration,
}

impl StoreLayer for Slow {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }
}

impl TypedStore for Slow {
    type Serves = Correctness;
}

impl Cells for Slow {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        self.inner.cells().unwrap().read(key)
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        self.clock.advance(self.takes);
        self.inner.cells().unwrap().change(change)
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        self.inner.cells().unwrap().changed(key, seen)
    }
}

async fn slow(name: &str, takes: Duration) -> FencedBy {
    let clock = ManualClock::default();
    let url = format!("memory:{name}-sure");
    let namespace = fencepost::Namespace::default();
    let inner = open_store(&url, namespace, Arc::new(clock.clone()));
    let issuer = Slow { inner: inner.await.unwrap(), clock: clock.clone(), takes };
    let issuer = Locks::with_store(Arc::new(issuer), Arc::new(clock.clone())).unwrap();
    let fast = Locks::builder(&format!("memory:{name}-fast")).clock(Arc::new(clock)).open().await.unwrap();
    fast.for_efficiency().fenced_by(&issuer).unwrap()
}

#[tokio::test]
async fn each_grant_draws_a_higher_fence_and_only_its_own_locks() {
    let fast = Locks::open("memory:hybrid-fast").await.unwrap().for_efficiency();
    let locks = fast.fenced_by(&open("hybrid-sure").await).unwrap();
    let mut last = 0;
    for _ in 0..5 {
        let Acquired(mut lease) = locks.lock("x").acquire().await.unwrap() else { panic!("it is free") };
        assert!(lease.fence().get() > last);
        last = lease.fence().get();
        let busy = locks.lock("x").wait(Duration::ZERO).acquire().await.unwrap();
        assert!(!matches!(busy, Acquired(_)));
        lease.release().await.unwrap();
    }
    // Broken by force, as a failover would: the next one draws a higher one.
    let Acquired(first) = locks.lock("x").acquire().await.unwrap() else { panic!("it is free") };
    fast.store().force(&LockName::new("x").unwrap(), None).await.unwrap();
    let Acquired(second) = locks.lock("x").acquire().await.unwrap() else { panic!("it was taken from the first") };
    assert!(second.fence() > first.fence());
}

#[tokio::test]
async fn a_lease_that_ended_before_its_fence_was_drawn_is_none() {
    let in_time = slow("in-time", Duration::from_millis(10)).await;
    assert!(matches!(in_time.lock("x").acquire().await.unwrap(), Acquired(_)));
    let too_late = slow("too-late", Duration::from_secs(31)).await;
    let error = too_late.lock("x").acquire().await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
}

use std::{sync::Arc, time::Duration};

use fencepost::{
    Correctness, Error, ErrorKind, LockName, Locks, Namespace,
    capabilities::Capabilities,
    claim::{Claim, Claimed, LossReason, Patience},
    clock::BootClock,
    error::Operation,
    layer::StoreLayer,
    purpose::TypedStore,
    registry::open_store,
    store::{BoxFuture, Store},
};

use crate::{held, open};

/// A store that claims one lock at a time.
#[derive(Debug)]
struct OneByOne {
    store: Arc<dyn Store>,
    capabilities: Capabilities,
}

impl TypedStore for OneByOne {
    type Serves = Correctness;
}

impl StoreLayer for OneByOne {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
}

/// It could only ever get locks of which one is lost already.
#[tokio::test]
async fn l1_waiting_for_the_rest_ends_when_what_is_held_is_lost() {
    let store = open_store("memory:several", Namespace::default(), BootClock::shared()).await.unwrap();
    let capabilities = Capabilities { several: false, ..store.capabilities().clone() };
    let locks = Locks::with_store(Arc::new(OneByOne { store, capabilities }), BootClock::shared()).unwrap();
    let admin = open("several").await;
    let _busy = held(admin.lock("b").acquire().await.unwrap());
    let waiting = tokio::spawn(locks.several(["a", "b"]).acquire());
    let waiters = async || admin.store().inspect(None).await.unwrap().iter().flat_map(|lock| &lock.waiters).count();
    while waiters().await == 0 {
        tokio::task::yield_now().await;
    }
    admin.store().force(&LockName::new("a").unwrap(), None).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(10), waiting).await.expect("it waits no longer");
    assert_eq!(ended.unwrap().unwrap_err().kind(), ErrorKind::Lost(LossReason::Deleted));
    while waiters().await > 0 {
        tokio::task::yield_now().await;
    }
}

/// A store that takes two locks in one step, and no more.
#[derive(Debug)]
struct TwoAtMost(Arc<dyn Store>);

impl TypedStore for TwoAtMost {
    type Serves = Correctness;
}

impl StoreLayer for TwoAtMost {
    fn inner(&self) -> &dyn Store {
        &*self.0
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        if claim.holding.wants().len() <= 2 {
            return self.0.claim(claim, patience);
        }
        let refused = Error::new(ErrorKind::Unsupported, Operation::Claim, "too many").not_applied();
        Box::pin(std::future::ready(Err(refused)))
    }
}

#[tokio::test]
async fn more_than_the_store_takes_in_one_step_are_taken_one_after_the_other() {
    let store = open_store("memory:two-at-most", Namespace::default(), BootClock::shared()).await.unwrap();
    let locks = Locks::with_store(Arc::new(TwoAtMost(store)), BootClock::shared()).unwrap();
    for (names, leases) in [(&["a", "b"][..], 1), (&["a", "b", "c"], 3)] {
        let attempt = locks.several(names).wait(Duration::ZERO).acquire().await.unwrap();
        let mut several = attempt.acquired().expect("all are free");
        assert_eq!(several.leases().len(), leases);
        several.release().await.unwrap();
    }
    let _busy = held(locks.lock("c").acquire().await.unwrap());
    let attempt = locks.several(["a", "b", "c"]).wait(Duration::ZERO).acquire().await.unwrap();
    assert!(attempt.acquired().is_none(), "all or nothing");
}

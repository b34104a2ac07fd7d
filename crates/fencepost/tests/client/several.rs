use std::{sync::Arc, time::Duration};

use fencepost::{
    Correctness, ErrorKind, LockName, Locks, Namespace, capabilities::Capabilities, claim::LossReason,
    clock::BootClock, layer::StoreLayer, purpose::TypedStore, registry::open_store, store::Store,
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

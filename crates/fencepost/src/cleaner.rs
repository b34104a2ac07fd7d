//! Gives back in the background what nobody stands behind any more: dropped guards, cancelled claims, lost leases.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    claim::Claim,
    clock::{self, Clock},
    error::Retry,
    store::Store,
};
use tokio::{runtime::Handle, sync::Notify};

/// A request of ours that was still under way when the first clean-up was answered has been applied by then.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// A place in a queue can outlast a short TTL while other waiters of this client give signs of life.
const PLACES_LAST: Duration = Duration::from_secs(30);

#[derive(Clone, Debug)]
pub(crate) struct Cleaner(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    runtime: Handle,
    under_way: AtomicUsize,
    finished: Notify,
}

/// What is known of the thing to give back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trace {
    /// The store answered our last request for it.
    Clear,
    /// A request of ours may still be on its way, and be applied after a first clean-up.
    Unclear,
}

impl Cleaner {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>, runtime: Handle) -> Self {
        Self(Arc::new(Shared { store, clock, runtime, under_way: AtomicUsize::new(0), finished: Notify::new() }))
    }

    /// Gives `claim` back as soon as the store answers. It tries until the TTL has passed, and for half a minute at
    /// least; after that the store has freed it by itself. Without a running runtime nothing happens before that
    /// either.
    pub(crate) fn give_back(&self, claim: Arc<Claim>, trace: Trace) {
        let work = self.begin();
        self.0.runtime.spawn(async move { work.0.give_back(&claim, trace).await });
    }

    /// Runs work of another kind to its end.
    pub(crate) fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
        let under_way = self.begin();
        self.0.runtime.spawn(async move {
            work.await;
            drop(under_way);
        });
    }

    /// Announces something that may still turn into a clean-up; [`idle`](Cleaner::idle) waits for it.
    pub(crate) fn begin(&self) -> UnderWay {
        self.0.under_way.fetch_add(1, Ordering::AcqRel);
        UnderWay(self.0.clone())
    }

    /// Completes when nothing is under way.
    pub(crate) async fn idle(&self) {
        loop {
            let finished = self.0.finished.notified();
            tokio::pin!(finished);
            finished.as_mut().enable();
            if self.0.under_way.load(Ordering::Acquire) == 0 {
                return;
            }
            finished.await;
        }
    }
}

impl Shared {
    async fn give_back(&self, claim: &Claim, mut trace: Trace) {
        let patience = claim.ttl.get().max(PLACES_LAST);
        let until = self.clock.now().after(patience);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        loop {
            match self.store.release(&claim.holding).await {
                Ok(_) if trace == Trace::Clear => return,
                Ok(_) => {
                    trace = Trace::Clear;
                    clock::sleep(&*self.clock, SECOND_LOOK).await;
                }
                Err(error) if error.retry() == Retry::AfterChange || self.clock.now() >= until => {
                    tracing::warn!(lock = %claim.name(), %error, "a lock could not be given back");
                    return;
                }
                Err(_) => clock::sleep(&*self.clock, backoff.pause()).await,
            }
        }
    }
}

/// Counts one clean-up, also when its task is dropped with the runtime.
#[derive(Debug)]
pub(crate) struct UnderWay(Arc<Shared>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::AcqRel);
        self.0.finished.notify_waiters();
    }
}

//! A store around a store that counts the renewals that came through.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use fencepost::{
    Efficiency, Error,
    claim::{Claim, Renewal},
    layer::StoreLayer,
    purpose::TypedStore,
    store::{BoxFuture, Store},
};

#[derive(Debug)]
pub(crate) struct Counted {
    store: Arc<dyn Store>,
    renewed: AtomicU64,
    not_renewed: AtomicU64,
}

impl Counted {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, renewed: AtomicU64::new(0), not_renewed: AtomicU64::new(0) }
    }

    /// Leases that were renewed so far.
    pub(crate) fn renewed(&self) -> u64 {
        self.renewed.load(Ordering::Relaxed)
    }

    /// Renewals that failed or came too late so far.
    pub(crate) fn not_renewed(&self) -> u64 {
        self.not_renewed.load(Ordering::Relaxed)
    }
}

impl TypedStore for Counted {
    type Serves = Efficiency;
}

impl StoreLayer for Counted {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let answers = self.store.renew(claims).await;
            let good = answers.iter().filter(|answer| matches!(answer, Ok(Renewal::Renewed { .. }))).count();
            self.renewed.fetch_add(good as u64, Ordering::Relaxed);
            self.not_renewed.fetch_add((answers.len() - good) as u64, Ordering::Relaxed);
            answers
        })
    }
}

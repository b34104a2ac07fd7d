//! A store around a store that counts the renewals that came through.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use fencepost::{
    Efficiency, Error, Fence, LockName,
    capabilities::Capabilities,
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, Patience, Release, Renewal},
    purpose::TypedStore,
    store::{BoxFuture, LossReporter, Store},
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

impl Store for Counted {
    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let answers = self.store.renew(claims).await;
            let good = answers.iter().filter(|answer| matches!(answer, Ok(Renewal::Renewed { .. }))).count();
            self.renewed.fetch_add(good as u64, Ordering::Relaxed);
            self.not_renewed.fetch_add((answers.len() - good) as u64, Ordering::Relaxed);
            answers
        })
    }

    fn capabilities(&self) -> &Capabilities {
        self.store.capabilities()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        self.store.claim(claim, patience)
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        self.store.turn(claim)
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        self.store.release(holding)
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        self.store.inspect(only)
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        self.store.force(name, if_fence)
    }

    fn report_losses(&self, to: LossReporter) {
        self.store.report_losses(to);
    }

    #[cfg(unix)]
    fn descriptor(&self, holding: &Holding) -> Option<std::io::Result<std::os::fd::OwnedFd>> {
        self.store.descriptor(holding)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.store.close()
    }
}

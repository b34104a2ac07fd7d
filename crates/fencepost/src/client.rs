//! One client: a store, its watchdog and its cleaner, shared by all clones of a `Locks` and all its leases.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimant, LossReason},
    clock::{self, Clock},
    error::{Error, ErrorKind, Operation},
    store::{LossReporter, Store},
};
use tokio::{runtime::Handle, sync::watch};

use crate::{cleaner::Cleaner, watchdog::Watchdog};

/// How long [`Client::close`] gives what is held or queued back.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(4);
/// How long the store may take to close after it.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) watchdog: Watchdog,
    pub(crate) cleaner: Cleaner,
    pub(crate) claimant: Arc<Claimant>,
    closed: watch::Sender<bool>,
}

impl Client {
    pub(crate) fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Result<Arc<Self>, Error> {
        let runtime = Handle::try_current().map_err(|source| {
            Error::new(ErrorKind::Misconfigured, Operation::Open, "locks are opened inside a Tokio runtime")
                .not_applied()
                .caused_by(source)
                .advise("use `fencepost::blocking` where there is none")
        })?;
        let (reporter, losses) = LossReporter::channel();
        store.report_losses(reporter.clone());
        let cleaner = Cleaner::new(store.clone(), clock.clone(), runtime.clone());
        let watchdog = Watchdog::start(store.clone(), clock.clone(), cleaner.clone(), losses, reporter, &runtime);
        let claimant = Arc::new(Claimant::here());
        Ok(Arc::new(Self { store, clock, watchdog, cleaner, claimant, closed: watch::Sender::new(false) }))
    }

    /// Completes when the client is closed. Cancel safe.
    pub(crate) async fn closed(&self) -> Error {
        // The sender lives in `self`, so that the wait cannot fail before the value comes.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
        Error::new(ErrorKind::Closed, Operation::Claim, "these locks were closed").advise("open the store again")
    }

    pub(crate) async fn close(&self) {
        self.closed.send_replace(true);
        self.watchdog.lose_all(LossReason::Closed);
        tokio::select! {
            () = self.cleaner.idle() => {}
            () = clock::sleep(&*self.clock, GIVE_BACK_WITHIN) => {
                tracing::warn!("not everything could be given back in time; it comes free after its TTL");
            }
        }
        // In any case, or what could not be given back would be tried again and again, by connections that nobody ends.
        tokio::select! {
            () = self.store.close() => {}
            () = clock::sleep(&*self.clock, CLOSE_WITHIN) => tracing::warn!("the store did not close in time"),
        }
    }
}

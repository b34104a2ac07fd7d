//! The store over an etcd cluster.

use std::{fmt, sync::Arc};

use fencepost_core::{
    batches::batches,
    capabilities::Capabilities,
    cells::Cells,
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, Patience, Release, Renewal},
    clock::{BootClock, Clock},
    error::{Error, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    purpose::{Correctness, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, Guard, LossReporter, Store},
};
use futures_util::future::join_all;

use crate::{
    STORE,
    api::below,
    config::EtcdConfig,
    ears::Ears,
    failure::Failure,
    guard::EtcdGuard,
    keys::Keys,
    ledger::Ledger,
    link::Link,
    queue::{Held, Queue, Standing, Taken},
    renewal,
    session::{Session, Sessions},
    survey,
};

/// Locks in an etcd cluster. Of the class [`Correctness`]: the fence is the create revision of the holder's key.
///
/// Dropping it ends its background work; grants then end by their TTL.
pub struct EtcdStore {
    pub(crate) queue: Queue,
    pub(crate) ears: Ears,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
}

impl EtcdStore {
    /// Connects to one of the members, and looks whether a majority answers and our keys may be read.
    ///
    /// # Errors
    /// Of [kind](fencepost_core::error::ErrorKind) `Unavailable`, `PermissionDenied` or `Misconfigured`, within the limits of
    /// `config`.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(config: &EtcdConfig, namespace: &Namespace) -> Result<Self, Error> {
        Self::open_with_clock(config, namespace, BootClock::shared()).await
    }

    /// As [`open`](EtcdStore::open), with leases counted on `clock`.
    ///
    /// # Errors
    /// As for [`open`](EtcdStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_with_clock(
        config: &EtcdConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let link = Arc::new(Link::new(config, clock.clone())?);
        let keys = Keys::new(namespace, config.recipe);
        let greeting = link.range(below(&keys.all()).bare().limited(1)).await;
        // Nothing was changed, whatever went wrong.
        greeting.map_err(|failure| failure.error(Operation::Open, None).not_applied())?;
        let ledger = Arc::new(Ledger::new(keys.clone()));
        let sessions = Sessions::new(link.clone(), keys.clone(), clock.clone(), ledger.clone());
        let ears = Ears::open(link.clone(), ledger.clone(), clock.clone());
        let queue = Queue { link, keys, recipe: config.recipe, ledger, sessions, clock: clock.clone() };
        Ok(Self { queue, ears, clock, capabilities: crate::capabilities_of(config.recipe) })
    }

    pub(crate) fn link(&self) -> &Link {
        &self.queue.link
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.queue.keys
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        if let Some(refusal) = claim.holding.wants().iter().find_map(|want| Refusal::of(want.mode)) {
            return Err(refused(Operation::Claim, refusal, claim.name()));
        }
        let name = claim.name();
        let failed = |failure: Failure| failure.error(Operation::Claim, Some(name));
        let Taken { standing, session, busy } = self.queue.take(claim, patience).await.map_err(failed)?;
        match standing {
            Standing::Holds(held) => self.believe(claim, &held, &session).map(Claimed::Granted).map_err(failed),
            Standing::Refused(refusal) => Err(refused(Operation::Claim, refusal, name)),
            Standing::Behind(place) => {
                self.queue.ledger.placed(claim.owner(), place);
                Ok(Claimed::Queued(busy))
            }
            // Whoever waits as long as it takes is not sent away: the place went while it was looked for. Several locks have
            // no queue in common.
            Standing::Gone if patience == Patience::Queue && claim.holding.wants().len() == 1 => {
                Err(failed(Failure::place_lost()))
            }
            Standing::Gone => Ok(Claimed::Busy(busy)),
        }
    }

    /// The claim was seen to hold. What it counts from is the session's (T1).
    pub(crate) fn believe(&self, claim: &Claim, held: &Held, session: &Arc<Session>) -> Result<Grant, Failure> {
        let own = &held.own;
        let (counted_from, ttl) = session.granted();
        // An old session's claim must not be believed: nobody keeps it alive.
        let until = counted_from.moment().after(ttl);
        if own.lease != session.id || !self.queue.ledger.hold(claim.owner(), until, own.create_revision, held.seen) {
            return Err(Failure::session_lost());
        }
        self.ears.holding(*claim.owner(), self.clock.now());
        Ok(Grant { slots: held.slots.clone(), ..Grant::new(counted_from, Some(ttl), held.fence()) })
    }

    async fn give_back(&self, holding: &Holding) -> Result<Release, Error> {
        let name = holding.name();
        let failed = |failure: Failure| failure.error(Operation::Release, Some(name));
        let leaving = self.queue.ledger.leave(&holding.owner, self.clock.now());
        self.ears.not_holding(&holding.owner);
        let removed = match leaving {
            Some(leaving) => self.queue.sessions.delete(&leaving).await.map_err(failed)?,
            None => survey::remove_all_of(&self.queue, holding).await.map_err(failed)?,
        };
        self.queue.ledger.forget(&holding.owner);
        if removed {
            return Ok(Release::Released);
        }
        let first = self.queue.first(name).await.map_err(failed)?;
        Ok(if first.is_some() { Release::HeldByOther } else { Release::AlreadyExpired })
    }
}

pub(crate) fn refused(operation: Operation, refusal: Refusal, name: &LockName) -> Error {
    refusal.error(operation, name).in_store(STORE)
}

impl Store for EtcdStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.take(claim, patience))
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let batches = batches(claims, renewal::AT_ONCE);
            join_all(batches.map(|batch| renewal::renew(&self.queue, batch))).await.into_iter().flatten().collect()
        })
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(self.give_back(holding))
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(async move {
            let states = survey::inspect(&self.queue, only).await;
            states.map_err(|failure| failure.error(Operation::Inspect, only))
        })
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(async move {
            let forced = survey::force(&self.queue, name, if_fence).await;
            forced.map_err(|failure| failure.error(Operation::Force, Some(name)))
        })
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(async move {
            let downgraded = self.queue.downgrade(claim).await;
            downgraded.map_err(|failure| failure.error(Operation::Renew, Some(claim.name())))
        })
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(async move {
            if of == 0 {
                return Err(refused(Operation::Resize, Refusal::NoPermits, name));
            }
            let resized = self.queue.resize(name, of).await;
            resized
                .map_err(|failure| failure.error(Operation::Resize, Some(name)))?
                .map_err(|refusal| refused(Operation::Resize, refusal, name))
        })
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn report_losses(&self, to: LossReporter) {
        self.queue.ledger.report_to(to);
    }

    fn guard(&self, holding: &Holding) -> Option<Guard> {
        let (keys, create_revision) = self.queue.ledger.held(&holding.owner)?;
        Some(Box::new(EtcdGuard { key: keys.into_iter().next()?, create_revision }))
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.queue.sessions.close().await;
            self.queue.link.close();
        })
    }
}

impl TypedStore for EtcdStore {
    type Serves = Correctness;
}

impl Drop for EtcdStore {
    fn drop(&mut self) {
        // Their tasks hold the sessions, not the store.
        self.queue.sessions.abandon();
        self.queue.link.close();
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("keys", &self.queue.keys).finish_non_exhaustive()
    }
}

//! The guard of a lock that is held.

use std::{any::Any, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    claim::{Claim, Grant, LossReason, Release, Renewal},
    clock::{self, Moment},
    error::{Error, ErrorKind, Operation, Retry},
    fence::Fence,
    name::LockName,
    owner::Owner,
    purpose::{Correctness, Purpose},
};

use crate::{
    cleaner::Trace,
    client::Client,
    hold::{Counted, Exclusive, Hold, Shared},
    watchdog::Held,
};

/// How long a release may take before its outcome is unknown (O3).
pub const RELEASE_WITHIN: Duration = Duration::from_secs(5);

/// A lock that is held, or was.
///
/// It is a lease: between two instructions of yours it can be lost, by a pause of the process, a partition, or an
/// administrator. [`check`](Lease::check) tells what is known now, [`lost`](Lease::lost) tells when it changes, and
/// for correctness the resource decides by the [`fence`](Lease::fence).
///
/// Dropped, it is not renewed any more from that moment on and is given back in the background (R2); at the latest
/// it comes free after its TTL. It can be sent to other threads and tasks.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back"]
pub struct Lease<P, H = Exclusive> {
    client: Arc<Client>,
    held: Arc<Held>,
    fence: Option<Fence>,
    slots: Arc<[u32]>,
    giving_back: GivingBack,
    /// Alive for as long as the lease may be, where somebody counts.
    counted: Option<Arc<()>>,
    kind: PhantomData<fn() -> (P, H)>,
}

/// How far a lease is on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GivingBack {
    No,
    /// A release was sent, or was about to be, and its answer was not seen.
    Begun,
    Done,
}

impl Lease<Correctness> {
    /// The fence of this grant: higher than that of every earlier grant of this lock, the same for as long as the
    /// lease lives (F1). Send it with every write; advance the fence at the resource before you read there.
    pub fn fence(&self) -> Fence {
        // `Locks<Correctness>` exist only on stores whose every grant carries one.
        self.fence.expect("a store that issues fences granted without one")
    }
}

impl<P: Purpose> Lease<P> {
    /// Makes the writer a reader, with no moment in between in which another could write; the readers that wait next
    /// come in. A store that is out of reach is tried again until the lease is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lease was lost first; [`ErrorKind::Unsupported`] when the store has no shared
    /// locks. The lock is given back then.
    ///
    /// # Cancel safety
    /// Dropped, it gives the lock back in the background, as writer or as reader.
    pub async fn downgrade(self) -> Result<Lease<P, Shared>, Error> {
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let answer = self.run(async {
            loop {
                match self.client.store.downgrade(&self.held.claim).await {
                    Err(error) if error.retry() == Retry::Later => {
                        clock::sleep(&*self.client.clock, backoff.pause()).await;
                    }
                    answer => return answer,
                }
            }
        });
        let answer = answer.await??;
        // Where grants do not expire, it has no deadline to be moved.
        if self.client.store.capabilities().expires || matches!(answer, Renewal::Lost(_)) {
            self.client.watchdog.renewed_by_hand(self.owner(), answer);
        }
        self.check()?;
        let claim = Claim { holding: self.held.claim.holding.shared(), ..(*self.held.claim).clone() };
        let held = self.client.watchdog.exchange(Arc::new(claim));
        let held = held.ok_or_else(|| self.loss_error(self.held.loss().unwrap_or(LossReason::Closed)))?;
        Ok(self.held_as(held))
    }

    /// The same grant, held differently.
    fn held_as<H: Hold>(mut self, held: Arc<Held>) -> Lease<P, H> {
        self.giving_back = GivingBack::Done; // by the other one, from now on
        Lease {
            client: self.client.clone(),
            held,
            fence: self.fence,
            slots: self.slots.clone(),
            giving_back: GivingBack::No,
            counted: self.counted.take(),
            kind: PhantomData,
        }
    }
}

impl Lease<Correctness, Shared> {
    /// The fence of the last writer before this reader, or a number between that and the next writer's, where the fences of the
    /// store are numbers of its whole history (etcd, ZooKeeper); `None` when nobody has written yet. A resource refuses this
    /// reader once it has seen a newer writer's, and never advances by it (F3): two readers' numbers have no order.
    pub fn fence(&self) -> Option<Fence> {
        self.fence
    }
}

impl Lease<Correctness, Counted> {
    /// The fence of each of the [`slots`](Lease::slots): higher than that of every earlier holder of the slot. The
    /// resource keeps one number for each slot (F3).
    pub fn fence(&self) -> Fence {
        self.fence.expect("a store that issues fences granted without one")
    }
}

impl<P: Purpose> Lease<P, Counted> {
    /// The slots that the permits are, counted from 0. No two holders have the same one at a time.
    pub fn slots(&self) -> &[u32] {
        &self.slots
    }
}

impl<P: Purpose, H: Hold> Lease<P, H> {
    pub(crate) fn new(client: Arc<Client>, held: Arc<Held>, grant: Grant) -> Self {
        let Grant { fence, slots, .. } = grant;
        Self { client, held, fence, slots, giving_back: GivingBack::No, counted: None, kind: PhantomData }
    }

    /// The fence, where the store issued one.
    pub(crate) fn issued(&self) -> Option<Fence> {
        self.fence
    }

    pub(crate) fn held(&self) -> Arc<Held> {
        self.held.clone()
    }

    /// Lets `token` live for as long as the lease does.
    pub(crate) fn counted_by(mut self, token: Arc<()>) -> Self {
        self.counted = Some(token);
        self
    }

    /// The lock.
    pub fn name(&self) -> &LockName {
        self.held.claim.name()
    }

    /// All locks of the grant, sorted by name: more than one where several were claimed in one step.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.held.claim.holding.wants().iter().map(|want| &want.name)
    }

    /// The owner value. Whoever knows it can renew and release this grant.
    pub fn owner(&self) -> &Owner {
        self.held.claim.owner()
    }

    /// When the lease ends unless it is renewed, on the client's clock; `None` where nothing ends it.
    pub fn deadline(&self) -> Option<Moment> {
        self.held.deadline()
    }

    /// For how long the lease lasts unless it is renewed: zero once it is lost, `None` where nothing ends it.
    /// Reads the clock itself.
    pub fn remaining(&self) -> Option<Duration> {
        if self.check().is_err() {
            return Some(Duration::ZERO);
        }
        self.deadline().map(|deadline| deadline.since(self.client.clock.now()))
    }

    /// Whether the lease is held as far as can be known here. Reads the clock itself, so that a process that wakes
    /// from a pause finds out at its first call (L1).
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason; [`ErrorKind::Closed`] once a release was begun, whatever became of it: the
    /// store may have freed the lock.
    pub fn check(&self) -> Result<(), Error> {
        if self.giving_back != GivingBack::No {
            let said = "the lease was given back, or is about to be";
            return Err(self.error(ErrorKind::Closed, Operation::Run, said).not_applied());
        }
        if self.deadline().is_some_and(|deadline| self.client.clock.now() >= deadline) {
            self.client.watchdog.settle(self.owner());
        }
        match self.held.loss() {
            Some(reason) => Err(self.loss_error(reason).not_applied()),
            None => Ok(()),
        }
    }

    /// Completes when the lease is lost, at the latest at its deadline, with the reason (L1). Once a release was begun
    /// nothing is held any more: it completes at once with [`LossReason::Closed`].
    ///
    /// # Cancel safety
    /// Safe, and can be called again.
    pub async fn lost(&self) -> LossReason {
        if self.giving_back != GivingBack::No {
            return LossReason::Closed;
        }
        // By an alarm of its own as well: the watchdog's task ends with the runtime that the locks were opened in.
        while let Some(deadline) = self.deadline() {
            tokio::select! {
                biased;
                reason = self.held.lost() => return reason,
                () = self.client.clock.sleep_until(deadline) => self.client.watchdog.settle(self.owner()),
            }
        }
        self.held.lost().await
    }

    /// Runs `work` for as long as the lease lasts. On loss, `work` is dropped where it stands (L2).
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when the lease was lost first. What `work` had done by then is done, so that the outcome is unknown
    /// unless the lease was lost before `work` began.
    ///
    /// # Cancel safety
    /// As safe as `work` is. The lease stays held.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        self.check()?;
        tokio::select! {
            biased;
            reason = self.lost() => Err(self.loss_error(reason)),
            done = work => Ok(done),
        }
    }

    /// Extends the lease by its TTL now. For leases taken with `manual_renewal`; others are renewed by the watchdog.
    /// Answers what [`remaining`](Lease::remaining) would.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] when it is not ours any more. After any other error the outcome is unknown and the
    /// deadline is where it was (T1); try again.
    ///
    /// # Cancel safety
    /// Safe: the store may extend the grant, the deadline here stays where it was.
    pub async fn renew(&self) -> Result<Option<Duration>, Error> {
        self.check()?;
        if !self.client.store.capabilities().expires {
            return Ok(self.remaining());
        }
        let claims = [self.held.claim.clone()];
        let answer: Option<Result<Renewal, Error>> = self.client.store.renew(&claims).await.pop();
        let answer = answer
            .ok_or_else(|| self.error(ErrorKind::Unavailable, Operation::Renew, "the store gave no answer"))??;
        self.client.watchdog.renewed_by_hand(self.owner(), answer);
        self.check()?;
        Ok(self.remaining())
    }

    /// Gives the lock back. From the first poll on it is renewed no more.
    ///
    /// # Errors
    /// Only when the outcome is unknown: the store did not answer within [`RELEASE_WITHIN`]. Calling it again is
    /// safe; it may then answer [`Release::AlreadyExpired`] for what the first try released. Dropping the lease
    /// instead goes on trying in the background.
    ///
    /// # Cancel safety
    /// Safe: call it again, or drop the lease, which gives it back in the background.
    pub async fn release(&mut self) -> Result<Release, Error> {
        self.giving_back = GivingBack::Begun;
        self.client.watchdog.forget(self.owner());
        let answer = tokio::select! {
            biased; // a store that answers at once needs no alarm
            answer = self.client.store.release(&self.held.claim.holding) => answer?,
            () = clock::sleep(&*self.client.clock, RELEASE_WITHIN) => {
                let error = self.error(ErrorKind::Unavailable, Operation::Release, "the store did not answer in time");
                return Err(error.advise("try again, or let it run out after its TTL"));
            }
        };
        self.giving_back = GivingBack::Done;
        Ok(answer)
    }

    /// The condition under which this grant holds, in the store's own terms: for a transaction of your own in the same
    /// store. It takes effect only while the lock is held, so that data beside the lock need no fence. `None` on a store
    /// that has another kind of guard or none, and once the lease is lost or being given back.
    ///
    /// The stores' documentation names the types, for etcd `fencepost_etcd::EtcdGuard`, for
    /// ZooKeeper `fencepost_zookeeper::ZooKeeperGuard`.
    pub fn guard<G: Any>(&self) -> Option<G> {
        self.check().ok()?;
        let guard = self.client.store.guard(&self.held.claim.holding)?;
        guard.downcast().ok().map(|guard| *guard)
    }

    /// A descriptor that keeps the lock for as long as any process has it open, on stores where the lock is one:
    /// to hand to a guardian or a child on purpose. `None` on the others.
    #[cfg(unix)]
    pub fn descriptor(&self) -> Option<std::io::Result<std::os::fd::OwnedFd>> {
        self.client.store.descriptor(&self.held.claim.holding)
    }

    fn loss_error(&self, reason: LossReason) -> Error {
        self.error(ErrorKind::Lost(reason), Operation::Run, format!("the lease is lost: {reason}"))
            .advise("stop the work it protects; another may hold the lock by now")
    }

    fn error(&self, kind: ErrorKind, operation: Operation, message: impl Into<String>) -> Error {
        Error::new(kind, operation, message).on_lock(self.name()).in_store(self.client.store.capabilities().store)
    }
}

impl<P, H> Drop for Lease<P, H> {
    fn drop(&mut self) {
        if self.giving_back != GivingBack::Done {
            self.client.watchdog.forget(self.held.claim.owner());
            self.client.cleaner.give_back(self.held.claim.clone(), Trace::Clear);
        }
    }
}

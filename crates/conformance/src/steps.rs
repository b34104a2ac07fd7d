//! The steps that rules are made of.

use std::{future::Future, sync::Arc, time::Duration};

use fencepost::{Acquired, Attempt, Efficiency, Error, Lease, Locks, registry};
use fencepost_core::{
    capabilities::FenceSource,
    claim::{Claim, Claimant, Claimed, Grant, Holding, LossReason, Mode, Patience, Renewal, Want},
    clock::{BootClock, Clock, Moment},
    fence::Fence,
    limits::Ttl,
    name::LockName,
    owner::Owner,
    store::Store,
};

use tokio::runtime::{Builder, Runtime};

use crate::site::{DoesNotApply, Site, Verdict};

/// The TTL of a lease whose end is part of the rule.
pub(crate) const SHORT: Duration = Duration::from_millis(1500);
/// The TTL of a lease that must not end by itself.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// "At once", on a machine that is busy with other tests.
pub(crate) const SOON: Duration = Duration::from_secs(3);

pub(crate) type EfficientLease = Lease<Efficiency>;

pub(crate) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).expect("a valid name")
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// A process as it would be killed: what is opened or started in it ends without a last word when it does.
pub(crate) struct Doomed(Option<Runtime>);

impl Doomed {
    pub(crate) fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
        Self(Some(runtime.expect("threads are to be had")))
    }

    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        std::future::poll_fn(|context| {
            let _in_it = self.0.as_ref().map(Runtime::enter);
            work.as_mut().poll(context)
        })
        .await
    }

    pub(crate) fn die(self) {
        drop(self);
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

/// A new client.
pub(crate) async fn locks(site: &dyn Site) -> Locks<Efficiency> {
    locks_at(site, &site.url()).await
}

pub(crate) async fn locks_at(site: &dyn Site, url: &str) -> Locks<Efficiency> {
    let opened = Locks::builder(url).namespace(site.namespace()).open().await;
    opened.expect("the store must open").for_efficiency()
}

/// A new client whose leases count on `clock`.
pub(crate) async fn locks_on(site: &dyn Site, clock: impl Clock) -> Locks<Efficiency> {
    let url = site.url();
    let builder = Locks::builder(&url).namespace(site.namespace());
    builder.clock(Arc::new(clock)).open().await.expect("the store must open").for_efficiency()
}

/// A new client's bare store.
pub(crate) async fn store(site: &dyn Site) -> Arc<dyn Store> {
    store_at(&site.url(), site).await
}

pub(crate) async fn store_at(url: &str, site: &dyn Site) -> Arc<dyn Store> {
    registry::open_store(url, site.namespace(), BootClock::shared()).await.expect("the store must open")
}

pub(crate) fn claim(lock: &str, ttl: Duration) -> Arc<Claim> {
    claim_as(lock, ttl, Mode::Exclusive)
}

pub(crate) fn claim_as(lock: &str, ttl: Duration, mode: Mode) -> Arc<Claim> {
    let holding = Holding::one(Want { name: name(lock), mode }, Owner::random().expect("randomness"));
    Arc::new(Claim { holding, ttl: Ttl::new(ttl).expect("a valid TTL"), claimant: Arc::new(Claimant::here()) })
}

/// Claims what must be free.
pub(crate) async fn granted(store: &Arc<dyn Store>, claim: &Claim) -> Grant {
    match store.claim(claim, Patience::Once).await.expect("the claim must be answered") {
        Claimed::Granted(grant) => grant,
        other => panic!("{:?} must be free: {other:?}", claim.name()),
    }
}

/// Claims what must be held, and queues.
pub(crate) async fn queued(store: &Arc<dyn Store>, claim: &Claim) {
    match store.claim(claim, Patience::Queue).await.expect("the claim must be answered") {
        Claimed::Queued(_) => {}
        other => panic!("{:?} must be held: {other:?}", claim.name()),
    }
}

pub(crate) async fn renewed(store: &Arc<dyn Store>, claim: &Arc<Claim>) -> Result<Renewal, Error> {
    let mut answers = store.renew(std::slice::from_ref(claim)).await;
    assert_eq!(answers.len(), 1, "one answer for each claim");
    answers.remove(0)
}

/// Takes what must be free.
pub(crate) async fn take(locks: &Locks<Efficiency>, lock: &str, ttl: Duration) -> EfficientLease {
    acquired(locks.lock(lock).ttl(ttl).wait(Duration::ZERO).acquire().await)
}

pub(crate) fn acquired(outcome: Result<Attempt<EfficientLease>, Error>) -> EfficientLease {
    match outcome {
        Ok(Acquired(lease)) => lease,
        other => panic!("the lock must be granted: {other:?}"),
    }
}

pub(crate) async fn is_busy(locks: &Locks<Efficiency>, lock: &str) -> bool {
    let attempt = locks.lock(lock).ttl(LONG).wait(Duration::ZERO).acquire().await;
    match attempt.expect("the claim must be answered") {
        Acquired(mut lease) => {
            lease.release().await.expect("the release must be answered");
            false
        }
        Attempt::Busy(_) => true,
    }
}

/// Starts to wait for a lock and answers once the claim is in the queue.
pub(crate) async fn start_waiting(
    locks: &Locks<Efficiency>,
    lock: &str,
    ttl: Duration,
) -> tokio::task::JoinHandle<Result<Attempt<EfficientLease>, Error>> {
    let before = waiters(locks.store(), lock).await;
    let request = locks.lock(lock).ttl(ttl);
    let task = tokio::spawn(request.acquire());
    eventually(SOON, "the claim is in the queue", async || waiters(locks.store(), lock).await > before).await;
    task
}

pub(crate) async fn waiters(store: &Arc<dyn Store>, lock: &str) -> usize {
    let states = store.inspect(Some(&name(lock))).await.expect("the listing must be answered");
    states.iter().map(|state| state.waiters.len()).sum()
}

pub(crate) async fn reason_of_loss(lease: &EfficientLease, limit: Duration) -> LossReason {
    within(limit, "the holder is told of its loss", lease.lost()).await
}

pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("within {limit:?}: {what}"))
}

/// Waits for a condition that nothing announces.
pub(crate) async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = now().after(limit);
    while !condition().await {
        assert!(now() < until, "within {limit:?}: {what}");
        tokio::time::sleep(ms(10)).await;
    }
}

/// Waits until no lock is held or waited for.
pub(crate) async fn nothing_held(site: &dyn Site, limit: Duration) {
    let store = store(site).await;
    eventually(limit, "nothing is held", async || store.inspect(None).await.expect("a listing").is_empty()).await;
}

/// Waits until nothing is held or queued, by what an administrator sees.
pub(crate) async fn nothing_left(site: &dyn Site, limit: Duration) {
    let until = now().after(limit);
    loop {
        let left = site.leftovers().await;
        if left.is_empty() {
            return;
        }
        assert!(now() < until, "after {limit:?} there is still {left:?}");
        tokio::time::sleep(ms(20)).await;
    }
}

pub(crate) fn expires(site: &dyn Site) -> Verdict {
    site.capabilities().expires.then_some(()).ok_or(DoesNotApply("grants do not expire on this store"))
}

pub(crate) fn issues_fences(site: &dyn Site) -> Verdict {
    let issues = matches!(site.capabilities().fence, FenceSource::Issued(_));
    issues.then_some(()).ok_or(DoesNotApply("the store issues no fence"))
}

pub(crate) fn fence_of(grant: &Grant) -> Fence {
    grant.fence.expect("a store that issues fences grants with one")
}

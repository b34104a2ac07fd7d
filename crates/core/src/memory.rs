//! The memory store: the contract of a [`Store`] as a program, and a store for tests of your own code.
//!
//! A [`MemorySpace`] is the place, a [`MemoryStore`] one client of it. Several clients of one space behave like
//! several processes on one server: they share locks, queues and fences, and nothing else. Expiry is judged by the
//! space's own clock (T2), so that with a [`ManualClock`](crate::clock::ManualClock) a lease lives and dies without
//! waiting.
//!
//! What it promises beyond the contract: first come, first served; a hand-over is an offer until the waiter has
//! confirmed it, and lapses after [`CONFIRM_WITHIN`]; fences rise for as long as the space lives.

mod cells;
mod ledger;

use std::{
    collections::HashMap,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ledger::{Given, Ledger, Turn};

use crate::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    cells::Cells,
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, LossReason, Patience, Release, Renewal},
    clock::{BootClock, Clock, Moment, Sent, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    owner::Owner,
    purpose::{Correctness, TypedStore},
    refusal::Refusal,
    scheme::{Opening, Scheme},
    store::{BoxFuture, LossReporter, Store},
};

/// How long a waiter that was handed a lock has to confirm it. One that is dead, or was dropped without a release,
/// holds the queue up for this long.
pub const CONFIRM_WITHIN: Duration = Duration::from_millis(500);

/// `memory:NAME`. Every opening of one name in one namespace of one process shares a space, which lives as long as the
/// process and is judged by the clock of the first opening.
pub const SCHEME: Scheme = Scheme { names: &["memory"], capabilities, open };

/// The facts about the memory store.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: "memory",
        url: "memory:NAME",
        class: Class::Correctness,
        scope: "one process",
        fence: FenceSource::Issued("a counter for each lock"),
        expires: true,
        freed_on_death: FreedOnDeath::AfterTtl,
        wakes_by: "a message to the next waiter",
        order: Order::FirstCome(""),
        tells_deletion: true,
        shared: true,
        permits: true,
        several: true,
        cells: true,
    }
}

/// A place for locks in memory. Clones are the same place.
#[derive(Clone, Debug)]
pub struct MemorySpace {
    ledger: Arc<Mutex<Ledger>>,
    shelf: Arc<cells::Shelf>,
    clock: Arc<dyn Clock>,
}

impl MemorySpace {
    /// An empty space on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(BootClock::shared())
    }

    /// An empty space that judges expiry by `clock`.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { ledger: Arc::default(), shelf: Arc::default(), clock }
    }

    /// The space that `memory:NAME` means in this process, so that a test can hand a URL to the code under test and
    /// look at the space itself. Its clock is that of whoever named it first; [`BootClock`] when that is this call.
    pub fn named(namespace: &Namespace, name: &str) -> Self {
        shared_space(namespace, name, BootClock::shared)
    }

    /// A new client whose grants count on the space's own clock.
    pub fn client(&self) -> MemoryStore {
        self.client_with_clock(self.clock.clone())
    }

    /// A new client whose grants count on `clock`, as on a machine whose clock differs from the store's.
    pub fn client_with_clock(&self, clock: Arc<dyn Clock>) -> MemoryStore {
        let client = Client { losses: OnceLock::new(), closed: AtomicBool::new(false) };
        MemoryStore { space: self.clone(), clock, client: Arc::new(client), capabilities: capabilities() }
    }

    /// Removes the holders' records of a lock, as an administrator with the store's own tools would. The holders are
    /// told `Deleted`; the fence stays (F4).
    pub fn delete(&self, name: &LockName) {
        self.ledger().evict(self.now(), name);
    }

    /// How many grants and places in a queue there are.
    pub fn records(&self) -> usize {
        self.ledger().records(self.now())
    }

    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        // No method of the ledger runs foreign code, so that a panic cannot leave it half changed.
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for MemorySpace {
    fn default() -> Self {
        Self::new()
    }
}

/// One client of a [`MemorySpace`].
#[derive(Debug)]
pub struct MemoryStore {
    space: MemorySpace,
    clock: Arc<dyn Clock>,
    client: Arc<Client>,
    capabilities: Capabilities,
}

/// What the space knows of a client: where to tell it of losses.
#[derive(Debug)]
struct Client {
    losses: OnceLock<LossReporter>,
    closed: AtomicBool,
}

impl Client {
    fn tell(&self, owner: Owner, reason: LossReason) {
        if let Some(losses) = self.losses.get() {
            losses.lost(owner, reason);
        }
    }
}

impl MemoryStore {
    /// The only client of a new space.
    pub fn new() -> Self {
        MemorySpace::new().client()
    }

    /// The space it is a client of.
    pub fn space(&self) -> &MemorySpace {
        &self.space
    }

    fn open_for(&self, operation: Operation) -> Result<(), Error> {
        if self.client.closed.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Closed, operation, "the client was closed")
                .not_applied()
                .in_store(self.capabilities.store));
        }
        Ok(())
    }

    fn try_claim(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        self.open_for(Operation::Claim)?;
        let counted_from = Sent::now(&*self.clock);
        let wall = wall_unix_ms(&*self.space.clock);
        let answer = self.space.ledger().claim(self.space.now(), wall, claim, patience, &self.client);
        Ok(match answer {
            ledger::Answer::Granted(given) => Claimed::Granted(self.grant(claim, counted_from, given)),
            ledger::Answer::Refused(refusal) => return Err(self.refused(Operation::Claim, refusal, claim.name())),
            ledger::Answer::Busy(busy) => Claimed::Busy(busy),
            ledger::Answer::Queued(busy) => Claimed::Queued(busy),
        })
    }

    async fn wait(&self, claim: &Claim) -> Result<Grant, Error> {
        loop {
            self.open_for(Operation::Wait)?;
            // Before the step that confirms an offer, which is what the grant counts from (T1).
            let counted_from = Sent::now(&*self.clock);
            let turn = self.space.ledger().turn(self.space.now(), claim);
            let (offered, look_again) = match turn {
                Turn::Granted(given) => return Ok(self.grant(claim, counted_from, given)),
                Turn::Wait { offered, look_again } => (offered, look_again),
                Turn::Gone => {
                    let said = "the claim has lost its place in the queue";
                    return Err(Error::new(ErrorKind::Unavailable, Operation::Wait, said)
                        .not_applied()
                        .on_lock(claim.name())
                        .in_store(self.capabilities.store));
                }
            };
            match look_again {
                Some(at) => tokio::select! {
                    () = offered.notified() => {}
                    () = self.space.clock.sleep_until(at) => {}
                },
                None => offered.notified().await,
            }
        }
    }

    fn grant(&self, claim: &Claim, counted_from: Sent, given: Given) -> Grant {
        Grant { counted_from, ttl: Some(claim.ttl.get()), fence: given.fence, slots: given.slots }
    }

    fn refused(&self, operation: Operation, refusal: Refusal, name: &LockName) -> Error {
        refusal.error(operation, name).in_store(self.capabilities.store)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl TypedStore for MemoryStore {
    type Serves = Correctness;
}

impl Store for MemoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move { self.try_claim(claim, patience) })
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let counted_from = Sent::now(&*self.clock);
            let one = |claim: &Arc<Claim>| {
                self.open_for(Operation::Renew)?;
                Ok(match self.space.ledger().renew(self.space.now(), claim) {
                    Ok(()) => Renewal::Renewed { counted_from, ttl: claim.ttl.get() },
                    Err(reason) => Renewal::Lost(reason),
                })
            };
            claims.iter().map(one).collect()
        })
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(async move {
            self.open_for(Operation::Release)?;
            Ok(self.space.ledger().release(self.space.now(), holding))
        })
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(async move {
            self.open_for(Operation::Inspect)?;
            Ok(self.space.ledger().inspect(self.space.now(), only))
        })
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(async move {
            self.open_for(Operation::Force)?;
            Ok(self.space.ledger().force(self.space.now(), name, if_fence))
        })
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(async move {
            self.open_for(Operation::Renew)?;
            let counted_from = Sent::now(&*self.clock);
            Ok(match self.space.ledger().downgrade(self.space.now(), claim) {
                Ok(()) => Renewal::Renewed { counted_from, ttl: claim.ttl.get() },
                Err(reason) => Renewal::Lost(reason),
            })
        })
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(async move {
            self.open_for(Operation::Resize)?;
            let answer = self.space.ledger().resize(self.space.now(), name, of);
            answer.map_err(|refusal| self.refused(Operation::Resize, refusal, name))
        })
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(&self.space)
    }

    fn report_losses(&self, to: LossReporter) {
        // Called once by the contract; a second reporter would have to share grants with the first.
        let _ = self.client.losses.set(to);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.client.closed.store(true, Ordering::Release);
        self.space.ledger().wake_waiters_of(&self.client);
        Box::pin(std::future::ready(()))
    }
}

type Spaces = HashMap<(String, String), MemorySpace>;

static SPACES: LazyLock<Mutex<Spaces>> = LazyLock::new(Mutex::default);

fn shared_space(namespace: &Namespace, name: &str, clock: impl FnOnce() -> Arc<dyn Clock>) -> MemorySpace {
    let key = (namespace.as_str().to_owned(), name.to_owned());
    let mut spaces = SPACES.lock().unwrap_or_else(PoisonError::into_inner);
    spaces.entry(key).or_insert_with(|| MemorySpace::with_clock(clock())).clone()
}

fn open(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let name = opening.url.path().to_owned();
        if !opening.url.hosts().is_empty() || name.is_empty() {
            let said = "a memory store is named as in `memory:tests`";
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Open, said).not_applied());
        }
        opening.url.finish("no options")?;
        let space = shared_space(&opening.namespace, &name, || opening.clock.clone());
        Ok(Arc::new(space.client_with_clock(opening.clock)) as Arc<dyn Store>)
    })
}

#[cfg(test)]
mod tests;

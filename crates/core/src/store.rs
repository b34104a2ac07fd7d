//! The contract between the primitives and a store.

use std::{any::Any, fmt, future::Future, pin::Pin, sync::Arc};

use tokio::sync::{Notify, mpsc};

use crate::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, LossReason, Patience, Release, Renewal},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::LockName,
    owner::Owner,
};

/// A boxed future, so that the trait can be used as an object.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A condition in a store's own terms, see [`Store::guard`]. Neither the core nor a primitive knows any.
pub type Guard = Box<dyn Any + Send + Sync>;

/// A place where locks live.
///
/// # What every store keeps to
///
/// - **Conditional on the owner (O2).** Each change names an owner value and changes nothing that is not
///   recorded under it. A renewal never creates a record.
/// - **Claims can be repeated.** A claim whose owner value already holds or queues answers as the first one
///   did; that is how an answer of unknown outcome is cleared up.
/// - **Times (T1).** [`Grant::counted_from`] and [`Renewal::Renewed::counted_from`] are read from the store's
///   [`Clock`](crate::clock::Clock) before the request leaves, never after the reply came.
/// - **Every future may be dropped at any point (C1).** What a dropped claim or turn may have left is removed
///   by a later [`release`](Store::release) of the same holding; the client sends one. A store must not poison
///   a connection when a future is dropped.
/// - **Every call ends (C2).** A store that does not answer yields [`ErrorKind::Unavailable`] within the store's
///   own limit for one call, a few seconds by default. Only [`turn`](Store::turn) waits for as long as others hold.
/// - **Names (C3)** never collide with each other or with keys that are not ours.
///
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// The facts about this store.
    fn capabilities(&self) -> &Capabilities;

    /// Asks for a grant: all wants or nothing. A store that takes several locks in one step may refuse those which it cannot,
    /// as [`ErrorKind::Unsupported`]: the client then takes them one after the other.
    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>>;

    /// Waits until a claim that was [`Claimed::Queued`] is granted.
    ///
    /// A grant that another's release handed over is answered only after the store confirmed it on condition of
    /// the owner, and counts from before that confirmation was sent (T1). Short outages are bridged inside; an
    /// error that a retry can help with makes the client claim again with the same owner, which keeps its place
    /// where the store still has it.
    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>>;

    /// Extends grants, one answer per claim in the same order. One that fails leaves the others alone (R1).
    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>>;

    /// Gives back whatever is recorded under this owner: the grant, or the place in the queue.
    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>>;

    /// Every lock that is held or waited for, sorted by name; with `only`, just that one (an empty list when it
    /// is neither).
    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>>;

    /// Takes a lock from its holder, who is told. Waiters keep their places. With `if_fence`, only while it is
    /// held with that fence.
    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>>;

    /// Turns a writer into a reader without a gap: the exclusive grant of `claim`'s owner becomes a shared one with
    /// the same fence and a fresh TTL, and the readers that wait next may come in beside it. `claim` has the exclusive
    /// wants; from the answer on the grant is renewed and released as the shared one. A repeat answers as the first.
    ///
    /// Stores whose capabilities say `shared` implement it.
    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        let refused = unsupported(self.capabilities(), "shared locks", claim.name());
        Box::pin(std::future::ready(Err(refused)))
    }

    /// Sets how many permits a semaphore that is in use has. Nobody loses a permit by it: with fewer permits than are
    /// held, new ones are granted when enough have come back. Waiters that want more than there are get
    /// [`ErrorKind::Mismatch`] at their next claim. Answers the former limit; `None` when nobody holds or waits, and
    /// then nothing is changed, since the next claim sets the limit.
    ///
    /// Stores whose capabilities say `permits` implement it.
    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        let _ = of;
        let refused = unsupported(self.capabilities(), "permits", name);
        Box::pin(std::future::ready(Err(refused)))
    }

    /// The cells beside the locks, where the store keeps any.
    fn cells(&self) -> Option<&dyn Cells> {
        None
    }

    /// Where to report losses that the store hears of by itself (L4). Called once, before any claim.
    fn report_losses(&self, to: LossReporter);

    /// A descriptor that keeps the grant alive for as long as any process has it open, where the grant *is* such a
    /// descriptor. It is handed out on request only: a child that inherits it keeps the lock.
    #[cfg(unix)]
    fn descriptor(&self, holding: &Holding) -> Option<std::io::Result<std::os::fd::OwnedFd>> {
        let _ = holding;
        None
    }

    /// The condition under which the grant holds, in the store's own terms: for a transaction of the caller's own in the
    /// same store, which then takes effect only while the lock is held. `None` where the store has no such condition,
    /// or the grant is not held here. What type it is says the store's documentation.
    fn guard(&self, holding: &Holding) -> Option<Guard> {
        let _ = holding;
        None
    }

    /// Ends connections and background work. Grants are not given back by it.
    fn close(&self) -> BoxFuture<'_, ()>;
}

fn unsupported(store: &Capabilities, what: &str, name: &LockName) -> Error {
    Error::new(ErrorKind::Unsupported, Operation::Claim, format!("{} has no {what}", store.store))
        .not_applied()
        .on_lock(name)
        .in_store(store.store)
}

/// Carries losses, and doubts, from a store to the client.
#[derive(Clone, Debug)]
pub struct LossReporter {
    losses: mpsc::UnboundedSender<(Owner, LossReason)>,
    doubts: Arc<Notify>,
}

impl LossReporter {
    /// A reporter and the end where its reports arrive. There is at most one report for each grant, which
    /// bounds the queue.
    pub fn channel() -> (Self, mpsc::UnboundedReceiver<(Owner, LossReason)>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (Self { losses: sender, doubts: Arc::default() }, receiver)
    }

    /// Reports that the grant of `owner` is lost. Reports for grants that are not held are ignored.
    pub fn lost(&self, owner: Owner, reason: LossReason) {
        // A closed receiver means that the client is gone and nobody holds anything.
        let _ = self.losses.send((owner, reason));
    }

    /// Reports that every grant is in doubt: another server has taken over, or messages may have been missed. The
    /// client renews all of them now, and so finds the lost ones without waiting for their turn.
    pub fn doubt(&self) {
        self.doubts.notify_one();
    }

    /// Completes when the store is in doubt. Several doubts count as one. Cancel safe.
    pub async fn doubted(&self) {
        self.doubts.notified().await;
    }
}

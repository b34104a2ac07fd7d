//! A lock on one store with fences from another: for a fast store that cannot issue any.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    time::Duration,
};

use fencepost_core::{
    claim::{Attempt, Holding},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    limits::Wait,
    name::LockName,
    purpose::{Correctness, Efficiency},
};

use crate::{
    cell::Cell,
    lease::Lease,
    locks::Locks,
    request::{Terms, obtain, terms},
};

/// Locks for efficiency whose fences come from another store. Made by [`Locks::fenced_by`].
///
/// The lease is taken on the first store, and a fence is drawn from the second one **in a second step**, which the rule for real
/// fences forbids (F2). So the number tells the order in which fences were drawn, not the order in which leases were
/// granted; after the draw the lease is checked again. It is therefore no
/// [`Lease<Correctness>`](crate::Lease), and nothing that asks for one takes it.
///
/// | what happens | what comes of it |
/// |---|---|
/// | the first store grants twice, as Redis may in a failover | both draw a fence, and the resource refuses the one who drew first once the other has advanced: **no update is lost** |
/// | a holder is paused between its grant and its draw, and its lease ends | the check after the draw finds out; it gets an error and no fence |
/// | a virtual machine is paused there, so that its clocks stand still | it draws a newer fence than the holder after it, who is refused although its lease is good: safe, and one of the two fails for nothing |
/// | the second store is away | nobody gets a lock: the lease is given back, and the error says so |
/// | the holder dies | the first store's TTL; nothing is held in the second one |
///
/// *Costs* what the lock costs, and a read and a compare-and-set on the second store for each grant.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Acquired, Locks};
///
/// let fast = Locks::open("memory:fast").await?.for_efficiency(); // redis://10.0.0.5
/// let sure = Locks::open("memory:sure").await?.fenced()?; // postgres://10.0.0.6/shop
/// let locks = fast.fenced_by(&sure)?;
/// if let Acquired(mut lease) = locks.lock("orders/1001").acquire().await? {
///     println!("write with fence {}", lease.fence());
///     lease.release().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FencedBy {
    locks: Locks<Efficiency>,
    issuer: Locks<Correctness>,
}

/// A lock to be taken, with a fence to be drawn. Made by [`FencedBy::lock`].
#[derive(Debug)]
#[must_use = "nothing happens before `acquire`"]
pub struct FencedByRequest {
    by: FencedBy,
    name: Result<LockName, Error>,
    terms: Terms,
}

/// A lease for efficiency with a fence that **orders writes only**. It is used as the lease that it is.
#[must_use = "the lease is given back when it is dropped"]
pub struct OrderedLease {
    lease: Lease<Efficiency>,
    fence: Fence,
}

impl Locks<Efficiency> {
    /// The same locks, with fences drawn from `issuer` for each grant.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when that store keeps no cells.
    pub fn fenced_by(&self, issuer: &Locks<Correctness>) -> Result<FencedBy, Error> {
        cell(issuer, &LockName::new("any")?)?;
        Ok(FencedBy { locks: self.clone(), issuer: issuer.clone() })
    }
}

impl FencedBy {
    /// The lock called `name`, to be taken with [`acquire`](FencedByRequest::acquire). A name that is refused is reported there.
    pub fn lock(&self, name: impl AsRef<str>) -> FencedByRequest {
        FencedByRequest { by: self.clone(), name: LockName::new(name), terms: Terms::default() }
    }
}

impl FencedByRequest {
    terms!();

    /// Takes the lock, waiting in its queue if need be, and draws a fence. The waiting time bounds the first; drawing takes ten
    /// seconds at most, and no longer than the lease lasts.
    ///
    /// # Errors
    /// As for [`LockRequest::acquire`](crate::LockRequest::acquire), of either store;
    /// [`ErrorKind::Lost`] when the lease ended before the fence was drawn. The lease is given back.
    ///
    /// # Cancel safety
    /// Safe, as for [`LockRequest::acquire`](crate::LockRequest::acquire); a fence may have been drawn for nobody.
    pub async fn acquire(self) -> Result<Attempt<OrderedLease>, Error> {
        let Self { by, name, terms } = self;
        let name = name?;
        let cell = cell(&by.issuer, &name)?;
        let lease: Lease<Efficiency> =
            match obtain(by.locks.client().clone(), terms, |owner| Holding::exclusive(name, owner)).await? {
                Attempt::Acquired(lease) => lease,
                Attempt::Busy(busy) => return Ok(Attempt::Busy(busy)),
            };
        let fence = lease.run(draw(&cell)).await??;
        lease.check()?; // a fence that is newer than that of the next holder would shut it out
        Ok(Attempt::Acquired(OrderedLease { lease, fence }))
    }
}

/// Where a lock's fences are drawn from: each change has a version that is higher than all before it.
fn cell(issuer: &Locks<Correctness>, name: &LockName) -> Result<Cell<()>, Error> {
    Cell::new(issuer.client().clone(), "fence", name)
}

async fn draw(cell: &Cell<()>) -> Result<Fence, Error> {
    let mut found = cell.look().await?;
    loop {
        match cell.write(&found, &()).await? {
            Ok(version) => {
                let no_fence = || {
                    let said = format!("the version {version} of a cell is no fence");
                    Error::new(ErrorKind::Corrupt, Operation::Claim, said).applied_in_full()
                };
                return Fence::new(version.0).ok_or_else(no_fence);
            }
            Err(newer) => found = newer, // another has drawn
        }
    }
}

impl OrderedLease {
    /// The fence, which orders writes at a resource that checks it, and does not prove the lock.
    pub fn fence(&self) -> Fence {
        self.fence
    }
}

impl Deref for OrderedLease {
    type Target = Lease<Efficiency>;

    fn deref(&self) -> &Lease<Efficiency> {
        &self.lease
    }
}

impl DerefMut for OrderedLease {
    fn deref_mut(&mut self) -> &mut Lease<Efficiency> {
        &mut self.lease
    }
}

impl fmt::Debug for OrderedLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OrderedLease").field("lease", &self.lease).field("fence", &self.fence).finish()
    }
}

//! Opening the store and taking the lock, within one waiting time for both.

use std::time::Duration;

use fencepost::{
    Attempt, Correctness, Efficiency, Error, ErrorKind, Fence, Lease, LockName, LockRequest, Locks, LocksBuilder, Wait,
    capabilities::FenceSource,
    clock::{self, BootClock, Clock, Moment},
    error::Operation,
    purpose::Purpose,
};

use crate::{
    arguments::{Global, Taking},
    exit::{self, Ending},
};

/// Locks for the strongest purpose that the store serves.
#[derive(Debug)]
pub(crate) enum Opened {
    Fenced(Locks<Correctness>),
    Plain(Locks<Efficiency>),
}

/// A purpose whose locks this command can take. It uses a fence wherever one is issued.
pub(crate) trait Takes: Purpose {
    /// The lock, to be asked for.
    fn request(locks: &Locks<Self>, name: &LockName) -> LockRequest<Self>;
    /// The grant's fence.
    fn fence(lease: &Lease<Self>) -> Option<Fence>;
}

impl Takes for Correctness {
    fn request(locks: &Locks<Self>, name: &LockName) -> LockRequest<Self> {
        locks.lock(name.as_str())
    }

    fn fence(lease: &Lease<Self>) -> Option<Fence> {
        Some(lease.fence())
    }
}

impl Takes for Efficiency {
    fn request(locks: &Locks<Self>, name: &LockName) -> LockRequest<Self> {
        locks.lock(name.as_str())
    }

    fn fence(_: &Lease<Self>) -> Option<Fence> {
        None
    }
}

/// The waiting time, from its beginning.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    began: Moment,
    limit: Option<Duration>,
}

impl Patience {
    /// Begins to count.
    pub(crate) fn begin(limit: Option<Duration>) -> Self {
        Self { began: BootClock.now(), limit }
    }

    /// How long it has lasted.
    pub(crate) fn spent(&self) -> Duration {
        BootClock.now().since(self.began)
    }

    /// What is left for the acquire. Opening may have used it up: then it tries once.
    fn left(&self) -> Wait {
        self.limit.map_or(Wait::Forever, |limit| limit.saturating_sub(self.spent()).into())
    }
}

/// Opens the store. `fenced` insists on fences.
///
/// # Errors
/// The store's own; [`ErrorKind::Unavailable`] when the waiting time is over first;
/// [`ErrorKind::Unsupported`] when fences are insisted on and there are none.
pub(crate) async fn open(global: &Global, fenced: bool, patience: Patience) -> Result<Opened, Ending> {
    let url = global.store().map_err(Ending::usage)?;
    let builder = builder(global, &url);
    // "Try once" bounds the tries, not the one try's time: that is the store's own limit for one call.
    let limit = patience.limit.filter(|limit| !limit.is_zero());
    let locks = match limit {
        None => builder.open().await?,
        Some(limit) => tokio::select! {
            biased;
            opened = builder.open() => opened?,
            () = clock::sleep(&BootClock, limit) => {
                let said = format!("the store did not answer within the waiting time of {limit:?}");
                return Err(Error::new(ErrorKind::Unavailable, Operation::Open, said).not_applied().into());
            }
        },
    };
    if fenced || matches!(locks.capabilities().fence, FenceSource::Issued(_)) {
        return Ok(Opened::Fenced(locks.fenced()?));
    }
    Ok(Opened::Plain(locks.for_efficiency()))
}

/// The lock as the flags describe it, with what is left of the waiting time.
pub(crate) fn request<P: Takes>(
    locks: &Locks<P>,
    name: &LockName,
    taking: &Taking,
    patience: Patience,
) -> LockRequest<P> {
    let mut request = P::request(locks, name).ttl(taking.ttl.get()).wait(patience.left());
    if let Some(most) = taking.max_hold {
        request = request.max_hold(most);
    }
    taking.labels.iter().fold(request, |request, (key, value)| request.label(key, value))
}

/// Asks for the lock, with a word for whoever waits for himself.
///
/// # Errors
/// The store's own.
pub(crate) async fn acquire<P: Takes>(
    global: &Global,
    locks: &Locks<P>,
    name: &LockName,
    request: LockRequest<P>,
) -> Result<Attempt<Lease<P>>, Error> {
    let mut acquire = std::pin::pin!(request.acquire());
    tokio::select! {
        biased;
        attempt = &mut acquire => attempt,
        // Beside it, so that it takes nothing from the waiting time.
        () = warn_of_ourselves(global, locks, name) => acquire.await,
    }
}

/// Warns when this process waits for the command that it is part of: locks are not re-entrant (O4).
async fn warn_of_ourselves<P: Purpose>(global: &Global, locks: &Locks<P>, name: &LockName) {
    let stated = |variable| std::env::var(variable).ok();
    let owner = stated("FENCEPOST_OWNER").and_then(|owner| owner.parse().ok());
    if global.quiet || owner.is_none() || stated("FENCEPOST_LOCK").as_deref() != Some(name.as_str()) {
        return;
    }
    let states = locks.store().inspect(Some(name)).await.unwrap_or_default();
    if states.iter().flat_map(|state| &state.holders).any(|holder| holder.owner == owner) {
        exit::say(&format!(
            "warning: this runs under the lock {name} already, and waits for itself; locks are not re-entrant"
        ));
    }
}

/// Takes the lock, or tells how the command ends without it. What a failed try may have left in the store is
/// given back first.
///
/// # Errors
/// Busy, or the store's own.
pub(crate) async fn attempt<P: Takes>(
    global: &Global,
    locks: &Locks<P>,
    name: &LockName,
    taking: &Taking,
    patience: Patience,
    upkeep: Upkeep,
) -> Result<Lease<P>, Ending> {
    let mut request = request(locks, name, taking, patience);
    if upkeep == Upkeep::ByTheScript {
        request = request.manual_renewal();
    }
    let ending = match acquire(global, locks, name, request).await {
        Ok(Attempt::Acquired(lease)) => return Ok(lease),
        Ok(Attempt::Busy(busy)) => Ending::busy(name, &busy, exit::BUSY),
        Err(error) => error.into(),
    };
    locks.close().await;
    Err(ending)
}

/// Who extends a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Upkeep {
    /// The keeper.
    ByTheKeeper,
    /// Whoever has the owner value.
    ByTheScript,
}

/// Opens the store to look, or to use a grant that somebody else took.
///
/// # Errors
/// The store's own.
pub(crate) async fn browse(global: &Global) -> Result<Locks, Ending> {
    let url = global.store().map_err(Ending::usage)?;
    Ok(builder(global, &url).open().await?)
}

fn builder<'a>(global: &Global, url: &'a str) -> LocksBuilder<'a> {
    let builder = Locks::builder(url).namespace(global.namespace.clone());
    if global.verbose > 0 { builder.observed() } else { builder }
}

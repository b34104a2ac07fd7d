//! Opening the store and taking what was named, within one waiting time for both.

use std::time::Duration;

use fencepost::{
    Attempt, Campaign, Correctness, Efficiency, Error, ErrorKind, Fence, Leadership, Lease, LockName, LockRequest,
    Locks, LocksBuilder, Once, Several, SeveralRequest, Wait,
    capabilities::FenceSource,
    claim::Mode,
    clock::{self, BootClock, Clock, Moment},
    error::Operation,
    hold::Hold,
    purpose::Purpose,
    store::BoxFuture,
};

use crate::{
    arguments::{Elect, Global, Priority, Taking, Way},
    exit::{self, Ending},
    held::{Granted, Held},
};

/// Locks for the strongest purpose that the store serves.
#[derive(Debug)]
pub(crate) enum Opened {
    Fenced(Locks<Correctness>),
    Plain(Locks<Efficiency>),
}

/// A purpose whose locks this command can take. It uses a fence wherever one is issued.
pub(crate) trait Takes: Purpose {
    /// The grant's fence.
    fn fence(lease: &Lease<Self>) -> Option<Fence>;
    /// The lease as something that is held.
    fn held(lease: &Lease<Self>) -> &dyn Held;
    /// Asks for what is named, in its way.
    fn ask(locks: &Locks<Self>, way: Way<'_>, taking: &Taking, patience: Patience) -> Asking;
    /// The work of a key, which is done once.
    fn once(locks: &Locks<Self>, key: &str) -> Once<Self>;
    /// Stands for leader.
    ///
    /// # Errors
    /// When the store keeps no cells.
    fn campaign(locks: &Locks<Self>, elect: &Elect, patience: Patience) -> Result<Asking, Error>;
}

/// On its way to something held. Dropped, it leaves nothing behind (C1).
pub(crate) type Asking = BoxFuture<'static, Result<Attempt<Box<dyn Held>>, Error>>;

macro_rules! takes_for {
    ($purpose:ty) => {
        impl Takes for $purpose {
            fn fence(lease: &Lease<Self>) -> Option<Fence> {
                lease.fence_told()
            }

            fn held(lease: &Lease<Self>) -> &dyn Held {
                lease
            }

            fn ask(locks: &Locks<Self>, way: Way<'_>, taking: &Taking, patience: Patience) -> Asking {
                match way {
                    Way::Alone(name) => asking(locks.lock(name.as_str()), taking, patience),
                    Way::BesideReaders(name) => asking(locks.read_write(name.as_str()).read(), taking, patience),
                    Way::Permits { name, count, of } => {
                        asking(locks.semaphore(name.as_str(), of).permits(count), taking, patience)
                    }
                    Way::Together(names) => asking(locks.several(names.iter().map(LockName::as_str)), taking, patience),
                }
            }

            fn once(locks: &Locks<Self>, key: &str) -> Once<Self> {
                locks.once(key)
            }

            fn campaign(locks: &Locks<Self>, elect: &Elect, patience: Patience) -> Result<Asking, Error> {
                let campaign = locks.election(elect.name.as_str())?.campaign(elect.word.as_str());
                let campaign = match elect.priority {
                    Some(Priority::Of(priority)) => campaign.priority(priority),
                    Some(Priority::Never) | None => campaign,
                };
                Ok(asking(campaign, &elect.taking, patience))
            }
        }
    };
}

takes_for!(Correctness);
takes_for!(Efficiency);

/// A request of some kind, which can be put on the terms of the flags.
pub(crate) trait Asks: Sized {
    /// What it becomes.
    type Held;
    fn ttl(self, ttl: Duration) -> Self;
    fn wait(self, wait: Wait) -> Self;
    fn max_hold(self, most: Duration) -> Self;
    fn label(self, key: &str, value: &str) -> Self;
    fn acquire(self) -> BoxFuture<'static, Result<Attempt<Self::Held>, Error>>;

    /// On the terms of the flags, with what is left of the waiting time.
    fn on(self, taking: &Taking, patience: Patience) -> Self {
        let mut request = self.ttl(taking.ttl.get()).wait(patience.left());
        if let Some(most) = taking.max_hold {
            request = request.max_hold(most);
        }
        taking.labels.iter().fold(request, |request, (key, value)| request.label(key, value))
    }
}

/// The library's requests have the same setters without a trait for them.
macro_rules! asks {
    ($request:ty => $held:ty $(, $hold:ident)?) => {
        impl<P: Purpose $(, $hold: Hold)?> Asks for $request {
            type Held = $held;

            fn ttl(self, ttl: Duration) -> Self {
                self.ttl(ttl)
            }

            fn wait(self, wait: Wait) -> Self {
                self.wait(wait)
            }

            fn max_hold(self, most: Duration) -> Self {
                self.max_hold(most)
            }

            fn label(self, key: &str, value: &str) -> Self {
                self.label(key, value)
            }

            fn acquire(self) -> BoxFuture<'static, Result<Attempt<Self::Held>, Error>> {
                Box::pin(self.acquire())
            }
        }
    };
}

asks!(LockRequest<P, H> => Lease<P, H>, H);
asks!(SeveralRequest<P> => Several<P>);
asks!(Campaign<P> => Leadership<P>);

fn asking<R: Asks<Held: Held + 'static>>(request: R, taking: &Taking, patience: Patience) -> Asking {
    let acquire = request.on(taking, patience).acquire();
    Box::pin(async {
        Ok(match acquire.await? {
            Attempt::Acquired(held) => Attempt::Acquired(Box::new(held) as Box<dyn Held>),
            Attempt::Busy(busy) => Attempt::Busy(busy),
        })
    })
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
    pub(crate) fn left(&self) -> Wait {
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

/// Asks, with a word for whoever waits for himself.
///
/// # Errors
/// The store's own.
pub(crate) async fn acquire<P: Purpose, L>(
    global: &Global,
    locks: &Locks<P>,
    names: &[LockName],
    mode: Mode,
    mut asking: BoxFuture<'_, Result<Attempt<L>, Error>>,
) -> Result<Attempt<L>, Error> {
    tokio::select! {
        biased;
        attempt = &mut asking => attempt,
        // Beside it, so that it takes nothing from the waiting time.
        () = warn_of_ourselves(global, locks, names, mode) => asking.await,
    }
}

/// Warns when this process waits for the command that it is part of: locks are not re-entrant (O4).
async fn warn_of_ourselves<P: Purpose>(global: &Global, locks: &Locks<P>, names: &[LockName], mode: Mode) {
    let stated = |variable| std::env::var(variable).unwrap_or_default();
    let (held, owners) = (stated("FENCEPOST_LOCK"), stated("FENCEPOST_OWNER"));
    let owners: Vec<_> = owners.lines().filter_map(|owner| owner.parse().ok()).collect();
    if global.quiet || owners.is_empty() {
        return;
    }
    for name in names.iter().filter(|name| held.lines().any(|line| line == name.as_str())) {
        let states = locks.store().inspect(Some(name)).await.unwrap_or_default();
        let mut holders = states.iter().flat_map(|state| &state.holders);
        // A reader beside a reader, or a permit beside a permit, need not wait.
        let alone = |of: Mode| of == Mode::Exclusive;
        if holders.any(|holder| {
            (alone(mode) || alone(holder.mode)) && holder.owner.is_some_and(|owner| owners.contains(&owner))
        }) {
            exit::say(&format!(
                "warning: this runs under the lock {name} already, and waits for itself; locks are not re-entrant"
            ));
        }
    }
}

/// Takes what is wanted, or tells how the command ends without it. What a failed try may have left in the store is
/// given back first.
///
/// # Errors
/// Busy, or the store's own.
pub(crate) async fn attempt<P: Takes>(
    global: &Global,
    locks: &Locks<P>,
    way: Way<'_>,
    taking: &Taking,
    patience: Patience,
) -> Result<Box<dyn Held>, Ending> {
    let asking = P::ask(locks, way, taking, patience);
    let ending = match acquire(global, locks, way.names(), way.mode(), asking).await {
        Ok(Attempt::Acquired(held)) => return Ok(held),
        Ok(Attempt::Busy(busy)) => Ending::busy(way, &busy, exit::BUSY),
        Err(error) => error.into(),
    };
    locks.close().await;
    Err(ending)
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

//! Opening a store and asking it for locks.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use fencepost_core::{
    capabilities::{Capabilities, FenceSource},
    claim::{Claimant, Mode},
    clock::{BootClock, Clock},
    error::{Error, ErrorKind, Operation},
    name::{LockName, Namespace},
    purpose::{Correctness, Efficiency, Purpose, TypedStore, Undecided},
    store::Store,
};

use crate::{
    cell::Cell,
    client::Client,
    election::Election,
    latch::{Barrier, Latch},
    members::{self, Group, GroupMember, Members},
    observed::Observed,
    once::Once,
    period::OncePer,
    read_write::ReadWrite,
    reentrant::Reentrant,
    registry,
    request::LockRequest,
    semaphore::Semaphore,
    several::SeveralRequest,
};

/// Locks on one store, for one purpose. Cloning is cheap; all clones are one client with one watchdog.
///
/// Locks opened by URL are [`Undecided`]: say what they are for with [`fenced`](Locks::fenced) or
/// [`for_efficiency`](Locks::for_efficiency). Without that there is no way to take one.
///
/// ```no_run
/// # async fn example() -> Result<(), fencepost::Error> {
/// use fencepost::{Acquired, Busy, Locks};
/// use std::time::Duration;
///
/// let locks = Locks::open("file:/var/lib/app/locks").await?.fenced()?;
/// match locks.lock("orders/1001").wait(Duration::from_secs(5)).acquire().await? {
///     Acquired(mut lease) => {
///         println!("fence {}", lease.fence());
///         lease.release().await?;
///     }
///     Busy(by) => println!("busy: {by:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Locks<P = Undecided> {
    client: Arc<Client>,
    purpose: PhantomData<fn() -> P>,
}

impl Locks {
    /// Opens the store that `url` names, with the default namespace and clock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a URL nobody understands; what the store's documentation lists for the rest.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(url: &str) -> Result<Locks, Error> {
        Locks::builder(url).open().await
    }

    /// Opens a store with more to say than its URL.
    pub fn builder(url: &str) -> LocksBuilder<'_> {
        LocksBuilder { url, namespace: Namespace::default(), clock: BootClock::shared(), observed: false }
    }

    /// Locks on a store that was opened by its own type. The type tells the purpose it serves.
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`] outside a Tokio runtime.
    pub fn with_store<S: TypedStore>(store: Arc<S>, clock: Arc<dyn Clock>) -> Result<Locks<S::Serves>, Error> {
        Ok(Locks::on(Client::start(store, clock)?))
    }
}

impl<P: Purpose> Locks<P> {
    fn on(client: Arc<Client>) -> Self {
        Self { client, purpose: PhantomData }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.client
    }

    /// The cell called `name`, for a value of your own. No purpose needs to be said for it: a change is either made on
    /// what it was meant for or not at all.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the name; [`ErrorKind::Unsupported`] when the store keeps no cells.
    pub fn cell<T>(&self, name: impl AsRef<str>) -> Result<Cell<T>, Error> {
        Cell::new(self.client.clone(), "cell", &LockName::new(name)?)
    }

    /// The latch called `name`, which opens when `parties` have arrived.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the name, or for none or too many parties; [`ErrorKind::Unsupported`] when the
    /// store keeps no cells.
    pub fn latch(&self, name: impl AsRef<str>, parties: u32) -> Result<Latch, Error> {
        Latch::new(self.client.clone(), name.as_ref(), parties)
    }

    /// The barrier called `name`, for `parties`.
    ///
    /// # Errors
    /// As for [`latch`](Locks::latch).
    pub fn barrier(&self, name: impl AsRef<str>, parties: u32) -> Result<Barrier, Error> {
        Barrier::new(self.client.clone(), name.as_ref(), parties)
    }

    /// Work called `name` that is due once in each `period`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the name, or a period outside the limits of a [`Ttl`](crate::Ttl);
    /// [`ErrorKind::Unsupported`] when the store keeps no cells.
    pub fn once_per(&self, name: impl AsRef<str>, period: Duration) -> Result<OncePer, Error> {
        OncePer::new(self.client.clone(), name.as_ref(), period)
    }

    /// The groups that processes have joined ([`members`](Locks::members)), for listings.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the store keeps no cells; the rest as for [`Cell::read`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn groups(&self) -> Result<Vec<Group>, Error> {
        members::groups(&self.client).await
    }

    /// Who is in the group called `name`; nobody when there is no such group.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the name; the rest as for [`groups`](Locks::groups).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn members_of(&self, name: impl AsRef<str>) -> Result<Vec<GroupMember>, Error> {
        members::members_of(&self.client, name.as_ref()).await
    }

    /// The facts about the store.
    pub fn capabilities(&self) -> &Capabilities {
        self.client.store.capabilities()
    }

    /// The store itself, for listing and breaking locks.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.client.store
    }

    /// The clock that deadlines are read on.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.client.clock
    }

    /// Ends this client and all its clones: every lease is lost with [`Closed`], everything held or queued is
    /// given back, and the store's connections end. Takes at most five seconds; what could not be given back by
    /// then comes free after its TTL.
    ///
    /// # Cancel safety
    /// Leases are lost from the first poll on. Dropped before it is done, giving back goes on in the background.
    ///
    /// [`Closed`]: fencepost_core::claim::LossReason::Closed
    pub async fn close(&self) {
        self.client.close().await;
    }
}

impl Locks<Undecided> {
    /// For correctness: leases carry a fence.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the store cannot issue one, with the reason and the stores that can.
    pub fn fenced(self) -> Result<Locks<Correctness>, Error> {
        let capabilities = self.capabilities();
        match capabilities.fence {
            FenceSource::Issued(_) => Ok(Locks::on(self.client)),
            FenceSource::None(why) => {
                let said = format!("{} cannot issue a fence: {why}", capabilities.store);
                Err(Error::new(ErrorKind::Unsupported, Operation::Open, said)
                    .not_applied()
                    .in_store(capabilities.store)
                    .advise(format!("stores that can: {}", registry::stores_with_fence().join(", "))))
            }
        }
    }

    /// For efficiency: a breach costs repeated work and nothing worse. Leases carry no fence.
    pub fn for_efficiency(self) -> Locks<Efficiency> {
        Locks::on(self.client)
    }
}

/// What can be asked of locks whose purpose is known.
macro_rules! locks_for {
    ($purpose:ty) => {
        impl Locks<$purpose> {
            /// The lock called `name`, to be taken with [`acquire`](LockRequest::acquire). A name that is refused is
            /// reported there.
            pub fn lock(&self, name: impl AsRef<str>) -> LockRequest<$purpose> {
                LockRequest::new(self.client.clone(), name.as_ref(), Mode::Exclusive)
            }

            /// The read-write lock called `name`, for one owner: each call makes another one.
            pub fn read_write(&self, name: impl AsRef<str>) -> ReadWrite<$purpose> {
                ReadWrite::new(self.clone(), name.as_ref())
            }

            /// The semaphore called `name` with `limit` permits.
            pub fn semaphore(&self, name: impl AsRef<str>, limit: u32) -> Semaphore<$purpose> {
                Semaphore::new(self.clone(), name.as_ref(), limit)
            }

            /// The locks called `names`, to be taken all or none with [`acquire`](SeveralRequest::acquire).
            pub fn several(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> SeveralRequest<$purpose> {
                SeveralRequest::new(self.client.clone(), names)
            }

            /// The election called `name`, whose leader holds the lock of that name.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidInput`] for the name; [`ErrorKind::Unsupported`] when the store keeps no cells.
            pub fn election(&self, name: impl AsRef<str>) -> Result<Election<$purpose>, Error> {
                Election::new(self.client.clone(), name.as_ref())
            }

            /// The group called `name`, whose members share work.
            ///
            /// # Errors
            /// [`ErrorKind::InvalidInput`] for the name; [`ErrorKind::Unsupported`] when the store keeps no cells.
            pub fn members(&self, name: impl AsRef<str>) -> Result<Members<$purpose>, Error> {
                Members::new(self.clone(), name.as_ref())
            }

            /// Work that is done once for `key`, whose result is told to all who ask again. A key that is refused is
            /// reported when it runs; the longest has 507 bytes. The lock of the name `once/KEY` is held meanwhile.
            pub fn once(&self, key: impl AsRef<str>) -> Once<$purpose> {
                Once::new(self.client.clone(), key.as_ref())
            }

            /// Locks that one owner can enter again while it holds them (O4).
            pub fn reentrant(&self) -> Reentrant<$purpose> {
                Reentrant::new(self.clone())
            }
        }
    };
}

locks_for!(Correctness);
locks_for!(Efficiency);

impl<P> Clone for Locks<P> {
    fn clone(&self) -> Self {
        Self { client: self.client.clone(), purpose: PhantomData }
    }
}

/// Opens [`Locks`] with a namespace, a clock, or observed by metrics and traces.
#[derive(Debug)]
pub struct LocksBuilder<'a> {
    url: &'a str,
    namespace: Namespace,
    clock: Arc<dyn Clock>,
    observed: bool,
}

impl LocksBuilder<'_> {
    /// The prefix below which the store keeps everything; `fencepost` by default.
    pub fn namespace(mut self, namespace: Namespace) -> Self {
        self.namespace = namespace;
        self
    }

    /// The clock that deadlines are read on; [`BootClock`] by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Wraps the store so that it reports [metrics and traces](crate::observed).
    pub fn observed(mut self) -> Self {
        self.observed = true;
        self
    }

    /// Opens the store.
    ///
    /// # Errors
    /// As for [`Locks::open`].
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(self) -> Result<Locks, Error> {
        let mut store = registry::open_store(self.url, self.namespace, self.clock.clone()).await?;
        if self.observed {
            store = Arc::new(Observed::new(store, self.clock.clone()));
        }
        Ok(Locks::on(Client::start(store, self.clock)?))
    }
}

pub(crate) fn claimant_with(labels: Vec<(String, String)>) -> Claimant {
    Claimant { labels, ..Claimant::here() }
}

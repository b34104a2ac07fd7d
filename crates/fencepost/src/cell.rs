//! A value of your own beside the locks, changed by compare-and-set.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    cells::{self, Cells, Change, Changed, Expected, Version},
    clock::{self, Clock},
    error::{Applied, Error, ErrorKind, Operation, Retry},
    limits::Ttl,
    name::LockName,
    owner::Owner,
    store::BoxFuture,
};
use fencepost_patterns::update::{CompareAndSet, Found, Set, Shown};
pub use fencepost_patterns::update::{Edit, MOST_CONFLICTS, Update};
use serde::{Serialize, de::DeserializeOwned};

use crate::client::Client;

/// For how long a store that does not answer is tried again.
const OUTAGE_LIMIT: Duration = Duration::from_secs(10);

/// A value that processes share, kept as JSON in a cell of the store. Made by [`Locks::cell`](crate::Locks::cell).
///
/// It needs no lock: each change is one compare-and-set, and whoever comes second works on what the first one wrote.
/// A value takes up to [`MAX_CELL_BYTES`](cells::MAX_CELL_BYTES) as JSON.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Edit, Locks, Update};
///
/// let locks = Locks::open("memory:cell").await?;
/// let stock = locks.cell::<u32>("stock/4711")?;
/// stock.update(|_| Edit::Write(3)).await?;
/// let sold = stock.update(|left| match left {
///     Some(left @ 1..) => Edit::Write(left - 1),
///     _ => Edit::Leave, // sold out
/// });
/// assert!(matches!(sold.await?, Update::Written { value: 2, .. }));
/// # Ok(())
/// # }
/// ```
pub struct Cell<T> {
    client: Arc<Client>,
    key: LockName,
    expires: Expires<T>,
    /// Whether the client's closing leaves it in use.
    parting: bool,
    value: PhantomData<fn() -> T>,
}

/// How long a value stays.
enum Expires<T> {
    Never,
    After(Ttl),
    By(fn(&T) -> Ttl),
}

/// A value as it was read, with the version to name in a change.
#[derive(Debug)]
pub(crate) struct Read<T> {
    pub(crate) value: Option<T>,
    expected: Expected,
}

impl<T> Read<T> {
    pub(crate) fn version(&self) -> Option<Version> {
        match self.expected {
            Expected::Absent => None,
            Expected::Version(version) => Some(version),
        }
    }
}

impl<T> Cell<T> {
    /// The cell `name` of a kind of its own, so that an election and a latch of one name do not meet.
    pub(crate) fn new(client: Arc<Client>, kind: &'static str, name: &LockName) -> Result<Self, Error> {
        if client.store.cells().is_none() {
            let store = client.store.capabilities().store;
            return Err(Error::new(ErrorKind::Unsupported, Operation::Update, format!("{store} keeps no cells"))
                .not_applied()
                .on_lock(name)
                .in_store(store));
        }
        Ok(Self { client, key: name.of_kind(kind), expires: Expires::Never, parting: false, value: PhantomData })
    }

    /// The same cell, whose value is absent this long after each change, by the store's clock.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside the limits of a [`Ttl`].
    pub fn expiring(mut self, after: Duration) -> Result<Self, Error> {
        self.expires = Expires::After(Ttl::new(after)?);
        Ok(self)
    }

    /// The same cell, of which each value says for how long it stays.
    pub(crate) fn expiring_by(self, after: fn(&T) -> Ttl) -> Self {
        Self { expires: Expires::By(after), ..self }
    }

    /// The same cell for a last word: it can be changed while the client closes, which waits for work
    /// [in the background](Cell::in_background).
    pub(crate) fn parting(&self) -> Self {
        Self { parting: true, ..self.clone() }
    }

    fn cells(&self) -> &dyn Cells {
        self.client.store.cells().expect("a store that had cells when the cell was made")
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.client.clock
    }

    pub(crate) fn shared_clock(&self) -> Arc<dyn Clock> {
        self.client.clock.clone()
    }

    /// Runs `work` to its end, also when the caller is gone.
    pub(crate) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.client.cleaner.run(work);
    }

    /// Completes when the cell may be another than the one that was read. Cancel safe.
    pub(crate) async fn changed_since(&self, seen: Option<Version>) -> Result<(), Error> {
        let changed = self.cells().changed(&self.key, seen);
        tokio::select! {
            biased;
            error = self.client.closed() => Err(error),
            changed = changed => changed,
        }
    }
}

impl<T: Serialize + DeserializeOwned> Cell<T> {
    /// The value; `None` when there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when something else than a `T` is there, [`ErrorKind::Unavailable`] when the store does
    /// not answer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn read(&self) -> Result<Option<T>, Error> {
        Ok(self.look().await?.value)
    }

    /// Changes the value as `edit` says, which is called again with the newer value whenever another was faster:
    /// [`CompareAndSet::update`], which is the same for Redis keys and PostgreSQL rows of your own.
    ///
    /// # Errors
    /// As for [`read`](Cell::read), and [`ErrorKind::InvalidInput`] for a value that is too long. An
    /// [`Unavailable`](ErrorKind::Unavailable) whose outcome is [unknown](Applied::Unknown) may have changed the value.
    ///
    /// # Cancel safety
    /// Dropped, it may have changed the value once, or not.
    pub async fn update(&self, edit: impl FnMut(Option<T>) -> Edit<T> + Send) -> Result<Update<T>, Error>
    where
        T: Send,
    {
        CompareAndSet::update(&mut self.clone(), edit).await
    }

    /// Completes when the value may be another than `seen` says, which is what [`read`](Cell::read) answered last.
    ///
    /// # Errors
    /// As for [`read`](Cell::read).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn changed(&self, seen: &Option<T>) -> Result<(), Error>
    where
        T: PartialEq,
    {
        let found = self.look().await?;
        if found.value != *seen {
            return Ok(());
        }
        self.changed_since(found.version()).await
    }

    /// The value and its version. A store that is out of reach is tried again for a while.
    pub(crate) async fn look(&self) -> Result<Read<T>, Error> {
        let (_, found) = self.patiently(|| self.cells().read(&self.key)).await.map_err(Error::not_applied)?;
        self.decoded(found)
    }

    /// One compare-and-set on what was read.
    pub(crate) async fn write(&self, found: &Read<T>, value: &T) -> Result<Result<Version, Read<T>>, Error> {
        match self.set(found.expected, Some(value)).await? {
            Changed::Done(version) => Ok(Ok(version)),
            Changed::Conflict(now) => Ok(Err(self.decoded(now)?)),
        }
    }

    /// Removes the value with this version, if it is still there.
    pub(crate) async fn remove(&self, version: Version) -> Result<(), Error> {
        self.set(Expected::Version(version), None).await.map(drop)
    }

    async fn set(&self, expected: Expected, value: Option<&T>) -> Result<Changed, Error> {
        self.apply(self.change(expected, value)?).await
    }

    fn change(&self, expected: Expected, value: Option<&T>) -> Result<Change, Error> {
        let ttl = match self.expires {
            Expires::Never => None,
            Expires::After(ttl) => Some(ttl),
            Expires::By(after) => value.map(after),
        };
        let value = value.map(|value| self.encoded(value)).transpose()?;
        Ok(Change { key: self.key.clone(), expected, value, ttl, by: Owner::random()? })
    }

    async fn apply(&self, change: Change) -> Result<Changed, Error> {
        match (self.patiently(|| self.cells().change(&change)).await?, change.expected) {
            // Gone, as was wanted: by an earlier try whose answer was lost, if not by another.
            ((true, Changed::Conflict(None)), Expected::Version(version)) if change.value.is_none() => {
                Ok(Changed::Done(version))
            }
            // It may have been applied and overwritten since.
            ((true, Changed::Conflict(_)), _) => Err(self
                .error(ErrorKind::Unavailable, "a change was not answered, and another was made after it")
                .advise("read the value to see what became of it")),
            ((_, answer), _) => Ok(answer),
        }
    }

    /// Repeats a call, which is the same each time, while the store is out of reach; tells whether an earlier call may
    /// have been applied.
    async fn patiently<'a, A>(
        &self,
        mut call: impl FnMut() -> BoxFuture<'a, Result<A, Error>>,
    ) -> Result<(bool, A), Error> {
        let until = self.client.clock.now().after(OUTAGE_LIMIT);
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        let mut unclear = false;
        loop {
            let answer = tokio::select! {
                biased;
                error = self.client.closed(), if !self.parting => return Err(error),
                answer = call() => answer,
            };
            match answer {
                Ok(answer) => return Ok((unclear, answer)),
                Err(error) if error.retry() == Retry::Later && self.client.clock.now() < until => {
                    unclear |= error.applied() != Applied::No;
                    tokio::select! {
                        error = self.client.closed(), if !self.parting => {
                            return Err(if unclear { error } else { error.not_applied() });
                        }
                        () = clock::sleep(&*self.client.clock, backoff.pause()) => {}
                    }
                }
                // That this call was refused says nothing of an earlier one.
                Err(error) => return Err(if unclear { error.outcome_unknown() } else { error }),
            }
        }
    }

    fn encoded(&self, value: &T) -> Result<Arc<[u8]>, Error> {
        let json = serde_json::to_vec(value).map_err(|source| {
            self.error(ErrorKind::InvalidInput, "the value cannot be written as JSON").not_applied().caused_by(source)
        })?;
        if json.len() > cells::MAX_CELL_BYTES {
            let said = format!("a value of {} bytes is too long; the limit is {}", json.len(), cells::MAX_CELL_BYTES);
            return Err(self.error(ErrorKind::InvalidInput, said).not_applied());
        }
        Ok(json.into())
    }

    fn decoded(&self, cell: Option<cells::Cell>) -> Result<Read<T>, Error> {
        let expected = Expected::as_read(cell.as_ref());
        let value = cell.map(|cell| serde_json::from_slice(&cell.value)).transpose();
        let value = value.map_err(|source| {
            let said = "the cell holds something else than was expected";
            self.error(ErrorKind::Corrupt, said).not_applied().caused_by(source)
        })?;
        Ok(Read { value, expected })
    }

    fn error(&self, kind: ErrorKind, said: impl Into<String>) -> Error {
        Error::new(kind, Operation::Update, said).on_lock(&self.key).in_store(self.client.store.capabilities().store)
    }
}

impl<T: Serialize + DeserializeOwned + Send> CompareAndSet for Cell<T> {
    type Value = T;
    type Seen = Expected;
    type Error = Error;

    async fn read(&mut self) -> Result<Shown<T, Expected>, Error> {
        Ok(Ok(self.look().await?.into()))
    }

    fn set(&mut self, seen: Expected, new: Option<&T>) -> impl Future<Output = Result<Set<T, Expected>, Error>> + Send {
        // Before the first await, so that a `T` needs not be shared between threads.
        let change = self.change(seen, new);
        async move {
            match self.apply(change?).await? {
                Changed::Done(_) => Ok(Set::Done),
                Changed::Conflict(now) => Ok(Set::Conflict(Some(self.decoded(now)?.into()))),
            }
        }
    }

    fn clock(&self) -> &dyn Clock {
        Cell::clock(self)
    }
}

impl<T> From<Read<T>> for Found<T, Expected> {
    fn from(read: Read<T>) -> Self {
        Found { value: read.value, seen: read.expected }
    }
}

impl<T> Clone for Cell<T> {
    fn clone(&self) -> Self {
        let (client, key, expires) = (self.client.clone(), self.key.clone(), self.expires.clone());
        Self { client, key, expires, parting: self.parting, value: PhantomData }
    }
}

// Not derived: that would ask for a `T` that can be cloned.
impl<T> Clone for Expires<T> {
    fn clone(&self) -> Self {
        match self {
            Expires::Never => Expires::Never,
            Expires::After(ttl) => Expires::After(*ttl),
            Expires::By(after) => Expires::By(*after),
        }
    }
}

impl<T> fmt::Debug for Cell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("key", &self.key).finish_non_exhaustive()
    }
}

//! A number of permits.

use fencepost_core::{
    claim::Mode,
    error::Error,
    name::LockName,
    purpose::{Correctness, Efficiency, Purpose},
};

use crate::{hold::Counted, locks::Locks, request::LockRequest};

/// A semaphore: a limit on how many permits are held at a time. Made by [`Locks::semaphore`].
///
/// The limit is kept in the store for as long as anybody holds or waits, and whoever states another one is refused
/// with [`ErrorKind::Mismatch`](crate::ErrorKind::Mismatch), as is a plain lock of the same name. Waiters are served
/// first come, first served, where the store serves in that order: one that waits for two is not passed by one that
/// waits for one. The permits of a dead holder come back as a lock does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Acquired, Locks};
///
/// let locks = Locks::open("memory:semaphore").await?.fenced()?;
/// let licences = locks.semaphore("licences", 3);
/// if let Acquired(two) = licences.permits(2).acquire().await? {
///     println!("slots {:?} with fence {}", two.slots(), two.fence());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore<P> {
    locks: Locks<P>,
    name: String,
    limit: u32,
}

impl<P: Purpose> Semaphore<P> {
    pub(crate) fn new(locks: Locks<P>, name: &str, limit: u32) -> Self {
        Self { locks, name: name.to_owned(), limit }
    }

    /// The limit as this client states it.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the limit of a semaphore that is in use, for everybody, and from now on states it itself. Nobody loses a
    /// permit: with fewer than are held, new ones are granted when enough have come back. Other clients are refused
    /// until they state the new limit. Answers the former limit; `None` when nobody holds or waits, so that nothing
    /// had to be changed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) for a limit of zero,
    /// [`Mismatch`](crate::ErrorKind::Mismatch) when the name is in use as a lock,
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without permits. After any other error the limit
    /// may be the old or the new one; call it again.
    ///
    /// # Cancel safety
    /// The limit may be the old or the new one.
    pub async fn resize(&mut self, limit: u32) -> Result<Option<u32>, Error> {
        let name = LockName::new(&self.name)?;
        let before = self.locks.store().resize(&name, limit).await?;
        self.limit = limit;
        Ok(before)
    }
}

macro_rules! semaphore_for {
    ($purpose:ty) => {
        impl Semaphore<$purpose> {
            /// `count` permits, to be taken together with [`acquire`](LockRequest::acquire), which refuses zero of
            /// them and more than the limit.
            pub fn permits(&self, count: u32) -> LockRequest<$purpose, Counted> {
                let mode = Mode::Permits { count, of: self.limit };
                LockRequest::new(self.locks.client().clone(), &self.name, mode)
            }
        }
    };
}

semaphore_for!(Correctness);
semaphore_for!(Efficiency);

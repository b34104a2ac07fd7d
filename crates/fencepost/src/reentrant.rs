//! A lock that its owner may enter again while holding it (O4).

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Busy, Release},
    clock,
    error::Error,
    limits::Wait,
    name::LockName,
    purpose::{Correctness, Efficiency, Purpose},
};

use crate::{
    lease::Lease,
    locks::Locks,
    request::{Attempt, LockRequest},
};

/// One owner that may enter each of its locks any number of times.
///
/// The owner is this value and nothing implicit: no thread, task or connection. Clones are the same owner; hand one
/// to whatever shall be allowed to enter. An entry made while the lock is held shares its lease and its fence (F1);
/// the lock is given back when the last entry is left or dropped.
#[derive(Debug)]
pub struct Reentrant<P> {
    locks: Locks<P>,
    held: Arc<Mutex<HashMap<LockName, Slot<P>>>>,
}

/// Entries of one lock go one after another, so that two that come at once make one claim.
type Slot<P> = Arc<tokio::sync::Mutex<std::sync::Weak<Lease<P>>>>;

/// One entry into a lock.
#[derive(Debug)]
#[must_use = "an entry that is dropped is left"]
pub struct Entry<P>(Arc<Lease<P>>);

impl<P: Purpose> Reentrant<P> {
    pub(crate) fn new(locks: Locks<P>) -> Self {
        Self { locks, held: Arc::default() }
    }

    async fn enter_with(
        &self,
        name: &str,
        wait: Wait,
        request: impl FnOnce(&Locks<P>) -> LockRequest<P>,
    ) -> Result<Attempt<Entry<P>>, Error> {
        let name = LockName::new(name)?;
        let started = self.locks.clock().now();
        let slot = self.slot(&name);
        let mut inside = match wait {
            Wait::AtMost(limit) => tokio::select! {
                inside = slot.lock() => inside,
                () = clock::sleep(&**self.locks.clock(), limit) => return Ok(Attempt::Busy(Busy::default())),
            },
            Wait::Once => match slot.try_lock() {
                Ok(inside) => inside,
                Err(_) => return Ok(Attempt::Busy(Busy::default())),
            },
            Wait::Forever => slot.lock().await,
        };
        if let Some(lease) = inside.upgrade() {
            lease.check()?; // an entry into a lease that was lost would be a count without a lock
            return Ok(Attempt::Acquired(Entry(lease)));
        }
        let left = wait.left_after(self.locks.clock().now().since(started));
        match request(&self.locks).wait(left).acquire().await? {
            Attempt::Acquired(lease) => {
                let lease = Arc::new(lease);
                *inside = Arc::downgrade(&lease);
                Ok(Attempt::Acquired(Entry(lease)))
            }
            Attempt::Busy(busy) => Ok(Attempt::Busy(busy)),
        }
    }

    fn slot(&self, name: &LockName) -> Slot<P> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        // A slot that only the map knows has nobody inside and nobody on the way in.
        held.retain(|_, slot| {
            Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|inside| inside.strong_count() > 0)
        });
        held.entry(name.clone()).or_default().clone()
    }
}

/// What needs the purpose to be known.
macro_rules! reentrant_for {
    ($purpose:ty) => {
        impl Reentrant<$purpose> {
            /// Enters `name`: at once when this owner holds it, otherwise by taking it with `ttl` and `wait`, which mean
            /// what they mean for [`LockRequest`].
            ///
            /// # Errors
            /// [`Lost`](crate::ErrorKind::Lost) when this owner holds entries of a lease that was lost: leave those
            /// first. The rest as for [`LockRequest::acquire`].
            ///
            /// # Cancel safety
            /// Safe, as for [`LockRequest::acquire`].
            pub async fn enter(
                &self,
                name: &str,
                ttl: Duration,
                wait: Wait,
            ) -> Result<Attempt<Entry<$purpose>>, Error> {
                self.enter_with(name, wait, |locks| locks.lock(name).ttl(ttl)).await
            }
        }
    };
}

reentrant_for!(Correctness);
reentrant_for!(Efficiency);

impl<P: Purpose> Entry<P> {
    /// The lease that all entries share.
    pub fn lease(&self) -> &Lease<P> {
        &self.0
    }

    /// Leaves. The last entry gives the lock back and says how that went; the others answer `None`.
    ///
    /// # Errors
    /// As for [`Lease::release`]; giving back then goes on in the background.
    ///
    /// # Cancel safety
    /// Safe: dropped, the entry is left all the same.
    pub async fn leave(self) -> Result<Option<Release>, Error> {
        match Arc::into_inner(self.0) {
            Some(mut lease) => lease.release().await.map(Some),
            None => Ok(None),
        }
    }
}

impl<P> Clone for Reentrant<P> {
    fn clone(&self) -> Self {
        Self { locks: self.locks.clone(), held: self.held.clone() }
    }
}

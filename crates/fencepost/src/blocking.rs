//! The same locks for programs without async: every call blocks its thread.
//!
//! One runtime with one thread, shared by all locks that are opened this way, renews leases and gives back what was
//! dropped. Do not call it from inside an async task: it would block the runtime's thread, and panics there.
//!
//! ```no_run
//! # fn example() -> Result<(), fencepost::Error> {
//! use fencepost::{Acquired, blocking::Locks};
//! use std::time::Duration;
//!
//! let locks = Locks::open("file:/var/lib/app/locks")?.fenced()?;
//! let request = locks.lock("orders/1001").wait(Duration::from_secs(5));
//! if let Acquired(mut lease) = locks.acquire(request)? {
//!     println!("fence {}", lease.fence());
//!     lease.release()?;
//! }
//! # Ok(())
//! # }
//! ```

use std::{
    future::Future,
    ops::Deref,
    sync::{Arc, LazyLock},
    time::Duration,
};

use fencepost_core::{
    claim::{LossReason, Release},
    clock,
    error::{Error, ErrorKind, Operation},
    purpose::{Correctness, Efficiency, Purpose, Undecided},
};
use tokio::runtime::Runtime;

use crate::{
    lease,
    locks::{self, LocksBuilder},
    request::{Attempt, LockRequest},
};

static RUNTIME: LazyLock<Result<Arc<Runtime>, std::io::Error>> = LazyLock::new(|| {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(1).thread_name("fencepost").enable_all().build().map(Arc::new)
});

fn runtime() -> Result<Arc<Runtime>, Error> {
    RUNTIME.as_ref().cloned().map_err(|source| {
        Error::new(ErrorKind::Misconfigured, Operation::Open, "the runtime behind the blocking calls did not start")
            .not_applied()
            .caused_by(source.to_string())
    })
}

/// Locks on one store; see [`fencepost::Locks`](crate::Locks).
#[derive(Clone, Debug)]
pub struct Locks<P = Undecided> {
    locks: locks::Locks<P>,
    runtime: Arc<Runtime>,
}

/// A lock that is held; see [`fencepost::Lease`](crate::Lease), whose synchronous methods it has.
#[derive(Debug)]
#[must_use = "a lease that is dropped is given back"]
pub struct Lease<P> {
    lease: lease::Lease<P>,
    runtime: Arc<Runtime>,
    clock: Arc<dyn clock::Clock>,
}

impl Locks {
    /// Opens the store that `url` names.
    ///
    /// # Errors
    /// As for [`fencepost::Locks::open`](crate::Locks::open), and when the runtime cannot be started.
    pub fn open(url: &str) -> Result<Locks, Error> {
        Self::open_with(locks::Locks::builder(url))
    }

    /// Opens what `builder` describes.
    ///
    /// # Errors
    /// As for [`open`](Locks::open).
    pub fn open_with(builder: LocksBuilder<'_>) -> Result<Locks, Error> {
        let runtime = runtime()?;
        Ok(Self { locks: runtime.block_on(builder.open())?, runtime })
    }

    /// For correctness; see [`fencepost::Locks::fenced`](crate::Locks::fenced).
    ///
    /// # Errors
    /// When the store cannot issue a fence.
    pub fn fenced(self) -> Result<Locks<Correctness>, Error> {
        Ok(Locks { locks: self.locks.fenced()?, runtime: self.runtime })
    }

    /// For efficiency; see [`fencepost::Locks::for_efficiency`](crate::Locks::for_efficiency).
    pub fn for_efficiency(self) -> Locks<Efficiency> {
        Locks { locks: self.locks.for_efficiency(), runtime: self.runtime }
    }
}

impl<P: Purpose> Locks<P> {
    /// Takes what `request`, made by [`lock`](crate::Locks::lock), asks for.
    ///
    /// # Errors
    /// As for [`LockRequest::acquire`].
    pub fn acquire(&self, request: LockRequest<P>) -> Result<Attempt<Lease<P>>, Error> {
        Ok(match self.runtime.block_on(request.acquire())? {
            Attempt::Acquired(lease) => {
                Attempt::Acquired(Lease { lease, runtime: self.runtime.clone(), clock: self.locks.clock().clone() })
            }
            Attempt::Busy(busy) => Attempt::Busy(busy),
        })
    }

    /// Ends this client; see [`fencepost::Locks::close`](crate::Locks::close).
    pub fn close(&self) {
        self.runtime.block_on(self.locks.close());
    }
}

impl<P> Deref for Locks<P> {
    type Target = locks::Locks<P>;

    fn deref(&self) -> &locks::Locks<P> {
        &self.locks
    }
}

impl<P: Purpose> Lease<P> {
    /// Waits until the lease is lost, for at most `limit`. `None` when it was still held then.
    pub fn lost_within(&self, limit: Duration) -> Option<LossReason> {
        self.block_on(async {
            tokio::select! {
                biased;
                reason = self.lease.lost() => Some(reason),
                () = clock::sleep(&*self.clock, limit) => None,
            }
        })
    }

    /// Extends the lease by its TTL now; see [`fencepost::Lease::renew`](crate::Lease::renew).
    ///
    /// # Errors
    /// As there.
    pub fn renew(&self) -> Result<Option<Duration>, Error> {
        self.block_on(self.lease.renew())
    }

    /// Gives the lock back; see [`fencepost::Lease::release`](crate::Lease::release).
    ///
    /// # Errors
    /// As there.
    pub fn release(&mut self) -> Result<Release, Error> {
        self.runtime.block_on(self.lease.release())
    }

    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }
}

impl<P> Deref for Lease<P> {
    type Target = lease::Lease<P>;

    fn deref(&self) -> &lease::Lease<P> {
        &self.lease
    }
}

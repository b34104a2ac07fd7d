//! What is held while a command runs, whatever kind of lock it is.

use std::{io, os::fd::OwnedFd};

use fencepost::{
    Correctness, Efficiency, Error, Fence, Leadership, Lease, LockName, Several,
    claim::LossReason,
    clock::Moment,
    hold::{Counted, Exclusive, Hold, Shared},
    purpose::Purpose,
    store::BoxFuture,
};

use crate::{take::Takes, wire::Told};

/// Something that is held, that can be lost, and that the command must not outlast.
pub(crate) trait Held {
    /// What the command learns of it.
    fn told(&self) -> Told;

    /// When the first part of it ends unless it is renewed, on the boot clock; `None` where nothing ends it.
    fn deadline(&self) -> Option<Moment>;

    /// Whether all of it is held, as far as can be known here.
    fn check(&self) -> Result<(), Error>;

    /// Completes when the first part of it is lost. Cancel safe.
    fn lost(&self) -> BoxFuture<'_, Loss>;

    /// What keeps it held for as long as any process has it open, on stores where a lock is a descriptor.
    ///
    /// # Errors
    /// When the system hands out no more descriptors.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>>;

    /// Gives all of it back.
    ///
    /// # Errors
    /// Only when the outcome is unknown.
    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>>;
}

/// What was lost, and why.
#[derive(Clone, Debug)]
pub(crate) struct Loss {
    pub(crate) name: LockName,
    pub(crate) reason: LossReason,
}

/// What a lease says of its grant, as far as its type allows.
pub(crate) trait Granted {
    fn fence_told(&self) -> Option<Fence>;

    fn slots_told(&self) -> &[u32] {
        &[]
    }
}

impl Granted for Lease<Correctness, Exclusive> {
    fn fence_told(&self) -> Option<Fence> {
        Some(self.fence())
    }
}

impl Granted for Lease<Correctness, Shared> {
    fn fence_told(&self) -> Option<Fence> {
        self.fence()
    }
}

impl Granted for Lease<Correctness, Counted> {
    fn fence_told(&self) -> Option<Fence> {
        Some(self.fence())
    }

    fn slots_told(&self) -> &[u32] {
        self.slots()
    }
}

impl Granted for Lease<Efficiency, Exclusive> {
    fn fence_told(&self) -> Option<Fence> {
        None
    }
}

impl Granted for Lease<Efficiency, Shared> {
    fn fence_told(&self) -> Option<Fence> {
        None
    }
}

impl Granted for Lease<Efficiency, Counted> {
    fn fence_told(&self) -> Option<Fence> {
        None
    }

    fn slots_told(&self) -> &[u32] {
        self.slots()
    }
}

impl<P: Purpose, H: Hold> Held for Lease<P, H>
where
    Lease<P, H>: Granted,
{
    fn told(&self) -> Told {
        Told {
            owners: vec![self.owner().to_string()],
            fences: self.fence_told().map(Fence::get).into_iter().collect(),
            slots: self.slots_told().to_vec(),
            term: None,
        }
    }

    fn deadline(&self) -> Option<Moment> {
        Lease::deadline(self)
    }

    fn check(&self) -> Result<(), Error> {
        Lease::check(self)
    }

    fn lost(&self) -> BoxFuture<'_, Loss> {
        Box::pin(async { Loss { name: self.name().clone(), reason: Lease::lost(self).await } })
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.descriptor().into_iter().collect()
    }

    fn give_back(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.release().await.map(drop) })
    }
}

impl<P: Takes> Held for Several<P> {
    fn told(&self) -> Told {
        let mut told = Told::default();
        for lease in self.leases() {
            for _ in lease.names() {
                told.owners.push(lease.owner().to_string());
                told.fences.extend(P::fence(lease).map(Fence::get));
            }
        }
        told
    }

    fn deadline(&self) -> Option<Moment> {
        self.leases().iter().filter_map(Lease::deadline).min()
    }

    fn check(&self) -> Result<(), Error> {
        Several::check(self)
    }

    fn lost(&self) -> BoxFuture<'_, Loss> {
        Box::pin(async {
            let (name, reason) = Several::lost(self).await;
            Loss { name, reason }
        })
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.leases().iter().filter_map(Lease::descriptor).collect()
    }

    fn give_back(mut self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.release().await.map(drop) })
    }
}

impl<P: Takes> Held for Leadership<P> {
    fn told(&self) -> Told {
        let lease = self.lease();
        Told {
            owners: vec![lease.owner().to_string()],
            fences: P::fence(lease).map(Fence::get).into_iter().collect(),
            slots: Vec::new(),
            term: Some(self.term()),
        }
    }

    fn deadline(&self) -> Option<Moment> {
        self.lease().deadline()
    }

    fn check(&self) -> Result<(), Error> {
        self.lease().check()
    }

    fn lost(&self) -> BoxFuture<'_, Loss> {
        Box::pin(async { Loss { name: self.lease().name().clone(), reason: Leadership::lost(self).await } })
    }

    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.lease().descriptor().into_iter().collect()
    }

    fn give_back(self: Box<Self>) -> BoxFuture<'static, Result<(), Error>> {
        Box::pin(async move { self.resign().await.map(drop) })
    }
}

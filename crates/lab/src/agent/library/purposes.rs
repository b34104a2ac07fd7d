//! What this client does with locks of either purpose. The library has no code that is generic over the purpose, on purpose: only leases
//! for correctness have fences.

use fencepost::{
    Correctness, Efficiency, Fence, Lease, LockRequest, Locks,
    hold::{Counted, Shared},
    purpose::Purpose,
};

/// Requests, and the fences of what they are granted.
pub(super) trait Useful: Purpose {
    fn alone(locks: &Locks<Self>, lock: &str) -> LockRequest<Self>;
    fn reader(locks: &Locks<Self>, lock: &str) -> LockRequest<Self, Shared>;
    fn permits(locks: &Locks<Self>, lock: &str, count: u32, limit: u32) -> LockRequest<Self, Counted>;

    fn fence(_: &Lease<Self>) -> Option<u64> {
        None
    }

    fn fence_of_reader(_: &Lease<Self, Shared>) -> Option<u64> {
        None
    }

    fn fence_of_permits(_: &Lease<Self, Counted>) -> Option<u64> {
        None
    }
}

impl Useful for Efficiency {
    fn alone(locks: &Locks<Self>, lock: &str) -> LockRequest<Self> {
        locks.lock(lock)
    }

    fn reader(locks: &Locks<Self>, lock: &str) -> LockRequest<Self, Shared> {
        locks.read_write(lock).read()
    }

    fn permits(locks: &Locks<Self>, lock: &str, count: u32, limit: u32) -> LockRequest<Self, Counted> {
        locks.semaphore(lock, limit).permits(count)
    }
}

impl Useful for Correctness {
    fn alone(locks: &Locks<Self>, lock: &str) -> LockRequest<Self> {
        locks.lock(lock)
    }

    fn reader(locks: &Locks<Self>, lock: &str) -> LockRequest<Self, Shared> {
        locks.read_write(lock).read()
    }

    fn permits(locks: &Locks<Self>, lock: &str, count: u32, limit: u32) -> LockRequest<Self, Counted> {
        locks.semaphore(lock, limit).permits(count)
    }

    fn fence(lease: &Lease<Self>) -> Option<u64> {
        Some(lease.fence().get())
    }

    fn fence_of_reader(lease: &Lease<Self, Shared>) -> Option<u64> {
        lease.fence().map(Fence::get)
    }

    fn fence_of_permits(lease: &Lease<Self, Counted>) -> Option<u64> {
        Some(lease.fence().get())
    }
}

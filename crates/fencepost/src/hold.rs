//! How a lease holds its lock, as types: a reader has no method that only a writer may call.

/// How a lock is held.
pub trait Hold: sealed::Sealed + std::fmt::Debug + Send + Sync + Unpin + 'static {}

/// Alone, with nobody beside it: a plain lock, or the writer of a read-write lock.
#[derive(Debug)]
pub enum Exclusive {}

/// Beside other readers, with no writer.
#[derive(Debug)]
pub enum Shared {}

/// Some of a semaphore's permits.
#[derive(Debug)]
pub enum Counted {}

impl Hold for Exclusive {}
impl Hold for Shared {}
impl Hold for Counted {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Exclusive {}
    impl Sealed for super::Shared {}
    impl Sealed for super::Counted {}
}

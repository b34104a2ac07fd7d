//! What a lock is for, as types: a store that cannot issue a fence offers no method that returns one.

use crate::store::Store;

/// What a lock is for.
pub trait Purpose: sealed::Sealed + Clone + Copy + std::fmt::Debug + Send + Sync + Unpin + 'static {}

/// A breach would cost data. Leases carry a fence, and the resource checks it.
#[derive(Clone, Copy, Debug)]
pub enum Correctness {}

/// A breach costs repeated work. Leases carry no fence.
#[derive(Clone, Copy, Debug)]
pub enum Efficiency {}

/// Not yet said: locks that were opened by URL can be asked for one of the others, and for nothing else.
#[derive(Clone, Copy, Debug)]
pub enum Undecided {}

impl Purpose for Correctness {}
impl Purpose for Efficiency {}
impl Purpose for Undecided {}

/// A store whose type alone tells what it can be relied on for.
pub trait TypedStore: Store {
    /// The strongest purpose it serves.
    type Serves: Purpose;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Correctness {}
    impl Sealed for super::Efficiency {}
    impl Sealed for super::Undecided {}
}

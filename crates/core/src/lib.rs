//! The heart of Fencepost: names, clock, fences, errors, the lease machine and the contract of a store. It knows no
//! store but the memory store.
//!
//! Most people use the crate `fencepost`, which adds the guards, the stores and `Locks::open`.

pub mod backoff;
pub mod capabilities;
pub mod cells;
pub mod claim;
pub mod clock;
pub mod error;
pub mod fence;
pub mod layer;
pub mod limits;
pub mod machine;
pub mod memory;
pub mod name;
pub mod owner;
pub mod particulars;
pub mod purpose;
pub mod quorum;
pub mod refusal;
pub mod scheme;
pub mod store;
pub mod url;
mod user;

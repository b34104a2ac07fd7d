//! The heart of Fencepost: the words of the field as types, the contract of a store, and what follows from both without a
//! server or a disk. It knows no store but the memory store, no primitive and hardly a runtime.
//!
//! | what | where |
//! |---|---|
//! | what is asked for | [`name`], [`claim`], [`limits`], [`owner`], [`purpose`] |
//! | what is answered | [`claim`], [`fence`], [`error`], [`refusal`] |
//! | who answers | [`store`] is the contract, [`cells`] its second half, [`capabilities`] what a store can give, as data |
//! | the contract as a program | [`memory`], which every store is played against |
//! | a store around a store | [`layer`] |
//! | how a store is opened | [`url`], [`scheme`] |
//! | for how long a grant is believed | [`machine`], a pure state machine, on the one [`clock`] |
//! | locks by majority | [`quorum`], pure as well |
//! | what several stores need | [`backoff`], [`batches`], [`particulars`], [`presence`] |
//!
//! Whoever writes a store begins with [`store::Store`]. Most people use the crate `fencepost`, which adds the guards, the stores and
//! `Locks::open`.

pub mod backoff;
pub mod batches;
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
pub mod presence;
pub mod purpose;
pub mod quorum;
pub mod refusal;
pub mod scheme;
pub mod store;
pub mod url;
mod user;

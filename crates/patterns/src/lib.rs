//! What does the job without a lock, and resources that let no late holder through.
//!
//! The best lock is often none. [`choosing`] walks from what you need to what serves it; the same tree is behind
//! `fencepost advise` and `docs/choosing.md`.
//!
//! Nothing here knows a lock's store. What needs only small values lives in the [cells](fencepost_core::cells) that a
//! store keeps beside its locks, and so works on every store that has any.

pub mod choosing;

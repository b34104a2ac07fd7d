//! What does the job without a lock, and resources that let no late holder through.
//!
//! The best lock is often none. [`choosing`] walks from what you need to what serves it; the same tree is behind
//! `fencepost advise` and `docs/choosing.md`.
//!
//! Where a lock is needed and a breach would cost data, the resource must decide: [`fenced`] has files, directories, Redis keys,
//! HTTP services and objects that check the fence in the step that writes. For PostgreSQL tables there is
//! `fencepost fence-table`.
//!
//! Nothing here knows where a lock lives: a fence is a number that rises, whoever issued it.

pub mod choosing;
pub mod fenced;
#[cfg(feature = "redis")]
mod keys;

//! What does the job without a lock, and resources that let no late holder through.
//!
//! The best lock is often none. [`choosing`] walks from what you need to what serves it; the same tree is behind
//! `fencepost advise` and `docs/choosing.md`.
//!
//! Without a lock: [`atomic`] changes of Redis keys and PostgreSQL rows, [`update`]s of any value on any store, tickets that are handed out once (`claims`) and [`rate`]
//! limits. Work that is done once for its key is `fencepost::Locks::once`; in your own PostgreSQL transaction, `requests`.
//!
//! Where a lock is needed and a breach would cost data, the resource must decide: [`fenced`] has files, directories, Redis keys,
//! HTTP services and objects that check the fence in the step that writes. For PostgreSQL tables there is
//! `fencepost fence-table`.
//!
//! Nothing here knows where a lock lives: a fence is a number that rises, whoever issued it.
//!
//! # Errors
//!
//! Where a function answers a `RedisResult` or a `PgResult`, its `Err` is the connection's or the server's, and what it changed is
//! unknown unless the server refused it. What is refused for a reason that the caller can act on is part of the answer, and
//! changed nothing.

mod alone;
pub mod atomic;
pub mod choosing;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub mod claims;
pub mod fenced;
#[cfg(feature = "redis")]
mod keys;
pub mod rate;
#[cfg(feature = "postgres")]
pub mod requests;
pub mod update;

//! Distributed locks for people who have to be right about it.
//!
//! A distributed lock is a **lease**: believing that you hold it and holding it are different things, and nothing
//! closes that gap. A process can be paused, a packet can be late, a clock can jump. So say what the lock is for:
//!
//! - **Efficiency** ([`Locks::for_efficiency`]): a breach costs repeated work. Any store will do.
//! - **Correctness** ([`Locks::fenced`]): a breach would cost data. Each lease carries a [`Fence`], the resource
//!   refuses what is older than it has seen, and stores that cannot issue one refuse at once.
//!
//! ```
//! use fencepost::{Acquired, Busy, Locks};
//! use std::time::Duration;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), fencepost::Error> {
//! let locks = Locks::open("memory:example").await?.fenced()?;
//! match locks.lock("orders/1001").ttl(Duration::from_secs(10)).wait(Duration::from_secs(5)).acquire().await? {
//!     Acquired(mut lease) => {
//!         let fence = lease.fence(); // send it along with every write
//!         lease.run(async { /* the work; dropped if the lease is lost */ }).await?;
//!         lease.release().await?;
//!         # let _ = fence;
//!     }
//!     Busy(by) => println!("held by {:?}", by.holder),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Locks whose purpose was not said offer no way to take one, and efficiency locks have no fence:
//!
//! ```compile_fail,E0599
//! # async fn example() -> Result<(), fencepost::Error> {
//! let locks = fencepost::Locks::open("file:/var/lib/app/locks").await?;
//! locks.lock("orders/1001"); // no method named `lock` found
//! # Ok(())
//! # }
//! ```
//!
//! ```compile_fail,E0599
//! # async fn example() -> Result<(), fencepost::Error> {
//! let locks = fencepost::Locks::open("redis://127.0.0.1").await?.for_efficiency();
//! if let fencepost::Acquired(lease) = locks.lock("orders/1001").acquire().await? {
//!     lease.fence(); // no method named `fence` found
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! `etcd`, `file`, `postgres`, `redis` and `zookeeper`, all on by default, add the stores of those names; `postgres` and `redis` also
//! the [patterns] that work on tables and keys of your own. `http`, off by default, adds a tower layer that refuses stale fences.
//! Features never change the behaviour of anything else. The memory store, for your own tests, is always there as `memory:NAME`.

pub mod blocking;
mod cell;
mod cleaner;
mod client;
mod election;
mod fenced_by;
pub mod hold;
mod latch;
mod lease;
mod locks;
mod members;
pub mod observed;
mod once;
mod period;
mod read_write;
mod reentrant;
pub mod registry;
mod request;
mod semaphore;
mod several;
mod watchdog;

pub use fencepost_core::{
    capabilities, cells, claim, clock, error,
    error::{Error, ErrorKind},
    fence::Fence,
    layer,
    limits::{MOST_PERMITS, Ttl, Wait},
    memory,
    name::{LockName, Namespace},
    owner::Owner,
    purpose::{self, Correctness, Efficiency, Undecided},
    scheme, store, url,
};

/// What does the job without a lock, and which to choose.
pub use fencepost_patterns as patterns;
pub use fencepost_patterns::update::CompareAndSet;

pub use crate::{
    cell::{Cell, Edit, MOST_CONFLICTS, Update},
    election::{Campaign, Election, Leader, Leadership, Observer},
    fenced_by::{FencedBy, FencedByRequest, OrderedLease},
    latch::{Barrier, LONGEST_PARTY, Latch, MOST_PARTIES, Passage},
    lease::{Lease, RELEASE_WITHIN},
    locks::{Locks, LocksBuilder},
    members::{
        Group, GroupMember, MOST_GROUPS, MOST_MEMBERS, MOST_SHARDS, Member, Members, ShardEvent, Shards, owner_of,
    },
    once::{Begun, KEPT_FOR, Kept, NotKept, Once, OnceGuard, Ran, Refusal},
    period::{Due, OncePer, Turn},
    read_write::ReadWrite,
    reentrant::{Entry, Reentrant},
    request::{
        Attempt::{self, Acquired, Busy},
        LockRequest, OUTAGE_LIMIT,
    },
    semaphore::Semaphore,
    several::{MOST_NAMES, Several, SeveralRequest},
};

/// The README's examples compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So do those of the page about what to choose.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/choosing.md")]
struct Choosing;

/// And of the page about what each form without a lock promises.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/patterns.md")]
struct WithoutALock;

/// And of the page about resources that check fences.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/fenced.md")]
struct Fenced;

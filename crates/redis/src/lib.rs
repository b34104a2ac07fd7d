//! Locks in Redis: one server, `redis://HOST:PORT/DATABASE`; the master that sentinels watch,
//! `redis+sentinel://SENTINEL,SENTINEL,SENTINEL/SERVICE`; or a cluster, `redis+cluster://NODE,NODE`. With `rediss` for TLS.
//!
//! **For efficiency only.** Redis answers before a replica or the disk has the record: a failover or a restart can lose
//! a grant, and would lose a fence counter along with it. No fence is issued, and `fenced()` refuses this store.
//!
//! # What to expect
//!
//! - *Free to take*: one `SET NX PX`. Giving back what nobody waits for: one script of a comparison and a `DEL`.
//! - *Order*: first come, first served, across processes. A waiter whose process gave no sign of life for 10 s loses its
//!   place; one whose connection for messages is down at that moment is passed over and keeps it. After the record was
//!   deleted by hand, a newcomer can come first. A lock that was handed over is confirmed within a second by its new
//!   holder, or passed on: a paused waiter at the head costs that second and up to two more until it is noticed.
//! - *Readers and permits* hold beside each other in a hash in the lock's place, each with an end of its own, so a plain
//!   lock of the name is refused by the same `SET NX`. They are let in, renewed and given back by one script each.
//! - *Several locks*: one script takes all that are free, or nothing; not in a cluster, where each has a slot of its own.
//! - *Wake-up*: by a message on the client's own channel. Where messages are forbidden (`SUBSCRIBE`, `PUBLISH` or the
//!   channel), waiters ask every 200 ms, and a warning says so once.
//! - *Holder died*: free after its TTL. Nothing stays: the lock's key ends with the lease, or with somebody waiting at
//!   most 12 s after the last sign of life.
//! - *Broken by force*: the holder hears at once by message, else at its next renewal. *Deleted by hand*: at the next
//!   renewal.
//! - *`PERSIST` run on a lock*: the next renewal, or the next who wants the lock, restores the expiry; the renewal
//!   warns. The lock was ours all the time, so that is no loss.
//! - *Expiry* is judged by the server's clock alone; a jump of that clock moves it.
//! - *Connections*: one for commands; one for messages, opened with the first grant or waiter.
//!
//! # Behind sentinels
//!
//! The master is found by asking every sentinel and is believed only when it says by itself that it is one. A failover is
//! followed at once; every lease is renewed on the new master, under the same owner value, and one that it never heard of
//! is lost. Which is possible, since replication is asynchronous.
//!
//! # In a cluster
//!
//! All keys of one lock have one slot. A command finds the slot's master and follows it while slots move and masters are
//! replaced. Leases are renewed in a pipeline for each master.
//!
//! # Rights
//!
//! Every key and channel begins with `NAMESPACE:`. This ACL user can do everything:
//!
//! ```text
//! ACL SETUSER locks on >PASSWORD ~NAMESPACE:* &NAMESPACE:* -@all +select +ping +info +time +scan +eval +evalsha
//!   +get +set +del +exists +pttl +pexpire +zadd +zrem +zrange +zrank +zcard +zscore +hget +hset +hdel +hincrby
//!   +hgetall +publish +subscribe
//! ```
//!
//! `select` only for another database than 0; `ping` and `info` can be left out, the latter at the price of the warning
//! about eviction; without `publish` and `subscribe` waiters poll.
//!
//! # Options of the URL
//!
//! | option | meaning |
//! |---|---|
//! | `user`, `password_file` | the login, when it shall not stand in the URL |
//! | `timeout` | the limit for the answer to one command, 2 s |
//! | `connect_timeout` | the limit for one try to connect, 5 s |
//! | `ca` | who signed the server's certificate, in PEM; without it, the system's authorities |
//! | `cert`, `key` | the client's own certificate |

mod answer;
mod beside;
mod cells;
mod cluster;
mod config;
mod connection;
mod failure;
mod keeping;
mod keys;
mod nodes;
mod record;
pub mod redlock;
mod replicas;
mod room;
mod route;
mod scriptless;
mod scripts;
mod sentinel;
mod store;
mod survey;
mod tls;

use std::sync::Arc;

use fencepost_core::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    error::Error,
    scheme::{Opening, Scheme},
    store::{BoxFuture, Store},
};

pub use crate::{
    cluster::ClusterConfig, config::RedisConfig, replicas::Replicas, sentinel::SentinelConfig, store::RedisStore,
    tls::Tls,
};

const STORE: &str = "Redis";

/// The entry of this store in the registry.
pub const SCHEME: Scheme = Scheme { names: &["redis", "rediss"], capabilities, open };

/// The facts about a single Redis server.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: STORE,
        url: "redis://HOST:PORT",
        class: Class::Efficiency,
        scope: "",
        fence: FenceSource::None(
            "its replication is asynchronous: a failover or a restart can lose a grant, and would lose the counter with it",
        ),
        expires: true,
        freed_on_death: FreedOnDeath::AfterTtl,
        wakes_by: "message from the release, TTL as backstop; polls where messages are forbidden",
        order: Order::FirstCome("except past a waiter who cannot be reached, and after a deletion by hand"),
        tells_deletion: false,
        shared: true,
        permits: true,
        several: true,
        cells: true,
    }
}

/// The entry of a master behind sentinels in the registry.
pub const SENTINEL: Scheme =
    Scheme { names: &["redis+sentinel", "rediss+sentinel"], capabilities: sentinel_capabilities, open: open_watched };

/// The facts about a master that sentinels watch.
pub fn sentinel_capabilities() -> Capabilities {
    Capabilities { url: "redis+sentinel://SENTINEL,SENTINEL,SENTINEL/SERVICE", ..capabilities() }
}

/// The entry of a cluster in the registry.
pub const CLUSTER: Scheme =
    Scheme { names: &["redis+cluster", "rediss+cluster"], capabilities: cluster_capabilities, open: open_cluster };

/// The facts about a cluster.
pub fn cluster_capabilities() -> Capabilities {
    // Names have slots of their own, and one script has one slot.
    Capabilities { url: "redis+cluster://NODE,NODE", several: false, ..capabilities() }
}

fn open_cluster(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = ClusterConfig::from_url(opening.url)?;
        let store = RedisStore::open_cluster(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

fn open_watched(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = SentinelConfig::from_url(opening.url)?;
        let store = RedisStore::open_watched(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

fn open(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = RedisConfig::from_url(opening.url)?;
        let store = RedisStore::open_with_clock(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

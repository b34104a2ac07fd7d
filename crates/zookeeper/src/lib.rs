//! Locks in a ZooKeeper ensemble: `zookeeper://h1,h2,h3/CHROOT`, and `zookeepers://` for TLS.
//!
//! **For correctness.** A lock is an ephemeral sequential node, and its fence the transaction that made it: a number that
//! rises with everything that happens in the ensemble, through failovers and restarts.
//!
//! # What to expect
//!
//! - *Free to take*: the creation of a node, with a look at the queue sent behind it. Giving back: one deletion.
//! - *Order*: first come, first served, across processes, by the transactions that made the nodes.
//! - *Wake-up*: each waiter watches the node before it. A release wakes one, whoever else waits.
//! - *Readers*: those that no writer stands before hold together, and carry the last writer's fence. A writer downgrades in place.
//! - *Permits*: a node for each one that is held, made in one transaction, whose number is its fence. The limit can be changed.
//! - *Holder died*: free when its session ends, after the TTL and up to a tick. The same holds for a waiter in the queue.
//! - *A claim that nobody awaits* leaves the queue after two seconds; a grant that nobody renews, after its TTL: a session
//!   keeps all its nodes alive alike, so the store looks after each by itself.
//! - *Deleted or broken by force*: the holder hears at once; of what happens in its first 50 ms, then.
//! - *Renewal*: no request for each lease. The session's heartbeats prove it, and a lease counts from the one *before* the
//!   last (`heartbeat.rs` has the reason): while all is well, it always has about half of its TTL left.
//! - *Sessions*: one for each TTL, shared by all locks, opened when needed and anew after a loss.
//!
//! # The client
//!
//! The protocol is spoken by this crate itself. What a lease may believe hangs on when exactly which request was sent,
//! and on which answers came from a quorum; a general client hides both. The crate `zookeeper-client` reports the end of
//! a session by its own clock after 7/5 of the timeout, keeps requests of callers that gave up and sends them after a
//! reconnect, and brings a second reactor and a second provider of cryptography.
//!
//! # Options of the URL
//!
//! | option | meaning |
//! |---|---|
//! | `user`, `password_file` | the `digest` login, when it shall not stand in the URL |
//! | `acl` | `open` (the default), or `creator` (the default with a login) |
//! | `recipe` | `fencepost` (the default), or `curator`: the nodes of Curator's `InterProcessMutex` |
//! | `timeout` | the limit for the answer to one request, 3 s |
//! | `connect_timeout` | the limit for one try to connect to one server, 2 s |
//! | `ca`, `cert`, `key` | with `zookeepers:`: who signed the servers' certificates, the client's own certificate |

mod bare;
mod cells;
mod config;
mod failure;
mod guard;
mod heartbeat;
mod layout;
mod notes;
mod permits;
mod places;
mod queue;
mod reading;
mod record;
mod renewal;
mod sentry;
mod servers;
mod session;
mod sessions;
mod store;
mod survey;
mod taking;
mod tls;
mod waiting;
mod wire;

use std::sync::Arc;

use fencepost_core::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    error::Error,
    scheme::{Opening, Scheme},
    store::{BoxFuture, Store},
};

pub use crate::{
    bare::BareZooKeeper,
    config::{Access, ZooKeeperConfig},
    guard::ZooKeeperGuard,
    layout::Recipe,
    store::ZooKeeperStore,
    tls::Tls,
};

const STORE: &str = "ZooKeeper";

/// The entry of this store in the registry.
pub const SCHEME: Scheme = Scheme { names: &["zookeeper", "zookeepers"], capabilities, open };

/// The facts about a ZooKeeper ensemble.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: STORE,
        url: "zookeeper://H1,H2,H3/CHROOT",
        class: Class::Correctness,
        scope: "",
        fence: FenceSource::Issued("the transaction that made the lock's node"),
        expires: true,
        freed_on_death: FreedOnDeath::AfterSession,
        wakes_by: "watch on the one before",
        order: Order::FirstCome("except past a waiter whose session ended"),
        tells_deletion: true,
        shared: true,
        permits: true,
        several: false,
        cells: true,
    }
}

fn open(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = ZooKeeperConfig::from_url(opening.url)?;
        let store = ZooKeeperStore::open_with_clock(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

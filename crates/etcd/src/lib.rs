//! Locks in an etcd cluster: `etcd://HOST:PORT,HOST:PORT,…` and `etcds://` for TLS.
//!
//! **For correctness.** A grant is in the majority's log before it is answered and survives failover; its fence is the
//! revision that created the holder's key.
//!
//! # What to expect
//!
//! - *Free to take*: one transaction. Giving back: one delete. Nothing else, once the session is open.
//! - *Sessions*: one lease of etcd's for each client and TTL, which all claims of that TTL hang on. etcd counts TTLs in
//!   whole seconds and has a least one (half as much again as its election timeout); what it granted is what counts.
//! - *Readers* cost what a lock costs, *permits* one request more beside others, *several* locks (100 at most) one transaction
//!   when all of them are free.
//! - *Order*: first come, first served, across processes.
//! - *Wake-up*: a watch on the claim that one waits for. A release wakes one waiter, or the readers behind the last writer. A
//!   lost wake-up costs 10 s.
//! - *Holder died*: free when its session ends, which is after the TTL and up to a second. So is the place of a waiter
//!   whose process died. A waiter that is called and does not come within 3 s, though its process lives, is passed over.
//! - *Deleted by hand, broken by force, lease revoked*: the holder hears at once, by a watch on its own key that begins
//!   50 to 100 ms after the grant and looks back to it.
//! - *Stray keys* below a lock's prefix neither block nor count.
//! - *Expiry* is judged by the leader's clock alone, by spans and not by the time of day. A new leader gives every lease
//!   its whole TTL anew.
//! - *Connections*: one, to one member. When it breaks or its member has lost its leader, the next one is tried.
//!
//! # Data beside the lock
//!
//! [`EtcdGuard`], which a lease's `guard` answers, is the condition for a transaction of your own in the same cluster: it
//! takes effect only while the lock is held. `examples/guarded_etcd.rs` shows it.
//!
//! # Rights
//!
//! With authentication, a user needs `readwrite` on all keys that begin with `NAMESPACE/`:
//!
//! ```text
//! etcdctl role add locks
//! etcdctl role grant-permission locks --prefix=true readwrite NAMESPACE/
//! etcdctl user grant-role USER locks
//! ```
//!
//! # Options of the URL
//!
//! | option | meaning |
//! |---|---|
//! | `user`, `password_file` | the login, when it shall not stand in the URL |
//! | `timeout` | the limit for the answer of one member, 2 s; a call may try two |
//! | `connect_timeout` | the limit for one try to connect to one member, 2 s |
//! | `recipe` | `etcd` for the layout of etcd's own clients, so that `etcdctl lock NAMESPACE/NAME` and Fencepost exclude each other |
//! | `ca` | who signed the members' certificates, in PEM; without it, the system's authorities |
//! | `cert`, `key` | the client's own certificate |
//! | `server_name` | the name to expect in the members' certificates, when it is not the host's |

mod api;
mod bare;
mod cells;
mod config;
mod ears;
mod exclusive;
mod failure;
mod guard;
mod keys;
mod late;
mod ledger;
mod link;
mod listening;
mod permits;
mod queue;
mod record;
mod renewal;
mod seats;
mod session;
mod several;
mod shared;
mod store;
mod survey;
mod sweep;
mod waiting;

use std::sync::Arc;

use fencepost_core::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    error::Error,
    scheme::{Opening, Scheme},
    store::{BoxFuture, Store},
};

#[doc(hidden)] // for `fencepost bench`
pub use crate::bare::BareEtcd;
pub use crate::{
    config::{EtcdConfig, Recipe, Tls},
    guard::EtcdGuard,
    store::EtcdStore,
};

const STORE: &str = "etcd";

/// The entry of this store in the registry.
pub const SCHEME: Scheme = Scheme { names: &["etcd", "etcds"], capabilities, open };

/// The facts about an etcd cluster.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: STORE,
        url: "etcd://HOST:PORT",
        class: Class::Correctness,
        scope: "",
        fence: FenceSource::Issued("the create revision of the holder's key"),
        expires: true,
        freed_on_death: FreedOnDeath::AfterSession,
        wakes_by: "watch on the one before",
        order: Order::FirstCome(""),
        tells_deletion: true,
        shared: true,
        permits: true,
        several: true,
        cells: true,
    }
}

/// etcd's own clients know locks for one holder and nothing else.
fn capabilities_of(recipe: Recipe) -> Capabilities {
    let all = recipe == Recipe::Fencepost;
    Capabilities { shared: all, permits: all, several: all, ..capabilities() }
}

fn open(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = EtcdConfig::from_url(opening.url)?;
        let store = EtcdStore::open_with_clock(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

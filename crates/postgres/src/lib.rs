//! Locks in a PostgreSQL database: `postgres://USER@HOST/DATABASE`.
//!
//! **For correctness.** A lock is a row with a lease and a fence, and each change of it is one transaction. Where the
//! protected data lies in the same database, the fence is checked in the very statement that writes.
//!
//! # What to expect
//!
//! - *Free to take*: one statement. Giving back: one more.
//! - *Busy to take*: one statement that writes nothing.
//! - *Several to take*: one statement, all or none, with one fence for all of them.
//! - *Order*: first come, first served, across processes. A waiter whose connection for messages is down at that moment
//!   is passed over and keeps its place for ten seconds. A lock that was handed over is confirmed within a second by its
//!   new holder, or passed on: a paused waiter at the head costs that second and up to two more until it is noticed.
//! - *Wake-up*: by `NOTIFY`, sent only when somebody waits, heard on one connection for all waiters of a client. Behind a
//!   pooler messages do not come: waiters ask every 200 ms, and a warning says so once.
//! - *Holder died*: free after its TTL.
//! - *Broken by force, or its row deleted*: the holder hears at once by message, else at its next renewal.
//! - *Expiry* is judged by the server's clock alone (`clock_timestamp()`). When that clock jumps forward, leases end early;
//!   when it jumps back, a lease lasts at most one TTL from the next look at it, a reader's or a permit's two.
//! - *Fences* are an epoch in the high bits and a counter below. The epoch rises with each promotion of a standby, and when
//!   a dump is restored elsewhere, so that fences stay monotone where the new server lacks the last grants.
//! - *Connections*: one for statements; one for messages, made for the first waiter or a lock held for 300 ms.
//!
//! Locks inside your own transaction are in [`transaction`]; tables of your own that check fences in [`fenced`].
//!
//! What asynchronous failover can still break, the rights, and how to run it: `docs/stores/postgres.md`.
//!
//! # Options of the URL
//!
//! | option | meaning |
//! |---|---|
//! | `mode` | `lease`, or `session`: held for as long as the client's connection lives |
//! | `schema` | the schema with Fencepost's tables, `fencepost` |
//! | `user`, `password_file` | the login, when it shall not stand in the URL |
//! | `host` | the directory of a local socket, as in `postgres:///db?host=/run/postgresql` |
//! | `target_session_attrs` | `read-write`, which is what is looked for in any case |
//! | `timeout` | the limit for the answer to one statement, 3 s |
//! | `connect_timeout` | the limit for connecting, all hosts included, 5 s |
//! | `sslmode` | `verify-full` for TLS, or `disable` |
//! | `ca` | who signed the server's certificate, in PEM; without it, the system's authorities |
//! | `cert`, `key` | the client's own certificate |
//!
//! Several hosts of one cluster may be named; the one that takes writes is used, and looked for again when it changes.

mod answers;
mod cells;
mod claiming;
mod config;
mod connection;
mod failure;
pub mod fenced;
mod keeping;
mod migrate;
mod record;
mod room;
mod session;
mod statements;
mod store;
mod survey;
mod tls;
pub mod transaction;

use std::sync::Arc;

use fencepost_core::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    error::Error,
    scheme::{Opening, Scheme},
    store::{BoxFuture, Store},
};

pub use crate::{
    config::{Host, Mode, PostgresConfig},
    migrate::{Migrated, migrate, script, upgrade_script},
    store::PostgresStore,
    tls::Tls,
};

const STORE: &str = "PostgreSQL";

/// The entry of this store in the registry.
pub const SCHEME: Scheme = Scheme { names: &["postgres", "postgresql"], capabilities, open };

/// The facts about lease rows in PostgreSQL.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: STORE,
        url: "postgres://HOST/DATABASE",
        class: Class::Correctness,
        scope: "one primary, or synchronous standbys",
        fence: FenceSource::Issued("counter in the lock's row"),
        expires: true,
        freed_on_death: FreedOnDeath::AfterTtl,
        wakes_by: "NOTIFY from the release, TTL as backstop; polls behind a pooler",
        order: Order::FirstCome("except past a waiter who cannot be reached"),
        tells_deletion: true,
        shared: true,
        permits: true,
        several: true,
        cells: true,
    }
}

/// The entry of `mode=session` in the registry, also as a scheme of its own.
pub const SESSION_SCHEME: Scheme =
    Scheme { names: &["postgres+session"], capabilities: session_capabilities, open: open_session };

/// The facts about rows that are held for as long as a session lives.
pub fn session_capabilities() -> Capabilities {
    Capabilities {
        url: "postgres://HOST/DATABASE?mode=session",
        scope: "while the session lives",
        expires: false,
        freed_on_death: FreedOnDeath::AtOnce,
        wakes_by: "NOTIFY from the release; a look every 200 ms for a holder that died",
        ..capabilities()
    }
}

fn open_session(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let mut config = PostgresConfig::from_url(opening.url)?;
        config.mode = Mode::Session;
        let store = PostgresStore::open_with_clock(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

fn open(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = PostgresConfig::from_url(opening.url)?;
        let store = PostgresStore::open_with_clock(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

//! Locks by majority of several independent Redis servers (Redlock): `redlock://HOST1:PORT,HOST2:PORT,…` and `redlocks://`
//! for TLS.
//!
//! **For efficiency only.** It bears the loss of a minority of its servers. It issues no fence and cannot: no majority of
//! independent counters is one counter that only rises, so whoever is late cannot be told from whoever is in time.
//! Exclusion stands on assumptions about clocks and memory that nobody enforces; see `docs/stores/redis.md` for what
//! breaks it, and [`fencepost_core::quorum`] for the rules of a round.
//!
//! # What to expect
//!
//! - *Free to take*: one `SET NX PX` to every server at once, settled by the quorum's slowest. Each server has the same
//!   limit, `node_timeout`, for its answer to any verb; one that is slower costs nothing but its vote.
//! - *Waiting*: a place in the queue of every server that can be reached, ordered by tickets of the waiters' own wall
//!   clocks, so that all servers have the same order. A release hands each server's vote to its first waiter; votes that
//!   were split come together by tickets, and a lost round waits a random time before the next.
//! - *A lost round* is given back on every server, on those that do not answer for as long as the record could last.
//! - *A server that restarted* may have forgotten what it promised, and is not counted before it has been up for the
//!   claim's TTL. Use one TTL for one lock, or set `restart_guard` to the longest.
//! - *A server that comes back during a hold* gets the record from the next renewal by a quorum.
//! - *Holder died, broken by force, deleted by hand, `PERSIST`*: as on a single server, once a quorum of servers agrees.
//! - *Connections*: to each server two, as for a single one.
//!
//! # Options of the URL
//!
//! | option | meaning |
//! |---|---|
//! | `user`, `password_file` | the login for every server that has none of its own in the URL |
//! | `node_timeout` | each server's limit for an answer, 50 ms |
//! | `connect_timeout` | the limit for one try to connect, 1 s |
//! | `drift` | hundredths of the TTL given up for clocks that run differently, 1; 2 ms come on top |
//! | `restart_guard` | for how long a server that restarted is not counted: the claim's TTL at least; `0` for servers that lose nothing |
//! | `ca`, `cert`, `key` | with `redlocks:`, as for `rediss:` |

mod config;
mod crowd;
mod debts;
mod keeping;
mod listing;
mod mending;
mod node;
mod opening;
mod seat;
mod taking;
mod voting;
mod waiting;

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fencepost_core::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, Mode, Patience, Release, Renewal},
    clock::{Clock, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::LockName,
    owner::Owner,
    particulars::Particulars,
    purpose::{Efficiency, TypedStore},
    quorum::Quorum,
    scheme::{Opening, Scheme},
    store::{BoxFuture, LossReporter, Store},
};

use tokio::task::JoinSet;

pub use config::{RedlockConfig, RestartGuard};

use crowd::Crowd;
use mending::Renewals;
use node::Node;
use seat::Seat;

const STORE: &str = "Redlock";

/// The entry of this store in the registry.
pub const SCHEME: Scheme = Scheme { names: &["redlock", "redlocks"], capabilities, open };

/// The facts about a majority of Redis servers.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: STORE,
        url: "redlock://HOST1,HOST2,HOST3,…",
        class: Class::Efficiency,
        scope: "bears the loss of a minority",
        fence: FenceSource::None(
            "a majority of independent servers has no place to count: their counters do not make one that only rises",
        ),
        expires: true,
        freed_on_death: FreedOnDeath::AfterTtl,
        wakes_by: "messages from a quorum of servers, TTL as backstop; polls where messages are forbidden",
        order: Order::FirstCome("by the waiters' own clocks, except past one whom no quorum reaches"),
        tells_deletion: false,
        shared: false,
        permits: false,
        several: false,
        cells: false,
    }
}

fn open(opening: Opening) -> BoxFuture<'static, Result<Arc<dyn Store>, Error>> {
    Box::pin(async move {
        let config = RedlockConfig::from_url(opening.url)?;
        let store = RedlockStore::open_with_clock(&config, &opening.namespace, opening.clock).await?;
        Ok(Arc::new(store) as Arc<dyn Store>)
    })
}

/// Locks by majority of several Redis servers. Of the class [`Efficiency`]: it issues no fence.
///
/// Dropping it ends its background work; grants then end by their TTL.
pub struct RedlockStore {
    nodes: Vec<Arc<Node>>,
    quorum: Quorum,
    guard: RestartGuard,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    /// The number of the last round: each is later than all before, so that what comes late cannot undo a newer one.
    last_round: AtomicU64,
    crowd: Crowd,
    renewals: Arc<Renewals>,
    /// The round that each lease was won in, until it is given back.
    won: Mutex<HashMap<Owner, u64>>,
    seats: Mutex<HashMap<Owner, Seat>>,
    particulars: Particulars,
    /// Hear of losses; end with the store.
    ears: Mutex<JoinSet<()>>,
}

impl RedlockStore {
    /// A number for a round, greater than all before: the time, so that it can be shown as "held since".
    fn next_round(&self) -> u64 {
        let now = wall_unix_ms(&*self.clock);
        let last = self.last_round.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(now.max(last + 1)));
        now.max(last.unwrap_or_else(|last| last) + 1)
    }

    /// Where this client hears messages, the same on every server.
    fn channel(&self) -> &str {
        self.nodes.first().map_or("", |node| &node.room.channel)
    }

    fn note_won(&self, owner: &Owner, round: u64) {
        self.won.lock().unwrap_or_else(PoisonError::into_inner).insert(*owner, round);
    }

    /// 0 for a lease that another process was granted.
    fn round_won(&self, owner: &Owner) -> u64 {
        self.won.lock().unwrap_or_else(PoisonError::into_inner).get(owner).copied().unwrap_or(0)
    }

    fn seats(&self) -> MutexGuard<'_, HashMap<Owner, Seat>> {
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close_all(&self) {
        self.nodes.iter().for_each(|node| node.close());
    }
}

fn only_exclusive(holding: &Holding) -> Result<&LockName, Error> {
    match holding.wants() {
        [want] if want.mode == Mode::Exclusive => Ok(&want.name),
        _ => {
            let said =
                "Redlock gives one exclusive lock per claim, neither shared ones nor permits nor several at once";
            Err(Error::new(ErrorKind::Unsupported, Operation::Claim, said)
                .not_applied()
                .on_lock(holding.name())
                .in_store(STORE))
        }
    }
}

impl Store for RedlockStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.take(claim, patience))
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(self.wait(claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(self.extend(claims))
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(self.give_back(holding))
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(self.list(only))
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(self.break_lock(name, if_fence))
    }

    fn report_losses(&self, to: LossReporter) {
        self.gather_losses(&to);
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.close_all() })
    }
}

impl TypedStore for RedlockStore {
    type Serves = Efficiency;
}

impl Drop for RedlockStore {
    fn drop(&mut self) {
        // The rooms' tasks hold the rooms, not the store.
        self.nodes.iter().for_each(|node| node.room.close());
    }
}

impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nodes: Vec<_> = self.nodes.iter().map(|node| &node.address).collect();
        f.debug_struct("RedlockStore").field("nodes", &nodes).finish_non_exhaustive()
    }
}

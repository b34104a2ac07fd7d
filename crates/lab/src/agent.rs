//! A process of its own that takes, holds and writes, and that the laboratory can pause and kill.
//!
//! It obeys one [`Order`] for each line on its standard input, and writes one [`Said`] for each line to its standard
//! output: what belongs into the history as it happens, and what came of each order. Peers in other languages speak the
//! same.

mod advisory;
mod errand;
mod library;
mod naive;
mod paced;
mod recording;

use std::{io::Write, net::SocketAddr};

use fencepost_core::clock::{BootClock, Clock};
use fencepost_history::{Event, Holding, What};
use serde::{Deserialize, Serialize};

/// The label under which a lock's record carries the name of its grant in the history.
pub(crate) const LABEL: &str = "grant";

/// What the process is told to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    /// Its number, which the answer names.
    pub order: u64,
    /// What to do.
    #[serde(flatten)]
    pub task: Task,
}

/// What there is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
#[allow(missing_docs)] // the fields say it
pub enum Task {
    /// Take a lock; without a limit, wait as long as it takes.
    Acquire {
        lock: String,
        grant: String,
        ttl_ms: u64,
        wait_ms: Option<u64>,
        renews: bool,
        #[serde(default)]
        holding: Holding,
    },
    /// Look whether it is held.
    Check { grant: String },
    /// Give it back.
    Release { grant: String },
    /// Show the fence to the resource and read.
    Read { grant: String, resource: SocketAddr },
    /// Write on the basis of what was read, without another look at the lock.
    Write { grant: String, resource: SocketAddr },
}

/// What came of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Came {
    /// As wished: granted, held, released, accepted.
    Yes,
    /// Not: busy, lost, refused.
    No,
    /// It failed or is not known.
    Failed,
}

/// One line of the process.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)] // the fields say it
pub enum Said {
    /// Something for the history.
    Event(Event),
    /// An order is carried out.
    Done { order: u64, came: Came, why: String },
    /// It is ready for orders.
    Ready { ready: bool },
}

/// Which client the process is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Role {
    /// How the history calls it.
    pub name: String,
    /// Its client.
    pub client: Client,
    /// The store's URL.
    pub url: String,
    /// How many hundredths of its pace its clock runs at.
    #[serde(default = "Role::right_pace")]
    pub pace: u32,
}

impl Role {
    fn right_pace() -> u32 {
        100
    }
}

/// A client of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Client {
    /// This library.
    Library,
    /// What many write first: `SET NX PX` to take, `DEL` to give back, and no look at the clock. The same on other stores.
    Naive,
    /// The same, and it looks: whether its TTL is over by `CLOCK_MONOTONIC`, which most timers count on.
    Monotonic,
    /// As the naive one, on the master that it was told of once, with a fence drawn by `INCR` from the same server.
    Counter,
    /// `pg_try_advisory_lock` on whatever connection it was given.
    Advisory,
    /// redis-py's `Lock`, a process in Python.
    RedisPy,
    /// kazoo's `Lock`, the same.
    Kazoo,
    /// `etcdctl lock`, led by a process in Python.
    Etcdctl,
}

/// Runs the process until its input ends.
///
/// # Errors
/// When the store cannot be opened.
pub fn run(role: Role) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match role.client {
            Client::Library => library::serve(role).await,
            Client::Naive | Client::Monotonic | Client::Counter => naive::serve(role).await,
            Client::Advisory => advisory::serve(role).await,
            Client::RedisPy | Client::Kazoo | Client::Etcdctl => Err("it is played by a process in Python".into()),
        }
    })
}

pub(crate) fn now() -> u64 {
    BootClock.now().as_nanos()
}

/// Writes an event that happened just now.
fn tell(by: &str, what: What) {
    tell_at(now(), by, what);
}

fn tell_at(at: u64, by: &str, what: What) {
    say(&Said::Event(Event { at, by: by.to_owned(), what }));
}

fn done(order: u64, came: Came, why: impl Into<String>) {
    say(&Said::Done { order, came, why: why.into() });
}

fn say(said: &Said) {
    let mut line = serde_json::to_vec(said).expect("a line as JSON");
    line.push(b'\n');
    // One write, so that lines do not mix. Nobody to report to means that the laboratory is gone.
    if std::io::stdout().lock().write_all(&line).is_err() {
        std::process::exit(0);
    }
}

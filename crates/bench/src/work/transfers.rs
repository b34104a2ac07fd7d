//! Amounts moved between accounts: with a lock around reading and writing, and in the ways that need none.
//!
//! All ways of all stores take turns. Each has accounts of its own, and in the end each account must have what was moved to it less what
//! was moved from it: a way that loses a transfer is not fast, it is wrong. One of them is, on purpose: the bare commands, which are the
//! floor of the lock, and show that the comparison finds what is lost.

mod page;
mod postgres;
mod redis;

use std::{cell::Cell, fmt, time::Duration};

use fencepost::{Acquired, Efficiency, Error, Locks, Update, clock::Moment, url::StoreUrl};
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;

pub use self::page::{Page, page};
use super::broken;
use crate::{
    floor::{Cycle, Measuring},
    ground::Ground,
    plan::Plan,
    report::{Latency, Outcome},
    rounds::contest_in_turns_of,
    samples::Samples,
};

/// What an account has at first: more than anybody moves in a run.
const BALANCE: i64 = 1_000_000_000;
/// The most that is moved at once. Amounts differ, so that two which are lost hardly ever make up for each other.
const MOST: i64 = 1_000;
/// Long enough for waiters to come and go many times.
const TURN: Duration = Duration::from_millis(200);

/// A way to move an amount from one account to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Read both, write both, with nothing in between that would keep others away: transfers are lost.
    Bare,
    /// The same under a Fencepost lock on both accounts.
    Lock,
    /// Redis: `WATCH` both, read, write in `MULTI` and `EXEC`; again after a conflict.
    Watch,
    /// Redis: read, then compare and set both by a script; again after a conflict.
    CompareAndSet,
    /// Redis: one script that compares and moves.
    Script,
    /// PostgreSQL: read, then write both on condition of their versions in one transaction; again after a conflict.
    Version,
    /// PostgreSQL: `SELECT … FOR UPDATE` of both rows, compare, write, in one transaction.
    ForUpdate,
    /// PostgreSQL: one statement that moves if there is enough.
    Statement,
}

/// The figures of one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Its store.
    pub store: String,
    /// The way.
    pub way: Way,
    /// Between how many accounts.
    pub accounts: usize,
    /// How many in a second.
    pub per_second: f64,
    /// The same by the lock's of this store, the median over the rounds.
    pub by_lock: f64,
    /// The time that one took.
    pub latency: Latency,
    /// How often another was faster, for each transfer.
    pub conflicts: f64,
    /// By how much the accounts differ from what was moved. Of anything but [`Way::Bare`], a run with such a figure is an error.
    pub lost: u64,
}

/// Where the accounts are.
pub(super) trait Bank {
    /// Its name for people.
    fn name(&self) -> &'static str;
    /// What is measured here; the lock is among it.
    fn ways(&self) -> &'static [Way];
    /// Puts [`BALANCE`] into each of these accounts, and makes them.
    fn fill<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, ()>;
    /// What is in each of them, in their order.
    fn balances<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, Vec<i64>>;
    /// Somebody who moves amounts in this way, which is one of [`ways`](Self::ways), on connections of his own.
    fn teller<'a>(&'a self, way: Way) -> Measuring<'a, Box<dyn Teller>>;
    /// Removes these accounts.
    fn clear<'a>(&'a self, accounts: &'a [String]) -> Measuring<'a, ()>;
    /// Removes what the run made.
    fn tidy(&self) -> Measuring<'_, ()>;
}

/// Moves an amount from an account to another; answers the number of conflicts.
pub(super) trait Teller {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32>;
}

pub(super) async fn measure(
    ground: &Ground,
    plan: &Plan,
    mut outcome: Outcome,
    span: Duration,
) -> Result<Outcome, Error> {
    let mut banks = Vec::new();
    for url in ground.urls() {
        banks.push(opened(url, ground).await?);
    }
    for accounts in &plan.accounts {
        let measured = between(ground, &banks, outcome.size, *accounts, span / plan.accounts.len() as u32).await;
        match measured {
            Ok(transfers) => outcome.transfers.extend(transfers),
            Err(error) => {
                tidy(&banks).await.ok(); // what ended the run says more
                return Err(error);
            }
        }
    }
    tidy(&banks).await?;
    Ok(outcome)
}

async fn opened<'g>(url: &str, ground: &'g Ground) -> Result<Box<dyn Bank + 'g>, Error> {
    let parsed = StoreUrl::parse(url)?;
    match parsed.scheme() {
        "redis" => Ok(Box::new(redis::Redis::open(url, ground).await?)),
        "postgres" | "postgresql" => Ok(Box::new(postgres::Postgres::open(url, ground).await?)),
        other => Err(broken(format!("transfers are measured on redis: and postgres:, and not on {other}:"))),
    }
}

async fn tidy(banks: &[Box<dyn Bank + '_>]) -> Result<(), Error> {
    for bank in banks {
        bank.tidy().await?;
    }
    Ok(())
}

/// All ways of all banks in turns.
async fn between(
    ground: &Ground,
    banks: &[Box<dyn Bank + '_>],
    workers: usize,
    accounts: usize,
    span: Duration,
) -> Result<Vec<Transfer>, Error> {
    let mut contestants = Vec::new();
    for bank in banks {
        for way in bank.ways() {
            contestants.push(Contestant::new(ground, &**bank, *way, workers, accounts).await?);
        }
    }
    let workers: Vec<_> = (0..workers).map(|worker| worker.to_string()).collect();
    let cycles: Vec<_> = contestants.iter().map(|contestant| contestant as &dyn Cycle).collect();
    let series = contest_in_turns_of(TURN, span, &workers, &cycles).await?;
    let lock_of = |bank: &'static str| {
        let place = contestants.iter().position(|other| other.bank.name() == bank && other.way == Way::Lock);
        &series[place.expect("every bank has a lock")]
    };
    let mut transfers = Vec::new();
    for (contestant, figures) in contestants.iter().zip(&series) {
        let Contestant { bank, way, accounts, conflicts, moved, .. } = contestant;
        let lost = contestant.lost().await?;
        if lost != 0 && *way != Way::Bare {
            return Err(broken(format!("{way:?} on {}: the accounts are wrong by {lost}", bank.name())));
        }
        bank.clear(accounts).await?;
        transfers.push(Transfer {
            store: bank.name().to_owned(),
            way: *way,
            accounts: accounts.len(),
            per_second: figures.per_second(),
            by_lock: figures.throughput_ratio(lock_of(bank.name())),
            latency: figures.samples.latency(),
            conflicts: conflicts.get() as f64 / moved.get().max(1) as f64,
            lost,
        });
    }
    Ok(transfers)
}

/// One way with its workers and accounts.
struct Contestant<'a> {
    bank: &'a dyn Bank,
    way: Way,
    accounts: Vec<String>,
    tellers: Vec<Mutex<Box<dyn Teller>>>,
    /// What each account must have.
    expected: Vec<Cell<i64>>,
    conflicts: Cell<u64>,
    moved: Cell<u64>,
}

impl<'a> Contestant<'a> {
    async fn new(
        ground: &Ground,
        bank: &'a dyn Bank,
        way: Way,
        workers: usize,
        accounts: usize,
    ) -> Result<Self, Error> {
        let accounts = ground.names(accounts);
        bank.fill(&accounts).await?;
        let mut tellers = Vec::new();
        for _ in 0..workers {
            tellers.push(Mutex::new(bank.teller(way).await?));
        }
        let expected = accounts.iter().map(|_| Cell::new(BALANCE)).collect();
        Ok(Self { bank, way, accounts, tellers, expected, conflicts: Cell::new(0), moved: Cell::new(0) })
    }

    /// By how much the accounts differ from what was moved.
    async fn lost(&self) -> Result<u64, Error> {
        let balances = self.bank.balances(&self.accounts).await?;
        Ok(balances.iter().zip(&self.expected).map(|(has, expected)| has.abs_diff(expected.get())).sum())
    }
}

impl Cycle for Contestant<'_> {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            let place: usize = name.parse().expect("workers are named by their numbers");
            let mut teller = self.tellers[place].lock().await;
            let mut random = fastrand::Rng::new();
            samples
                .fill(until, async || {
                    let from = random.usize(0..self.accounts.len());
                    let to = (from + random.usize(1..self.accounts.len())) % self.accounts.len();
                    let amount = random.i64(1..=MOST);
                    let conflicts = teller.transfer(&self.accounts[from], &self.accounts[to], amount).await?;
                    self.conflicts.set(self.conflicts.get() + u64::from(conflicts));
                    self.moved.set(self.moved.get() + 1);
                    self.expected[from].update(|has| has - amount);
                    self.expected[to].update(|has| has + amount);
                    Ok(())
                })
                .await
        })
    }
}

/// Moves under a lock on both accounts.
struct Locked<T> {
    locks: Locks<Efficiency>,
    bare: T,
}

impl<T: Teller> Teller for Locked<T> {
    fn transfer<'a>(&'a mut self, from: &'a str, to: &'a str, amount: i64) -> Measuring<'a, u32> {
        Box::pin(async move {
            let Acquired(mut both) = self.locks.several([from, to]).acquire().await? else {
                return Err(broken("a lock was waited for as long as it takes, and not had".into()));
            };
            let moved = self.bare.transfer(from, to, amount).await;
            both.release().await?;
            moved
        })
    }
}

fn conflicts<T: fmt::Debug>(update: Update<T>) -> Result<u32, Error> {
    match update {
        Update::Written { conflicts, .. } => Ok(conflicts),
        other => Err(broken(format!("a transfer came to nothing: {other:?}"))),
    }
}

//! A shared ledger under trouble: what a lock is worth, and what only a fence is.
//!
//! Several processes add one to the same number, again and again: take the lock, read, think, write. Meanwhile their
//! parent kills them, pauses them for longer than a lease lasts, and robs paused ones of their lock.
//!
//! On a store that issues fences the [ledger](ledger::Ledger) checks them, and the result is exact. On a store that
//! does not, a writer that was paused between its last look at the lease and its write overwrites what others wrote
//! meanwhile; the ledger counts its writes by itself, so that the difference shows.
//!
//! ```text
//! cargo run --release -p fencepost --example ledger
//! cargo run --release -p fencepost --example ledger -- --store redis://127.0.0.1 --seed 42
//! ```
//!
//! The seed fixes which trouble comes in which order. How the system schedules the processes is not repeatable.
//!
//! Exit codes: 0 when the result is exact, or when the store issues no fence and so promises nothing; 1 when it is
//! not exact although it should be, or something failed.

mod ledger;
mod seeded;
mod trouble;
mod worker;

use std::{error::Error, path::PathBuf, process::ExitCode};

use clap::Parser;
use fencepost::{Owner, capabilities::FenceSource, registry};
use serde::Serialize;

use crate::{
    ledger::{Ledger, Page},
    trouble::Toll,
};

/// The lock that stands before the ledger.
const LOCK: &str = "ledger";

#[derive(Clone, Debug, Parser)]
#[command(name = "ledger", about = "Adds to one number from many processes, under trouble, and checks the result")]
struct Arguments {
    /// Where the lock lives [default: a directory of its own]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// How many processes add
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=64))]
    processes: u8,
    /// How often each of them adds one
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    increments: u32,
    /// Which trouble comes when [default: a random one]
    #[arg(long)]
    seed: Option<u64>,
    /// The result as one line of JSON
    #[arg(long)]
    json: bool,
    /// Be the worker of this number; how the parent starts itself again
    #[arg(long, hide = true, requires_all = ["ledger", "store"])]
    worker: Option<u8>,
    /// The ledger's directory
    #[arg(long, hide = true)]
    ledger: Option<PathBuf>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let outcome = match arguments.worker {
        Some(number) => work(&arguments, number).await.map(|()| ExitCode::SUCCESS),
        None => oversee(arguments).await,
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("ledger: {error}");
        ExitCode::FAILURE
    })
}

async fn work(arguments: &Arguments, number: u8) -> Result<(), Box<dyn Error>> {
    let (Some(store), Some(directory)) = (&arguments.store, &arguments.ledger) else {
        return Err("a worker needs a store and a ledger".into());
    };
    worker::work(store, &Ledger::at(directory), number, arguments.increments).await
}

async fn oversee(arguments: Arguments) -> Result<ExitCode, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let store = match &arguments.store {
        Some(url) if url.starts_with("memory:") => return Err("other processes cannot reach a memory store".into()),
        Some(url) => url.clone(),
        None => format!("file:{}", directory.path().join("locks").display()),
    };
    let seed = match arguments.seed {
        Some(seed) => seed,
        None => random()?,
    };
    if !arguments.json {
        println!("seed {seed}");
    }
    let ledger = Ledger::create(&directory.path().join("ledger"), arguments.processes)?;
    let plan = trouble::Plan { store: &store, ledger: &ledger, arguments: &arguments, seed };
    let (fenced, toll) = plan.carry_out().await?;
    let report = Report::new(&arguments, fenced, seed, toll, &ledger.page()?);
    if arguments.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        report.print();
    }
    Ok(if report.exact || !fenced { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Report {
    fenced: bool,
    seed: u64,
    kills: u32,
    pauses: u32,
    robberies: u32,
    /// Writes that the ledger refused because of their fence.
    refused: u64,
    expected: u64,
    /// Writes that the ledger accepted.
    written: u64,
    /// The number that all of them together made.
    balance: u64,
    lost: u64,
    exact: bool,
}

impl Report {
    fn new(arguments: &Arguments, fenced: bool, seed: u64, toll: Toll, page: &Page) -> Self {
        let expected = u64::from(arguments.processes) * u64::from(arguments.increments);
        let (written, balance) = (page.written.iter().sum::<u64>(), page.balance);
        Self {
            fenced,
            seed,
            kills: toll.kills,
            pauses: toll.pauses,
            robberies: toll.robberies,
            refused: page.refused,
            expected,
            written,
            balance,
            lost: written.saturating_sub(balance),
            exact: balance == expected && written == expected,
        }
    }

    fn print(&self) {
        println!("trouble: {} killed, {} paused, {} robbed of the lock", self.kills, self.pauses, self.robberies);
        println!(
            "ledger:  {} of {} after {} writes, {} refused",
            self.balance, self.expected, self.written, self.refused
        );
        match (self.fenced, self.lost) {
            (true, _) if self.exact => println!("exact: whoever was late was refused by the fence"),
            (true, _) => println!("NOT EXACT, although every write carried a fence"),
            (false, 0) => println!("nothing was lost this time; a store without fences does not promise that"),
            (false, lost) => println!(
                "{lost} updates were lost: a writer paused past its TTL overwrote them, and without a fence\n\
                 nothing could refuse it. This store is for efficiency, where that costs only repeated work."
            ),
        }
    }
}

fn random() -> Result<u64, Box<dyn Error>> {
    let owner = Owner::random()?;
    let bytes = owner.as_bytes().first_chunk().ok_or("an owner value has more than 8 bytes")?;
    Ok(u64::from_le_bytes(*bytes))
}

/// Whether the store behind `url` issues fences.
fn issues_fences(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default();
    let entry = registry::SCHEMES.iter().find(|entry| entry.names.contains(&scheme));
    entry.is_some_and(|entry| matches!((entry.capabilities)().fence, FenceSource::Issued(_)))
}

//! What the client promises on top of any store, shown on the memory store. What each store promises is shown by
//! the conformance suite.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up has failed

mod barriers;
mod blocking;
mod cleaning;
mod fenced_by;
mod guards;
mod ledger;
mod members;
mod observed;
mod outages;
mod readme;
mod reentrant;
mod renewal;
mod several;
mod workers;

use std::{path::PathBuf, sync::Arc};

use fencepost::{Acquired, Attempt, Correctness, Lease, Locks, clock::ManualClock};

/// A client of the space `name`, as another process would open it.
async fn open(name: &str) -> Locks<Correctness> {
    Locks::open(&format!("memory:{name}")).await.unwrap().fenced().unwrap()
}

/// The same on a clock that only the test moves.
async fn open_on(name: &str, clock: &ManualClock) -> Locks<Correctness> {
    let url = format!("memory:{name}");
    Locks::builder(&url).clock(Arc::new(clock.clone())).open().await.unwrap().fenced().unwrap()
}

fn held(attempt: Attempt<Lease<Correctness>>) -> Lease<Correctness> {
    let Acquired(lease) = attempt else { panic!("the lock is free, yet it was {attempt:?}") };
    lease
}

/// Beside the folder that tests lie in; cargo builds the examples along with a package's tests.
fn example(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let example = tests.ancestors().nth(2).unwrap().join("examples").join(name);
    assert!(example.exists(), "built by `cargo test -p fencepost` or `cargo build -p fencepost --example {name}`");
    example
}

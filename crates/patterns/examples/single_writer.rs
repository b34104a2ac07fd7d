//! One writer in place of a lock for each change: a log that is appended to on condition of its length, and an actor that owns its
//! account.
//!
//! `cargo run -p fencepost-patterns --example single_writer`
//!
//! **The log** is on any store that keeps cells. An append says how many events it has read; of two that have read as many, one is
//! appended and the other is told, reads what came, and decides anew. Nobody holds anything.
//!
//! **The actor** takes the lease of its account once, answers as many orders as come, and writes with the lease's fence. A second one
//! that takes over has a newer fence, and the first one's next write is refused: it ends by that, and not by a guess.

use std::time::Duration;

use fencepost::{Acquired, Correctness, Edit, Lease, LockName, Locks, Update};
use fencepost_patterns::fenced::{FencedFile, Refused};
use tokio::sync::{mpsc, oneshot};

type Failed = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file:{}/locks", directory.path().display())).await?.fenced()?;
    log_of_events(&locks).await?;
    account_with_an_owner(&locks, FencedFile::at(directory.path().join("alice"))).await
}

/// Events of one thing, each in a cell of its own number, written if there is none.
struct Log<'a> {
    locks: &'a Locks<Correctness>,
    of: &'a str,
}

/// What became of an append.
#[derive(Debug, PartialEq)]
enum Append {
    Done {
        length: u64,
    },
    /// Others have appended since the log was read.
    Conflict,
}

impl Log<'_> {
    async fn append(&self, expected_length: u64, event: &str) -> Result<Append, fencepost::Error> {
        let cell = self.locks.cell::<String>(format!("{}/{expected_length}", self.of))?;
        let written = cell.update(|there| match there {
            Some(_) => Edit::Leave,
            None => Edit::Write(event.to_owned()),
        });
        Ok(match written.await? {
            Update::Written { .. } => Append::Done { length: expected_length + 1 },
            _ => Append::Conflict,
        })
    }

    async fn read(&self) -> Result<Vec<String>, fencepost::Error> {
        let mut events = Vec::new();
        while let Some(event) = self.locks.cell(format!("{}/{}", self.of, events.len()))?.read().await? {
            events.push(event);
        }
        Ok(events)
    }
}

/// Eight sellers, five seats: each decides on what it has read, and reads again when others were faster.
async fn log_of_events(locks: &Locks<Correctness>) -> Result<(), Failed> {
    let mut sellers = tokio::task::JoinSet::new();
    for seller in 0..8 {
        let locks = locks.clone();
        sellers.spawn(async move {
            let log = Log { locks: &locks, of: "train 7" };
            let mut conflicts = 0;
            loop {
                let events = log.read().await?;
                if events.len() == 5 {
                    return Ok::<_, fencepost::Error>((false, conflicts));
                }
                match log.append(events.len() as u64, &format!("seat sold by {seller}")).await? {
                    Append::Done { .. } => return Ok((true, conflicts)),
                    Append::Conflict => conflicts += 1,
                }
            }
        });
    }
    let (mut sold, mut conflicts) = (0, 0);
    while let Some(ended) = sellers.join_next().await {
        let (sale, lost) = ended??;
        sold += u32::from(sale);
        conflicts += lost;
    }
    let events = Log { locks, of: "train 7" }.read().await?;
    println!("log: {sold} of 8 sold a seat, {} are in the log, after {conflicts} conflicts", events.len());
    if sold != 5 || events.len() != 5 {
        return Err("a seat was sold twice, or lost".into());
    }
    Ok(())
}

/// An order to the account's owner: an amount, and where to answer what is there then.
type Order = (i64, oneshot::Sender<Result<i64, String>>);

/// Owns the account for as long as its lease lasts and nobody newer has written.
async fn own(lease: Lease<Correctness>, account: FencedFile, mut orders: mpsc::Receiver<Order>) -> Result<(), Failed> {
    let fence = lease.fence();
    // First the fence, then the balance: from here on it is in this task alone, and no order reads the file again.
    let mut balance = account.advance(fence)?.map_or(Ok(0), |text| String::from_utf8_lossy(&text).parse::<i64>())?;
    while let Some((amount, answer)) = orders.recv().await {
        let outcome = match balance + amount {
            ..0 => Err(format!("there are only {balance}")),
            after => match account.replace(fence, after.to_string().as_bytes()) {
                Ok(()) => {
                    balance = after;
                    Ok(balance)
                }
                Err(refused @ Refused::Stale { .. }) => {
                    // Nobody misses the answer of somebody who is gone.
                    let _ = answer.send(Err(refused.to_string()));
                    return Err(refused.into());
                }
                Err(other) => return Err(other.into()),
            },
        };
        let _ = answer.send(outcome);
    }
    Ok(())
}

async fn account_with_an_owner(locks: &Locks<Correctness>, account: FencedFile) -> Result<(), Failed> {
    let (first, orders) = mpsc::channel(16);
    let first_owner = tokio::spawn(own(take(locks).await?, account.clone(), orders));
    println!("account: {:?}, {:?}", order(&first, 100).await?, order(&first, -30).await?);
    println!("account: taking 200 is refused: {:?}", order(&first, -200).await?);

    locks.store().force(&LockName::new("account/alice")?, None).await?; // as if the first one were cut off
    let (second, orders) = mpsc::channel(16);
    let second_owner = tokio::spawn(own(take(locks).await?, account, orders));
    let after = order(&second, -50).await?;
    println!("account: a second owner goes on from there: {after:?}");
    println!("account: the first one is refused: {:?}", order(&first, 1_000).await?);
    drop((first, second));
    second_owner.await??;
    match (first_owner.await?, after) {
        (Err(_), Ok(20)) => Ok(()),
        other => Err(format!("two owners: {other:?}").into()),
    }
}

async fn order(owner: &mpsc::Sender<Order>, amount: i64) -> Result<Result<i64, String>, Failed> {
    let (answer, answered) = oneshot::channel();
    owner.send((amount, answer)).await?;
    Ok(answered.await?)
}

async fn take(locks: &Locks<Correctness>) -> Result<Lease<Correctness>, Failed> {
    match locks.lock("account/alice").wait(Duration::from_secs(5)).acquire().await? {
        Acquired(lease) => Ok(lease),
        other => Err(format!("{other:?}").into()),
    }
}

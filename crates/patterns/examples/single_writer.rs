//! One writer in place of a lock for each change: a log that is appended to on condition of its length, and an actor that owns its
//! account.
//!
//! `cargo run -p fencepost-patterns --example single_writer`
//!
//! **The log** is on any store that keeps cells. An append says how many events it has read; of two that have read as many, one is
//! appended and the other is told, reads what came, and decides anew. Nobody holds anything.
//!
//! | what happens | what comes of it |
//! |---|---|
//! | others append in between | a conflict: the decision is made again, on what is there by then |
//! | the writer dies | its event is in the log or not, as a whole; nobody waits for it |
//! | the answer to an append is lost | an error: read the log to see whether it is there |
//! | someone decides on an old reading and appends all the same | nothing can tell: the decision belongs between the reading and the append |
//!
//! **The actor** takes the lease of its account once, answers as many orders as come, and writes with the lease's fence. A second one
//! that takes over has a newer fence, and the first one's next write is refused: it ends by that, and not by a guess.
//!
//! | what happens | what comes of it |
//! |---|---|
//! | the owner dies | the next one takes the lease, and goes on from what was answered |
//! | the owner is paused, or cut off, while another takes over | its next write is refused, and that order is answered so |
//! | the owner dies between its write and its answer | the order was carried out, and whoever sent it does not know |

use std::time::Duration;

use fencepost::{Acquired, Correctness, Edit, Lease, LockName, Locks, Update, purpose::Purpose};
use fencepost_patterns::fenced::{FencedFile, Refused};
use tokio::sync::{mpsc, oneshot};

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The lock of the account.
pub(crate) const ACCOUNT: &str = "account/alice";

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file:{}/locks", directory.path().display())).await?.fenced()?;
    log_of_events(&locks).await?;
    account_with_an_owner(&locks, FencedFile::at(directory.path().join("alice"))).await
}

/// Events of one thing, each in a cell of its own number, written if there is none.
pub(crate) struct Log<'a, P> {
    locks: &'a Locks<P>,
    of: &'a str,
    /// Those that were read so far.
    events: Vec<String>,
}

/// What became of an append.
#[derive(Debug, PartialEq)]
enum Append {
    Done,
    /// Others have appended since the log was read.
    Conflict,
}

/// What became of a decision.
#[derive(Debug, PartialEq)]
pub(crate) struct Decided {
    /// Whether an event was appended.
    pub(crate) appended: bool,
    /// How often others were faster.
    pub(crate) conflicts: u32,
}

impl<'a, P: Purpose> Log<'a, P> {
    pub(crate) fn of(of: &'a str, locks: &'a Locks<P>) -> Self {
        Self { locks, of, events: Vec::new() }
    }

    /// All events, of which only those are read that came since.
    pub(crate) async fn read(&mut self) -> Result<&[String], fencepost::Error> {
        while let Some(event) = self.locks.cell(format!("{}/{}", self.of, self.events.len()))?.read().await? {
            self.events.push(event);
        }
        Ok(&self.events)
    }

    /// Appends an event to what was read, if nothing else was appended since.
    async fn append(&mut self, event: &str) -> Result<Append, fencepost::Error> {
        let cell = self.locks.cell::<String>(format!("{}/{}", self.of, self.events.len()))?;
        let written = cell.update(|there| match there {
            Some(_) => Edit::Leave,
            None => Edit::Write(event.to_owned()),
        });
        match written.await? {
            Update::Written { .. } => {
                self.events.push(event.to_owned());
                Ok(Append::Done)
            }
            _ => Ok(Append::Conflict),
        }
    }

    /// Appends what `decide` makes of the events, which is asked again whenever others were faster.
    pub(crate) async fn decide(
        &mut self,
        mut decide: impl FnMut(&[String]) -> Option<String>,
    ) -> Result<Decided, fencepost::Error> {
        let mut conflicts = 0;
        loop {
            self.read().await?;
            let Some(event) = decide(&self.events) else { return Ok(Decided { appended: false, conflicts }) };
            match self.append(&event).await? {
                Append::Done => return Ok(Decided { appended: true, conflicts }),
                Append::Conflict => conflicts += 1,
            }
        }
    }
}

/// Eight sellers, five seats: each decides on what it has read, and reads again when others were faster.
async fn log_of_events(locks: &Locks<Correctness>) -> Result<(), Failed> {
    let mut sellers = tokio::task::JoinSet::new();
    for seller in 0..8 {
        let locks = locks.clone();
        sellers.spawn(async move {
            let mut log = Log::of("train 7", &locks);
            log.decide(|sold| (sold.len() < 5).then(|| format!("seat sold by {seller}"))).await
        });
    }
    let (mut sold, mut conflicts) = (0, 0);
    while let Some(ended) = sellers.join_next().await {
        let decided = ended??;
        sold += u32::from(decided.appended);
        conflicts += decided.conflicts;
    }
    let events = Log::of("train 7", locks).read().await?.len();
    println!("log: {sold} of 8 sold a seat, {events} are in the log, after {conflicts} conflicts");
    if sold != 5 || events != 5 {
        return Err("a seat was sold twice, or lost".into());
    }
    Ok(())
}

/// An order to the account's owner: an amount, and where to answer what is there then.
pub(crate) type Order = (i64, oneshot::Sender<Result<i64, String>>);

/// Owns the account for as long as its lease lasts and nobody newer has written.
pub(crate) async fn own(
    lease: Lease<Correctness>,
    account: FencedFile,
    mut orders: mpsc::Receiver<Order>,
) -> Result<(), Failed> {
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

    locks.store().force(&LockName::new(ACCOUNT)?, None).await?; // as if the first one were cut off
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

/// Sends an order, and answers what its owner said.
pub(crate) async fn order(owner: &mpsc::Sender<Order>, amount: i64) -> Result<Result<i64, String>, Failed> {
    let (answer, answered) = oneshot::channel();
    owner.send((amount, answer)).await?;
    Ok(answered.await?)
}

/// Takes the account's lease.
pub(crate) async fn take(locks: &Locks<Correctness>) -> Result<Lease<Correctness>, Failed> {
    match locks.lock(ACCOUNT).wait(Duration::from_secs(60)).acquire().await? {
        Acquired(lease) => Ok(lease),
        other => Err(format!("{other:?}").into()),
    }
}

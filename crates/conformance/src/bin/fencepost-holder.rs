//! Takes, holds and reports, as a process that tests pause and kill. See `fencepost_conformance::holder`.

use std::{
    collections::HashMap,
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fencepost::{
    Acquired, Attempt, Efficiency, Error, ErrorKind, Leadership, Lease, Locks, Namespace,
    claim::{LossReason, Mode},
    hold::Hold,
    store::BoxFuture,
};
use fencepost_conformance::{
    crowd,
    holder::{Order, Report},
    ledger::{self, Ledger},
    repeats,
};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::Notify,
};

/// What it holds, shared between the task that waits for a loss and the one that looks and gives back.
type Held = Arc<Mutex<HashMap<String, Entry>>>;

struct Entry {
    lease: Arc<dyn Guard>,
    give_back: Arc<Notify>,
}

/// A lease, however it holds, or what rests on one.
trait Guard: Send + Sync {
    fn check(&self) -> Result<(), Error>;
    fn lost(&self) -> BoxFuture<'_, LossReason>;
}

impl<H: Hold> Guard for Lease<Efficiency, H> {
    fn check(&self) -> Result<(), Error> {
        self.check()
    }

    fn lost(&self) -> BoxFuture<'_, LossReason> {
        Box::pin(self.lost())
    }
}

impl Guard for Leadership<Efficiency> {
    fn check(&self) -> Result<(), Error> {
        self.lease().check()
    }

    fn lost(&self) -> BoxFuture<'_, LossReason> {
        Box::pin(self.lost())
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(namespace)) = (arguments.next(), arguments.next()) else {
        return Err("usage: fencepost-holder URL NAMESPACE".into());
    };
    let locks = Locks::builder(&url).namespace(Namespace::new(namespace)?).open().await?;
    let held = Held::default();
    say(&Report::Ready);
    let mut orders = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = orders.next_line().await? {
        let order = serde_json::from_str(&line)?;
        // A check is a synchronous look, and must not wait behind anything.
        if let Order::Check { name } = order {
            check(&held, name);
        } else {
            tokio::spawn(obey(locks.clone(), held.clone(), order));
        }
    }
    Ok(())
}

async fn obey(locks: Locks, held: Held, order: Order) {
    if let Err(error) = try_to_obey(locks, held, order).await {
        say(&Report::Failed { message: error.to_string() });
    }
}

async fn try_to_obey(locks: Locks, held: Held, order: Order) -> Result<(), Error> {
    match order {
        Order::Acquire { name, ttl_ms, mode } => {
            let (locks, ttl) = (locks.for_efficiency(), Duration::from_millis(ttl_ms));
            match mode {
                Mode::Exclusive => hold(locks.lock(&name).ttl(ttl).acquire().await?, held, name).await,
                Mode::Shared => hold(locks.read_write(&name).read().ttl(ttl).acquire().await?, held, name).await,
                Mode::Permits { count, of } => {
                    hold(locks.semaphore(&name, of).permits(count).ttl(ttl).acquire().await?, held, name).await;
                }
            }
        }
        Order::Lead { name, ttl_ms } => {
            let election = locks.for_efficiency().election(&name)?;
            let campaign = election.campaign(std::process::id().to_string()).ttl(Duration::from_millis(ttl_ms));
            hold(campaign.acquire().await?, held, name).await;
        }
        Order::Join { group, id, ttl_ms } => {
            let locks = locks.for_efficiency();
            let _member = locks.members(&group)?.join(&id, Duration::from_millis(ttl_ms)).await?;
            say(&Report::Joined);
            std::future::pending::<()>().await; // for as long as the process lives
        }
        Order::Check { name } => check(&held, name),
        Order::Release { name } => {
            let entry = open(&held).remove(&name);
            if let Some(Entry { lease, give_back }) = entry {
                give_back.notify_one();
                drop(lease); // given back by whoever of the two drops it last
            }
            say(&Report::Released { name });
        }
        Order::LogFences { name, count, log } => {
            ledger::log_fences(&locks.fenced()?, &name, count, &log).await;
            say(&Report::Logged);
        }
        Order::Increment { name, count, ledger } => {
            let refused = ledger::increment(&locks.fenced()?, &name, count, &Ledger::at(&ledger)).await;
            say(&Report::Incremented { refused });
        }
        Order::WorkOnce { keys, log } => {
            repeats::work(&locks, keys, &log).await?;
            say(&Report::Worked);
        }
        Order::Crowd(crowd) => say(&Report::Served(crowd::serve(&locks.for_efficiency(), &crowd).await)),
    }
    Ok(())
}

async fn hold(attempt: Attempt<impl Guard + 'static>, held: Held, name: String) {
    let Acquired(lease) = attempt else { return };
    let (lease, give_back): (Arc<dyn Guard>, _) = (Arc::new(lease), Arc::new(Notify::new()));
    open(&held).insert(name.clone(), Entry { lease: lease.clone(), give_back: give_back.clone() });
    say(&Report::Acquired { name: name.clone() });
    tokio::select! {
        reason = lease.lost() => say(&Report::Lost { name, reason: format!("{reason:?}") }),
        () = give_back.notified() => {}
    }
}

fn check(held: &Held, name: String) {
    let lost = match open(held).get(&name).map(|entry| entry.lease.check()) {
        Some(Ok(())) => None,
        Some(Err(error)) => match error.kind() {
            ErrorKind::Lost(reason) => Some(format!("{reason:?}")),
            kind => Some(format!("{kind:?}")),
        },
        None => Some("never held".to_owned()),
    };
    say(&Report::Checked { name, lost });
}

fn open(held: &Held) -> MutexGuard<'_, HashMap<String, Entry>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

fn say(report: &Report) {
    let mut line = serde_json::to_vec(report).expect("a report as JSON");
    line.push(b'\n');
    // Nobody to report to means that the test is over.
    if std::io::stdout().lock().write_all(&line).is_err() {
        std::process::exit(0);
    }
}

//! What do the stores cost, beside each other on one machine: in time, and in time without a lock while a leader dies?

use std::time::Duration;

use fencepost::{Attempt, Efficiency, Lease, Locks};
use fencepost_bench::{Latency, Work};
use fencepost_core::clock::{BootClock, Clock};

use super::{
    Measured, cores, median, millis,
    plot::{Plot, Span},
};
use crate::{
    scenario::Stop,
    stage::{PATIENCE, blocking, pause},
    stand::{self, Ground, ServerFault},
    subject::StoreKind,
};

/// How long each store is measured for its times.
const MEASURED_FOR: Duration = Duration::from_secs(6);
/// How long the locks go back and forth before the leader dies.
const CALM: Duration = Duration::from_millis(500);
/// The TTL of the lease that is held while the leader dies, and of the others.
const HELD_FOR: Duration = Duration::from_secs(10);

const NOTES: [&str; 3] = [
    "Hand-overs are with eight waiting, from sending the release to the next holder.",
    "PostgreSQL has no failover of its own: its standby is promoted in the moment in which the primary is dead. The \
     sentinels notice a crash after half a second, and etcd and ZooKeeper elect with the short timeouts that the \
     laboratory gives them. Of the five servers of the Redlock, which has no leader, one is killed.",
    "A pause of the holder does the same on every store whose leases end: the next one has the lock, and only a checked \
     fence keeps the late write out. [guarantees.md](guarantees.md#kleppmann-pause) has that for each.",
];

/// In the order of the table.
const STORES: [StoreKind; 10] = [
    StoreKind::File,
    StoreKind::Redis,
    StoreKind::Sentinel,
    StoreKind::Redlock,
    StoreKind::Postgres,
    StoreKind::PostgresSynchronous,
    StoreKind::Etcd,
    StoreKind::EtcdCluster,
    StoreKind::ZooKeeper,
    StoreKind::ZooKeeperEnsemble,
];

/// Measures. `progress` hears what comes next and which share is over.
///
/// # Errors
/// [`Stop::Missing`] names the package that has to be installed.
pub async fn measure(trials: u32, progress: &mut dyn FnMut(&str, f64)) -> Result<Measured, Stop> {
    let (mut rows, mut spans) = (Vec::new(), Vec::new());
    for (number, store) in STORES.into_iter().enumerate() {
        progress(store.title(), number as f64 / STORES.len() as f64);
        let [alone, handed] = times(store).await?;
        let mut outages = Vec::new();
        if store.has_a_leader() {
            for _ in 0..trials {
                outages.push(outage(store).await?);
            }
        }
        rows.push(row(store, alone, handed, &outages));
        spans.push(Span { label: store.title().to_owned(), low: alone.p50_us / 1e3, high: alone.p99_us / 1e3 });
    }
    progress("done", 1.0);
    Ok(Measured {
        name: "cost",
        question: "What do the stores cost beside each other?",
        command: format!("fencepost lab measure cost --trials {trials}"),
        cores: cores(),
        columns: vec![
            "store",
            "take and give back, p50",
            "p99",
            "hand-over, p50",
            "p99",
            "no lock while a leader dies, median",
            "at most",
            "a lease held meanwhile",
        ],
        rows,
        notes: NOTES.to_vec(),
        plot: Plot { title: "Take and give back: p50 and p99", least: 0.01, spans },
    })
}

fn row(store: StoreKind, alone: Latency, handed: Latency, outages: &[Outage]) -> Vec<String> {
    let gaps: Vec<f64> = outages.iter().map(|outage| outage.without.as_secs_f64() * 1e3).collect();
    let longest = gaps.iter().copied().reduce(f64::max);
    let kept = outages.iter().filter(|outage| outage.kept).count();
    let or_none = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), millis);
    let kept = if outages.is_empty() { "–".to_owned() } else { format!("kept {kept} of {}", outages.len()) };
    let times = [alone.p50_us, alone.p99_us, handed.p50_us, handed.p99_us].map(|micros| millis(micros / 1e3));
    let outages = [or_none(median(gaps)), or_none(longest), kept];
    [store.title().to_owned()].into_iter().chain(times).chain(outages).collect()
}

/// Of taking and giving back alone, and of a hand-over with eight waiting.
async fn times(store: StoreKind) -> Result<[Latency; 2], Stop> {
    let stand = blocking(move || stand::start(store, &Ground::default())).await?;
    let plan = fencepost_bench::Plan {
        total: MEASURED_FOR,
        only: vec![Work::Alone, Work::HandOver],
        waiters: vec![8],
        ..fencepost_bench::Plan::new(stand.url())
    };
    let report = fencepost_bench::run(&plan, &mut |_, _| {}).await.map_err(failed)?;
    let of = |work| {
        let outcome = report.outcomes.iter().find(|outcome| outcome.work == work);
        outcome.and_then(|outcome| outcome.latency).ok_or_else(|| Stop::Failed("nothing was measured".to_owned()))
    };
    Ok([of(Work::Alone)?, of(Work::HandOver)?])
}

/// What became of locks while a leader died.
struct Outage {
    /// The longest time from one lock that was had to the next.
    without: Duration,
    /// Whether a lease that was held outlived it.
    kept: bool,
}

/// One client takes a new lock and gives it back, again and again, until it has one after the leader was killed.
async fn outage(store: StoreKind) -> Result<Outage, Stop> {
    let stand = blocking(move || stand::start(store, &Ground::default())).await?;
    let locks = Locks::open(&stand.url()).await.map_err(failed)?.for_efficiency();
    let held = taken(&locks, "held").await?;
    let crash = tokio::spawn({
        let stand = stand.clone();
        async move {
            pause(CALM).await;
            blocking(move || stand.inflict(ServerFault::CrashMaster)).await
        }
    });
    let (mut last, mut without) = (BootClock.now(), Duration::ZERO);
    for number in 0.. {
        let over = crash.is_finished();
        // A lock that is not given back while nobody answers is given back in the background.
        let _ = taken(&locks, &format!("next/{number}")).await?.release().await;
        let now = BootClock.now();
        without = without.max(now.since(last));
        last = now;
        if over {
            break;
        }
    }
    crash.await.map_err(failed)??;
    let kept = held.check().is_ok();
    locks.close().await;
    Ok(Outage { without, kept })
}

/// Tries again for as long as the store does not answer.
async fn taken(locks: &Locks<Efficiency>, name: &str) -> Result<Lease<Efficiency>, Stop> {
    let until = BootClock.now().after(PATIENCE);
    loop {
        match locks.lock(name).ttl(HELD_FOR).wait(PATIENCE).acquire().await {
            Ok(Attempt::Acquired(lease)) => return Ok(lease),
            Ok(Attempt::Busy(_)) => return Err(Stop::Failed(format!("{name} is held by another"))),
            Err(error) if BootClock.now() > until => return Err(failed(error)),
            Err(_) => pause(Duration::from_millis(5)).await,
        }
    }
}

fn failed(error: impl std::fmt::Display) -> Stop {
    Stop::Failed(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_redlock_outlives_one_of_five() {
        let outage = outage(StoreKind::Redlock).await.expect("five servers");
        assert!(outage.kept);
        assert!(outage.without > Duration::ZERO);
    }
}

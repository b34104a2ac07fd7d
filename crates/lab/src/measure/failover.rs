//! How large is the window in which a Sentinel failover loses a lock that was answered, and how far does a counter go
//! back?
//!
//! Clients take one lock after another and note each that was answered, and the number that `INCR` answered last. The
//! master is killed under them, and the one that is promoted is asked for every lock.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fencepost_core::clock::{BootClock, Clock, Moment};
use fencepost_servers::{Reply, SentinelSet};
use redis::{Cmd, FromRedisValue, RedisResult, aio::MultiplexedConnection};
use tokio::task::JoinSet;

use super::{
    Measured, cores, median, millis,
    plot::{Plot, Span},
};
use crate::{
    scenario::Stop,
    stage::{blocking, panicked, pause},
    stand,
};

/// How long clients take locks before the master is killed, at least.
const WARM: Duration = Duration::from_millis(300);
/// The kill comes at any instant of this span after that.
const JITTER: Duration = Duration::from_millis(100);
/// One bulk value. Enough of them keep a replica's connection busy.
const BULK: usize = 1 << 20;
/// After a refusal.
const RETRY: Duration = Duration::from_millis(1);

const NOTES: [&str; 2] = [
    "The master is killed with SIGKILL at a random instant. The loss window reaches from the first answer that was lost to \
     that kill; a lock that was answered before it is on the server that was promoted. Replicas are held behind with \
     CLIENT PAUSE, and what they were sent meanwhile dies with the master's connections.",
    "WAIT 1 loses what the replica confirmed that is not promoted, which is rare as long as both are equally far: \
     [answered-by-the-other](guarantees.md#answered-by-the-other). min-replicas-to-write bounds for how long a master \
     without replicas goes on granting, not what a crash loses.",
];

/// What else goes on.
#[derive(Clone, Copy, Debug)]
struct Load {
    said: &'static str,
    clients: usize,
    bulk: bool,
    /// How far the replicas are behind.
    lag: Duration,
}

const LOADS: [Load; 5] = [
    Load { said: "1 client", clients: 1, bulk: false, lag: Duration::ZERO },
    Load { said: "50 clients", clients: 50, bulk: false, lag: Duration::ZERO },
    Load { said: "50 clients and bulk writes", clients: 50, bulk: true, lag: Duration::ZERO },
    Load { said: "1 client, replicas 10 ms behind", clients: 1, bulk: false, lag: Duration::from_millis(10) },
    Load { said: "1 client, replicas 100 ms behind", clients: 1, bulk: false, lag: Duration::from_millis(100) },
];

/// What shall keep locks from being lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    None,
    /// A lock counts when `WAIT 1` was answered by a replica.
    Wait,
    /// `min-replicas-to-write 1` and `min-replicas-max-lag 1`.
    MinReplicas,
}

impl Guard {
    const ALL: [Guard; 3] = [Guard::None, Guard::Wait, Guard::MinReplicas];

    fn said(self) -> &'static str {
        match self {
            Guard::None => "none",
            Guard::Wait => "WAIT 1",
            Guard::MinReplicas => "min-replicas-to-write 1",
        }
    }
}

/// One failover.
#[derive(Debug)]
struct Trial {
    answered: usize,
    lost: usize,
    /// From the first answer that was lost to the kill, in milliseconds.
    window: f64,
    /// By how much the counter on the new master is behind the last number that was answered.
    back: u64,
}

/// Measures. `progress` hears what comes next and which share is over.
///
/// # Errors
/// [`Stop::Missing`] names the package that has to be installed.
pub async fn measure(trials: u32, progress: &mut dyn FnMut(&str, f64)) -> Result<Measured, Stop> {
    stand::needs("redis-server", "redis-server")?;
    let conditions: Vec<_> = LOADS.iter().flat_map(|load| Guard::ALL.map(|guard| (*load, guard))).collect();
    let (mut rows, mut spans) = (Vec::new(), Vec::new());
    for (number, (load, guard)) in conditions.iter().enumerate() {
        progress(&format!("{}, {}", load.said, guard.said()), number as f64 / conditions.len() as f64);
        let mut done = Vec::new();
        for _ in 0..trials {
            done.push(trial(*load, *guard).await?);
        }
        let (row, span) = told(*load, *guard, &done);
        rows.push(row);
        spans.push(span);
    }
    progress("done", 1.0);
    Ok(Measured {
        name: "failover",
        question: "What does a Sentinel failover lose of what was answered?",
        command: format!("fencepost lab measure failover --trials {trials}"),
        cores: cores(),
        columns: vec![
            "load",
            "guard",
            "failovers that lost some",
            "answered in all",
            "lost at most",
            "loss window, median",
            "at most",
            "counter back at most",
        ],
        rows,
        notes: NOTES.to_vec(),
        plot: Plot { title: "Loss window: median and longest", least: 0.1, spans },
    })
}

fn told(load: Load, guard: Guard, done: &[Trial]) -> (Vec<String>, Span) {
    let losing = done.iter().filter(|trial| trial.lost > 0).count();
    let middle = median(done.iter().map(|trial| trial.window).collect()).unwrap_or(0.0);
    let longest = done.iter().map(|trial| trial.window).fold(0.0, f64::max);
    let row = vec![
        load.said.to_owned(),
        guard.said().to_owned(),
        format!("{losing} of {}", done.len()),
        done.iter().map(|trial| trial.answered).sum::<usize>().to_string(),
        done.iter().map(|trial| trial.lost).max().unwrap_or(0).to_string(),
        millis(middle),
        millis(longest),
        done.iter().map(|trial| trial.back).max().unwrap_or(0).to_string(),
    ];
    let label = if guard == Guard::None { load.said.to_owned() } else { format!("    {}", guard.said()) };
    (row, Span { label, low: middle, high: longest })
}

/// A lock that was answered, and when.
type Answered = (String, Moment);

async fn trial(load: Load, guard: Guard) -> Result<Trial, Stop> {
    let set = Arc::new(blocking(|| Ok(SentinelSet::start())).await?);
    let master = set.master().address();
    if guard == Guard::MinReplicas {
        for setting in [["min-replicas-to-write", "1"], ["min-replicas-max-lag", "1"]] {
            accepted(set.master().try_command(&["CONFIG", "SET", setting[0], setting[1]])?)?;
        }
    }
    let ended = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for number in 0..load.clients {
        clients.spawn(take_locks(master, number, guard, ended.clone()));
    }
    let mut bulk = JoinSet::new();
    if load.bulk {
        bulk.spawn(write_bulk(master));
    }
    pause(WARM + JITTER.mul_f64(fastrand::f64())).await;
    let killed = blocking({
        let set = set.clone();
        move || kill(&set, load.lag)
    })
    .await?;
    ended.store(true, Ordering::Relaxed);
    let (mut answered, mut counted) = (Vec::new(), 0);
    while let Some(client) = clients.join_next().await {
        let (locks, number) = client.map_err(|error| Stop::Failed(panicked(error)))?;
        answered.extend(locks);
        counted = counted.max(number);
    }
    drop(bulk);
    let promoted = blocking({
        let set = set.clone();
        move || {
            set.await_other_master(master);
            Ok(set.master().address())
        }
    })
    .await?;
    let found = missing(promoted, &answered).await;
    let (lost, number) = found.map_err(|error| Stop::Failed(error.to_string()))?;
    let window = lost.iter().map(|at| killed.since(*at)).max().unwrap_or_default();
    Ok(Trial {
        answered: answered.len(),
        lost: lost.len(),
        window: window.as_secs_f64() * 1000.0,
        back: counted.saturating_sub(number),
    })
}

/// Kills the master, whose replicas took nothing for `lag` before it. Answers when.
fn kill(set: &SentinelSet, lag: Duration) -> Result<Moment, Stop> {
    let replicas: Vec<_> = set.replicas().collect();
    if !lag.is_zero() {
        for replica in &replicas {
            accepted(replica.try_command(&["CLIENT", "PAUSE", "60000", "WRITE"])?)?;
        }
        std::thread::sleep(lag);
    }
    let killed = BootClock.now();
    set.master().kill();
    if !lag.is_zero() {
        for replica in &replicas {
            accepted(replica.try_command(&["CLIENT", "UNPAUSE"])?)?;
        }
    }
    Ok(killed)
}

/// One lock after another, and a number for each, until the server is gone.
async fn take_locks(server: SocketAddr, client: usize, guard: Guard, ended: Arc<AtomicBool>) -> (Vec<Answered>, u64) {
    let (mut answered, mut counted) = (Vec::new(), 0);
    let Ok(mut connection) = connect(server).await else { return (answered, counted) };
    for number in 0.. {
        let key = format!("lock:{client}:{number}");
        let mut set = redis::cmd("SET");
        set.arg(&key).arg("owner").arg("NX").arg("PX").arg(600_000);
        match ask::<()>(&mut connection, &set, guard).await {
            Ok(Some(())) => answered.push((key, BootClock.now())),
            Ok(None) => {}
            // Without replicas that follow, the server takes no writes for a while.
            Err(error) if !error.is_connection_dropped() && !ended.load(Ordering::Relaxed) => pause(RETRY).await,
            Err(_) => break,
        }
        if let Ok(Some(next)) = ask::<u64>(&mut connection, redis::cmd("INCR").arg("fence"), guard).await {
            counted = next;
        }
    }
    (answered, counted)
}

/// The answer, if it counts.
async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    guard: Guard,
) -> RedisResult<Option<T>> {
    let answer = command.query_async(connection).await?;
    if guard != Guard::Wait {
        return Ok(Some(answer));
    }
    let replicas: u64 = redis::cmd("WAIT").arg(1).arg(100).query_async(connection).await?;
    Ok((replicas >= 1).then_some(answer))
}

/// Fills the lines to the replicas until the server is gone.
async fn write_bulk(server: SocketAddr) {
    let Ok(mut connection) = connect(server).await else { return };
    let value = vec![b'x'; BULK];
    let mut set = redis::cmd("SET");
    set.arg("bulk").arg(&value);
    while set.exec_async(&mut connection).await.is_ok() {}
}

/// When those were answered that a server does not know, and where its counter stands.
async fn missing(server: SocketAddr, answered: &[Answered]) -> RedisResult<(Vec<Moment>, u64)> {
    let mut connection = connect(server).await?;
    let mut lost = Vec::new();
    for some in answered.chunks(500) {
        let mut all = redis::pipe();
        for (key, _) in some {
            all.exists(key);
        }
        let there: Vec<bool> = all.query_async(&mut connection).await?;
        lost.extend(some.iter().zip(there).filter(|(_, there)| !there).map(|((_, at), _)| *at));
    }
    let counted: Option<u64> = redis::cmd("GET").arg("fence").query_async(&mut connection).await?;
    Ok((lost, counted.unwrap_or(0)))
}

async fn connect(server: SocketAddr) -> RedisResult<MultiplexedConnection> {
    redis::Client::open(format!("redis://{server}"))?.get_multiplexed_async_connection().await
}

fn accepted(reply: Reply) -> Result<(), Stop> {
    match reply {
        Reply::Refused(why) => Err(Stop::NotInstalled(why)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_replicas_have_not_heard_of_is_lost_and_hardly_what_one_confirmed() {
        let behind = LOADS[4];
        let lost = trial(behind, Guard::None).await.expect("a failover");
        assert!(lost.lost > 0 && lost.back > 0, "{lost:?}");
        assert!(lost.window >= 50.0, "most of what was answered in the last 100 ms: {lost:?}");
        // Between the two replicas that are held back one after the other, one may confirm what the other has not.
        let kept = trial(behind, Guard::Wait).await.expect("a failover");
        assert!(kept.answered > 10 && kept.lost <= 3, "{kept:?}");
    }
}

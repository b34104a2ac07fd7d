//! Many at one name: readers that all hold it, and those who wait for one of a hundred permits.

use std::time::Duration;

use fencepost::{
    Efficiency, Error, Lease, LockName, Locks,
    clock::{self, BootClock, Moment},
    hold::{Counted, Shared},
};
use tokio::task::JoinSet;

use super::{broken, granted};
use crate::{
    ground::Ground,
    report::{Figure, Outcome},
    samples::{median, now},
};

const PERMITS: u32 = 100;
/// The longest time until all waiters have their places.
const QUEUED_WITHIN: Duration = Duration::from_secs(60);
/// Between two looks at the queue: listing a thousand keeps the server from giving places.
const PAUSE: Duration = Duration::from_millis(200);

pub(super) async fn measure(ground: &Ground, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let locks = ground.client().await?;
    let store = locks.capabilities().clone();
    let until = now().after(span);
    let (mut came, mut left, mut handed, mut commands) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    loop {
        if store.shared {
            let (each_came, each_left) = readers(ground, &locks, outcome.size).await?;
            came.push(each_came);
            left.push(each_left);
        }
        if store.permits {
            let before = ground.commands().await?;
            handed.push(waiters(ground, outcome.size).await?);
            if let (Some(after), Some(before)) = (ground.commands().await?, before) {
                commands.push(after.since(before).all as f64 / outcome.size as f64);
            }
        }
        if now() >= until || !(store.shared || store.permits) {
            break;
        }
    }
    let mut figure = |name: String, values: Vec<f64>, unit| {
        if !values.is_empty() {
            outcome.figures.push(Figure::new(name, median(values), unit));
        }
    };
    figure("a reader comes in beside the others, each".into(), came, "µs");
    figure("a reader leaves, each".into(), left, "µs");
    figure(format!("a permit of {PERMITS} goes to the next who waits, each"), handed, "µs");
    figure(format!("{} for each of them, listings included", ground.counted()[1]), commands, "");
    if outcome.figures.is_empty() {
        outcome.notes.push("the store has neither shared locks nor permits".into());
    }
    locks.close().await;
    Ok(outcome)
}

/// How long it takes each to come, all at once, and to leave again.
async fn readers(ground: &Ground, locks: &Locks<Efficiency>, count: usize) -> Result<(f64, f64), Error> {
    let shared = locks.read_write(ground.name());
    let began = now();
    let mut coming = JoinSet::new();
    for _ in 0..count {
        coming.spawn(shared.read().acquire());
    }
    let mut held: Vec<Lease<Efficiency, Shared>> = Vec::new();
    while let Some(came) = coming.join_next().await {
        held.push(granted(came.map_err(|error| broken(error.to_string()))??)?);
    }
    let came = each(began, count);
    let began = now();
    let mut leaving = JoinSet::new();
    for mut lease in held {
        leaving.spawn(async move { lease.release().await });
    }
    while let Some(left) = leaving.join_next().await {
        left.map_err(|error| broken(error.to_string()))??;
    }
    Ok((came, each(began, count)))
}

/// How long it takes for each of those who wait to have a permit and give it back, a hundred at a time.
async fn waiters(ground: &Ground, count: usize) -> Result<f64, Error> {
    let (holders, waiters) = (ground.client().await?, ground.client().await?);
    let name = ground.name();
    let mut held: Vec<Lease<Efficiency, Counted>> = Vec::new();
    for _ in 0..PERMITS {
        held.push(granted(holders.semaphore(&name, PERMITS).permits(1).acquire().await?)?);
    }
    let mut waiting = JoinSet::new();
    for _ in 0..count {
        let request = waiters.semaphore(&name, PERMITS).permits(1);
        waiting.spawn(async move {
            let mut lease = granted(request.acquire().await?)?;
            lease.release().await
        });
    }
    queued(&waiters, &LockName::new(&name)?, count).await?;
    let began = now();
    for mut lease in held {
        lease.release().await?;
    }
    while let Some(served) = waiting.join_next().await {
        served.map_err(|error| broken(error.to_string()))??;
    }
    let took = each(began, count);
    holders.close().await;
    waiters.close().await;
    Ok(took)
}

async fn queued(locks: &Locks<Efficiency>, name: &LockName, count: usize) -> Result<(), Error> {
    let until = now().after(QUEUED_WITHIN);
    while now() < until {
        let states = locks.store().inspect(Some(name)).await?;
        if states.first().is_some_and(|state| state.waiters.len() >= count) {
            return Ok(());
        }
        clock::sleep(&BootClock, PAUSE).await;
    }
    Err(broken(format!("{count} waiters did not get their places within {QUEUED_WITHIN:?}")))
}

fn each(began: Moment, count: usize) -> f64 {
    now().since(began).as_secs_f64() * 1e6 / count as f64
}

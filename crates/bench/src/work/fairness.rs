//! Who is passed over: many who want one lock all the time, each counting those who came later and had it first.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fencepost::{
    Error, LockName, Owner, Ttl,
    claim::{Claim, Claimant, Claimed, Holding, Mode, Patience, Want},
    clock::Moment,
    error::Retry,
    store::Store,
};
use tokio::task::JoinSet;

use super::broken;
use crate::{
    ground::Ground,
    report::{Figure, Outcome},
    samples::now,
};

/// Clients, each with connections of its own, among whom the tasks are divided.
const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_secs(60);

pub(super) async fn measure(ground: &Ground, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(ground.store().await?);
    }
    let name = LockName::new(ground.name())?;
    let passed = passed_over(&clients, &name, outcome.size, now().after(span)).await?;
    for client in &clients {
        client.close().await;
    }
    outcome.figures = vec![
        Figure::new("grants", passed.grants as f64, ""),
        Figure::new("of them had waited", passed.waited as f64, ""),
        Figure::new("times that one who waited was passed by one who came later", passed.times as f64, ""),
        Figure::new("the most for one who waited", passed.most as f64, ""),
    ];
    outcome.notes.push("later is who asked after the other had been told that it has a place in the queue".into());
    Ok(outcome)
}

/// How often those who waited for a lock were passed over. See [`passed_over`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PassedOver {
    /// Grants altogether.
    pub grants: u64,
    /// Those of them that had waited.
    pub waited: u64,
    /// How often one that came later was granted first.
    pub times: u64,
    /// The most for one that waited.
    pub most: u64,
}

/// Lets `tasks`, divided among `clients`, take and give back one lock until then, and counts. Whoever asks
/// after another was told that it waits, and is granted before it, has passed it.
///
/// # Errors
/// The store's own, unless a retry helps.
///
/// # Cancel safety
/// Dropped, it leaves claims that end with their TTL of a minute.
pub async fn passed_over(
    clients: &[Arc<dyn Store>],
    name: &LockName,
    tasks: usize,
    until: Moment,
) -> Result<PassedOver, Error> {
    let ticks = Arc::new(AtomicU64::new(0));
    let mut crowd = JoinSet::new();
    for task in 0..tasks {
        let (store, name, ticks) = (clients[task % clients.len()].clone(), name.clone(), ticks.clone());
        crowd.spawn(async move {
            let mut turns = Vec::new();
            while now() < until {
                turns.push(one(&*store, &name, &ticks).await?);
            }
            Ok::<_, Error>(turns)
        });
    }
    let mut turns = Vec::new();
    while let Some(done) = crowd.join_next().await {
        turns.extend(done.map_err(|error| broken(error.to_string()))??);
    }
    Ok(count(turns))
}

/// One grant, in ticks of a counter that all tasks share.
#[derive(Clone, Copy)]
struct Turn {
    asked: u64,
    /// When it was told that it has a place in the queue.
    queued: Option<u64>,
    granted: u64,
}

async fn one(store: &dyn Store, name: &LockName, ticks: &AtomicU64) -> Result<Turn, Error> {
    let tick = || ticks.fetch_add(1, Ordering::SeqCst);
    let want = Want { name: name.clone(), mode: Mode::Exclusive };
    let holding = Holding::one(want, Owner::random()?);
    let claim = Claim { holding, ttl: Ttl::new(TTL)?, claimant: Arc::new(Claimant::here()) };
    let asked = tick();
    let mut queued = None;
    while let Claimed::Queued(_) | Claimed::Busy(_) = store.claim(&claim, Patience::Queue).await? {
        queued = queued.or_else(|| Some(tick()));
        match store.turn(&claim).await {
            Ok(_) => break,
            Err(error) if error.retry() == Retry::Later => {} // it keeps its place, where the store still has it
            Err(error) => return Err(error),
        }
    }
    let granted = tick();
    // Held for a moment also where nothing waits for an answer, so that the others come meanwhile.
    tokio::task::yield_now().await;
    store.release(&claim.holding).await?;
    Ok(Turn { asked, queued, granted })
}

/// One lock is granted only after it was given back, so the ticks of its grants are in their true order.
fn count(mut turns: Vec<Turn>) -> PassedOver {
    turns.sort_unstable_by_key(|turn| turn.granted);
    let mut passed = PassedOver { grants: turns.len() as u64, ..PassedOver::default() };
    for (place, turn) in turns.iter().enumerate() {
        let Some(queued) = turn.queued else { continue };
        let since = turns[..place].iter().rev().take_while(|other| other.granted > queued);
        let times = since.filter(|other| other.asked > queued).count() as u64;
        passed.waited += 1;
        passed.times += times;
        passed.most = passed.most.max(times);
    }
    passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_asked_after_the_place_was_told_has_passed() {
        let turn = |asked, queued, granted| Turn { asked, queued, granted };
        let turns = vec![
            turn(0, None, 1),
            turn(2, Some(4), 20),   // waits from 4 on
            turn(3, Some(5), 9),    // asked before that: no order between the two
            turn(6, None, 7),       // passes it
            turn(10, Some(11), 12), // passes it, too
            turn(21, None, 22),
        ];
        assert_eq!(count(turns), PassedOver { grants: 6, waited: 3, times: 3, most: 2 });
    }
}

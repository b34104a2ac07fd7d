//! From the release to the waiter that holds, with many waiting for one lock.

use std::time::Duration;

use fencepost::{
    Attempt, Efficiency, Error, Lease, LockName, Locks,
    clock::{self, BootClock, Moment},
};
use tokio::{sync::mpsc, task::JoinSet};

use super::{broken, granted};
use crate::{
    floor::Commands,
    ground::Ground,
    report::{Figure, Outcome},
    samples::{Samples, median, now},
};

/// The longest time until all waiters of a batch have their places.
const QUEUED_WITHIN: Duration = Duration::from_secs(20);
/// Between two looks at the queue: listing a thousand keeps the server from giving places.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// A server that did no more than [`A_FEW`] things for this long has nothing left to do but heartbeats.
const SETTLED_FOR: Duration = Duration::from_millis(50);
const A_FEW: u64 = 5;
/// The most hand-overs in one batch: with 1,000 waiting there are never fewer than 900.
const MOST: usize = 100;
/// How long the floor has its turn after each batch.
const FLOOR_TURN: Duration = Duration::from_millis(20);

pub(super) async fn measure(ground: &Ground, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let until = now().after(span);
    let holder = ground.client().await?;
    let message = ground.floor.as_ref().map(|floor| floor.message());
    let name = ground.name();
    let mut ours = Samples::default();
    let mut ratios = Vec::new();
    let mut theirs = Samples::default();
    let mut commands = Commands::default();
    loop {
        let batch = Batch::begin(ground, &holder, outcome.size).await?;
        let handed = batch.hand_over(ground).await?;
        if let Some(done) = handed.commands {
            commands = commands.and(done);
        }
        if let Some(message) = &message {
            let mut bare = Samples::default();
            message.cycle.run(&name, now().after(FLOOR_TURN), &mut bare).await?;
            ratios.push(handed.samples.p50_us() / bare.p50_us());
            theirs.add(&bare);
        }
        ours.add(&handed.samples);
        if now() >= until {
            break;
        }
    }
    outcome.latency = Some(ours.latency());
    if let Some(message) = message {
        outcome.against.push(message.against(&theirs, None, median(ratios), message.time_goal));
    }
    match commands.all {
        0 => outcome.notes.push(ground.uncounted().into()),
        all => {
            let each = |count: u64| count as f64 / ours.count() as f64;
            let [sent, counted] = ground.counted();
            outcome.figures.push(Figure::new(format!("{sent} per hand-over"), each(commands.scripts), ""));
            outcome.figures.push(Figure::new(format!("{counted} per hand-over"), each(all), ""));
        }
    }
    outcome.notes.push("counted from sending the release, which is applied half a round trip later".into());
    holder.close().await;
    Ok(outcome)
}

/// Waits until the server has nothing to do: whoever has a place is not yet one who waits, and what it still asks for would
/// count as the hand-overs' own.
async fn settled(ground: &Ground) -> Result<(), Error> {
    let until = now().after(QUEUED_WITHIN);
    let mut seen = ground.commands().await?;
    while now() < until {
        clock::sleep(&BootClock, SETTLED_FOR).await;
        let look = ground.commands().await?;
        let done = look.zip(seen).map(|(look, seen)| look.since(seen).scripts);
        if done.is_none_or(|done| done <= A_FEW) {
            break;
        }
        seen = look;
    }
    Ok(())
}

/// When a waiter was answered, and what.
type Answered = (Moment, Result<Attempt<Lease<Efficiency>>, Error>);

/// One holder and those who wait for it.
struct Batch {
    lease: Lease<Efficiency>,
    waiters: Locks<Efficiency>,
    tasks: JoinSet<()>,
    grants: mpsc::UnboundedReceiver<Answered>,
}

struct Handed {
    samples: Samples,
    commands: Option<Commands>,
}

impl Batch {
    async fn begin(ground: &Ground, holder: &Locks<Efficiency>, waiting: usize) -> Result<Self, Error> {
        let name = ground.name();
        let lease = granted(holder.lock(&name).acquire().await?)?;
        // Clients of their own, so that a hand-over has to leave this one.
        let waiters = ground.client().await?;
        let (sender, grants) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for _ in 0..waiting {
            let (request, sender) = (waiters.lock(&name), sender.clone());
            tasks.spawn(async move {
                let attempt = request.acquire().await;
                // The other end closes when enough was measured; the lease goes back by itself then.
                let _ = sender.send((now(), attempt));
            });
        }
        let batch = Self { lease, waiters, tasks, grants };
        batch.queued(&LockName::new(&name)?, waiting).await?;
        settled(ground).await?;
        Ok(batch)
    }

    async fn queued(&self, name: &LockName, waiting: usize) -> Result<(), Error> {
        let until = now().after(QUEUED_WITHIN);
        let mut pause = Duration::from_millis(2);
        while now() < until {
            let states = self.waiters.store().inspect(Some(name)).await?;
            if states.first().is_some_and(|state| state.waiters.len() >= waiting) {
                return Ok(());
            }
            clock::sleep(&BootClock, pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        Err(broken(format!("{waiting} waiters did not get their places within {QUEUED_WITHIN:?}")))
    }

    /// Half of them get it, so that the number of those who wait means something.
    async fn hand_over(mut self, ground: &Ground) -> Result<Handed, Error> {
        let count = (self.tasks.len() / 2).clamp(1, MOST);
        let mut samples = Samples::default();
        let before = ground.commands().await?;
        for _ in 0..count {
            let sent = now();
            self.lease.release().await?;
            let Some((at, attempt)) = self.grants.recv().await else {
                return Err(broken("a waiter ended without an answer".into()));
            };
            samples.record(at.since(sent));
            self.lease = granted(attempt?)?;
        }
        let after = ground.commands().await?;
        let commands = after.zip(before).map(|(after, before)| after.since(before));
        self.tasks.shutdown().await;
        drop(self.grants);
        self.lease.release().await?;
        self.waiters.close().await;
        Ok(Handed { samples, commands })
    }
}

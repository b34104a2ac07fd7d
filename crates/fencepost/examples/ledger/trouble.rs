//! The parent: starts the workers, starts killed ones again, and makes trouble by a plan that the seed fixes.

use std::{cell::Cell, error::Error, io, os::unix::process::ExitStatusExt, time::Duration};

use fencepost::{LockName, Locks, claim::Forced, clock, store::Store};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::{Arguments, LOCK, issues_fences, ledger::Ledger, seeded::Seeded};

/// How often trouble comes for each process.
const TROUBLES: u32 = 4;
/// The whole must end within this, for each thousand of increments that are asked for; it takes a small part of it.
const LIMIT_PER_THOUSAND: Duration = Duration::from_secs(60);

/// What the trouble came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Toll {
    pub(crate) kills: u32,
    pub(crate) pauses: u32,
    pub(crate) robberies: u32,
}

pub(crate) struct Plan<'a> {
    pub(crate) store: &'a str,
    pub(crate) ledger: &'a Ledger,
    pub(crate) arguments: &'a Arguments,
    pub(crate) seed: u64,
}

/// The process that is at work as one of the workers just now.
type Place = Cell<Option<Pid>>;

impl Plan<'_> {
    /// Until every worker is done. Answers whether the store issues fences, and the toll.
    pub(crate) async fn carry_out(&self) -> Result<(bool, Toll), Box<dyn Error>> {
        let locks = Locks::open(self.store).await?;
        let places: Vec<Place> = (0..self.arguments.processes).map(|_| Place::default()).collect();
        let toll = Cell::new(Toll::default());
        let thousands = u64::from(self.arguments.processes) * u64::from(self.arguments.increments) / 1000 + 1;
        let limit = LIMIT_PER_THOUSAND * u32::try_from(thousands)?;
        tokio::select! {
            done = self.all_workers(&places) => done?,
            error = self.make_trouble(&**locks.store(), locks.capabilities().expires, &places, &toll) => return Err(error),
            () = clock::sleep(&**locks.clock(), limit) => return Err(format!("not done within {limit:?}").into()),
        }
        locks.close().await;
        Ok((issues_fences(self.store), toll.get()))
    }

    async fn all_workers(&self, places: &[Place]) -> Result<(), Box<dyn Error>> {
        let mut workers: Vec<_> =
            (0u8..).zip(places).map(|(number, place)| Box::pin(self.worker(number, place))).collect();
        std::future::poll_fn(move |context| {
            let mut index = 0;
            while index < workers.len() {
                match workers[index].as_mut().poll(context) {
                    std::task::Poll::Ready(Ok(())) => drop(workers.swap_remove(index)),
                    std::task::Poll::Ready(Err(error)) => return std::task::Poll::Ready(Err(error)),
                    std::task::Poll::Pending => index += 1,
                }
            }
            if workers.is_empty() { std::task::Poll::Ready(Ok(())) } else { std::task::Poll::Pending }
        })
        .await
    }

    /// Starts one worker, again and again until it was not killed.
    async fn worker(&self, number: u8, place: &Place) -> Result<(), Box<dyn Error>> {
        loop {
            let mut child = self.start(number)?;
            place.set(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
            let status = child.wait().await?;
            // Before anybody else runs here: from now on the number may be a stranger's.
            place.set(None);
            if status.success() {
                return Ok(());
            }
            if status.signal() != Some(Signal::KILL.as_raw()) {
                return Err(format!("worker {number} failed: {status}").into());
            }
        }
    }

    fn start(&self, number: u8) -> io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .args(["--worker", &number.to_string(), "--store", self.store])
            .arg("--ledger")
            .arg(self.ledger.directory())
            .args(["--increments", &self.arguments.increments.to_string()])
            .kill_on_drop(true)
            .spawn()
    }

    /// Half of the trouble is for the holder, the rest for anybody. Ends only by an error.
    async fn make_trouble(
        &self,
        store: &dyn Store,
        expires: bool,
        places: &[Place],
        toll: &Cell<Toll>,
    ) -> Box<dyn Error> {
        let mut random = Seeded::new(self.seed);
        let attempt = async {
            let lock = LockName::new(LOCK)?;
            for _ in 0..TROUBLES * u32::from(self.arguments.processes) {
                pause(random.millis(20..120)).await;
                let (at_holder, number, kills) = (random.coin(), random.below(places.len() as u64), random.coin());
                let (robs, span) =
                    (random.coin(), if expires { random.millis(400..900) } else { random.millis(20..120) });
                let holder = if at_holder { holder(store, &lock, places).await? } else { None };
                let Some(victim) = holder.or(places[number as usize].get()) else { continue };
                let mut sum = toll.get();
                if kills {
                    sum.kills += 1;
                    kill_process(victim, Signal::KILL)?;
                } else {
                    sum.pauses += 1;
                    kill_process(victim, Signal::STOP)?;
                    // Where grants do not expire, a paused holder would keep the lock: somebody breaks it, perhaps.
                    if robs && !expires && holder == Some(victim) {
                        sum.robberies += u32::from(matches!(store.force(&lock, None).await?, Forced::Broken(_)));
                    }
                    pause(span).await;
                    // One that had just ended was not stopped, and its number may be a stranger's by now.
                    if places.iter().any(|place| place.get() == Some(victim)) {
                        kill_process(victim, Signal::CONT)?;
                    }
                }
                toll.set(sum);
            }
            Ok::<(), Box<dyn Error>>(())
        };
        match attempt.await {
            Ok(()) => std::future::pending().await,
            Err(error) => error,
        }
    }
}

/// The holder, if it is one of ours.
async fn holder(store: &dyn Store, lock: &LockName, places: &[Place]) -> Result<Option<Pid>, fencepost::Error> {
    let states = store.inspect(Some(lock)).await?;
    let holders = states.iter().flat_map(|state| &state.holders);
    let pid = holders.map(|holder| holder.claimant.pid).next();
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    Ok(pid.filter(|pid| places.iter().any(|place| place.get() == Some(*pid))))
}

async fn pause(span: Duration) {
    clock::sleep(&clock::BootClock, span).await;
}

//! `fencepost run`: takes what is named, has the guardian start the command, and ends as the command ends.

use std::time::Duration;

use fencepost::{
    Attempt, Due, Locks, Turn,
    clock::{BootClock, Clock, Moment},
};

use crate::{
    arguments::{Global, Run},
    exit::{self, Ending},
    held::Held,
    supervisor::{End, Outcome, Supervisor, Work},
    take::{self, Opened, Patience, Takes},
    when,
};

/// Carries the verb out.
pub(crate) fn run(global: &Global, run: &Run) -> Ending {
    let patience = Patience::begin(run.taking.wait);
    let work = Work { global, names: &run.wanted.names, taking: &run.taking, guarded: &run.guarded, stdout: None };
    work.supervise(async |supervisor| Once { run, supervisor, patience }.open().await)
}

/// One run of the command.
struct Once<'a> {
    run: &'a Run,
    supervisor: &'a Supervisor<'a>,
    patience: Patience,
}

impl Once<'_> {
    async fn open(&self) -> Result<Ending, Ending> {
        match self.supervisor.open(self.patience).await? {
            Opened::Fenced(locks) => self.take(&locks).await,
            Opened::Plain(locks) => self.take(&locks).await,
        }
    }

    async fn take<P: Takes>(&self, locks: &Locks<P>) -> Result<Ending, Ending> {
        let way = self.run.wanted.way();
        let asking = P::ask(locks, way, &self.run.taking, self.patience);
        let attempt = tokio::select! {
            biased;
            attempt = take::acquire(self.supervisor.work.global, locks, way.names(), way.mode(), asking) => {
                attempt.map_err(Ending::from)
            }
            signal = self.supervisor.signals.next_end() => Err(Ending::interrupted(signal)),
        };
        let waited = self.patience.spent();
        let ending = match attempt {
            Ok(Attempt::Acquired(held)) => self.hold(locks, held).await,
            Ok(Attempt::Busy(busy)) => {
                // The places in the queues, and those of several locks that were free, go before this process does.
                locks.close().await;
                Ending::busy(way, &busy, self.run.guarded.busy_code)
            }
            Err(ending) => {
                // As does what the claim may have left in the store.
                locks.close().await;
                ending
            }
        };
        Ok(Ending { waited_ms: Some(exit::millis(waited)), ..ending })
    }

    async fn hold<P: Takes>(&self, locks: &Locks<P>, held: Box<dyn Held>) -> Ending {
        let began = BootClock.now();
        let ending = match self.turn(locks, &*held).await {
            Ok(turn) => {
                let outcome = self.supervisor.run(&*held).await;
                let ending = self.settle(turn, outcome).await;
                self.hold_on(&*held, began).await;
                ending
            }
            Err(ending) => ending,
        };
        self.supervisor.give_back(held, began, ending).await
    }

    /// `--once-per`: whether it is due is asked under the lock, so that nobody finds it due while another's command runs.
    async fn turn<P: Takes>(&self, locks: &Locks<P>, held: &dyn Held) -> Result<Option<Turn>, Ending> {
        let Some(period) = self.run.once_per else { return Ok(None) };
        let name = &self.run.wanted.names[0];
        let once = locks.once_per(name.as_str(), period.get())?;
        let due = tokio::select! {
            biased;
            due = once.claim() => due?,
            loss = held.lost() => {
                let said = format!("lock {name:?}: the lease is lost: {}; the command was not started", loss.reason);
                return Err(Ending::coded("lost", exit::LOST).saying(said));
            }
            signal = self.supervisor.signals.next_end() => return Err(Ending::interrupted(signal)),
        };
        match due {
            Due::Now(turn) => Ok(Some(turn)),
            Due::Later { by, since_unix_ms } => {
                let (by, since) = (when::claimant(&by), when::instant(since_unix_ms));
                let said = format!("not due: {name} was begun by {by} at {since} ({} ago)", when::age(since_unix_ms));
                Err(Ending::coded("not_due", self.run.guarded.busy_code).saying(said))
            }
        }
    }

    /// Gives the turn back when nothing was done in it.
    async fn settle(&self, turn: Option<Turn>, outcome: Outcome) -> Ending {
        let Outcome { ending, end, .. } = outcome;
        let nothing_done = match end {
            End::TooLate | End::NotStarted => true,
            End::Code(0) => false,
            End::Code(_) | End::Stopped | End::Broken => self.run.retry_failed,
        };
        let Some(turn) = turn.filter(|_| nothing_done) else { return ending };
        match turn.give_back().await {
            Ok(()) => ending,
            Err(error) => ending.adding(format!("it counts as run in this period: {error}")),
        }
    }

    /// `--min-hold`: until then, unless the lease is lost or somebody wants this process to end.
    async fn hold_on(&self, held: &dyn Held, began: Moment) {
        let until = began.after(self.run.min_hold);
        if self.run.min_hold == Duration::ZERO || BootClock.now() >= until || held.check().is_err() {
            return;
        }
        tokio::select! {
            () = BootClock.sleep_until(until) => {}
            _ = held.lost() => {}
            _ = self.supervisor.signals.next_end() => {}
        }
    }
}

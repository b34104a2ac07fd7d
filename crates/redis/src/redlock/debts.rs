//! What is still to be given back at one server: lost rounds and released leases that it has not confirmed. One task for
//! each server, and only while there is something to do.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fencepost_core::{
    clock::Moment,
    error::ErrorKind,
    name::LockName,
    owner::Owner,
    quorum::{CleaningUp, Errand},
};

use super::node::Node;

/// A server that is away for longer than its records last owes nothing; this bounds one that is away under load.
const MOST: usize = 10_000;
/// A server that was stopped applies what it was sent when it wakes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Due {
    /// What rounds up to this one left.
    Rounds(u64),
    /// Everything of the owner.
    Everything,
}

#[derive(Debug, Default)]
pub(super) struct Debts(Mutex<Ledger>);

#[derive(Debug, Default)]
struct Ledger {
    debts: VecDeque<Debt>,
    at_work: bool,
}

#[derive(Clone, Debug)]
struct Debt {
    name: LockName,
    owner: Owner,
    due: Due,
    work: CleaningUp,
}

impl Node {
    /// Gives back in the background, until the server has confirmed it or the record is over. `unclear` says that a
    /// request may be under way.
    pub(super) fn owe(self: &Arc<Self>, name: &LockName, owner: &Owner, due: Due, ttl: Duration, unclear: bool) {
        let work = CleaningUp::begin(self.now(), ttl.max(PATIENCE), unclear);
        let mut ledger = self.debts.lock();
        if ledger.debts.len() == MOST {
            ledger.debts.pop_front();
        }
        ledger.debts.push_back(Debt { name: name.clone(), owner: *owner, due, work });
        if !std::mem::replace(&mut ledger.at_work, true) {
            tokio::spawn(settle(self.clone()));
        }
    }
}

impl Debts {
    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next debt to settle, or when there will be one. `None` when all are settled, and then the task ends.
    fn next(&self, now: Moment) -> Option<Result<Debt, Moment>> {
        let mut ledger = self.lock();
        ledger.debts.retain(|debt| debt.work.next(now) != Errand::Done);
        if let Some(place) = ledger.debts.iter().position(|debt| debt.work.next(now) == Errand::Ask) {
            return ledger.debts.remove(place).map(Ok);
        }
        let waits = ledger.debts.iter().filter_map(|debt| match debt.work.next(now) {
            Errand::Wait(until) => Some(until),
            _ => None,
        });
        let earliest = waits.min();
        ledger.at_work = earliest.is_some();
        earliest.map(Err)
    }
}

async fn settle(node: Arc<Node>) {
    while let Some(next) = node.debts.next(node.now()) {
        let mut debt = match next {
            Ok(debt) => debt,
            Err(until) => {
                // A debt that comes meanwhile waits for this, at most the longest pause of two seconds.
                node.sleep_until(until).await;
                continue;
            }
        };
        let answer = match debt.due {
            Due::Rounds(round) => node.retract(&debt.name, &debt.owner, round).await,
            Due::Everything => node.release(&debt.name, &debt.owner).await,
        };
        match answer {
            Err(failure) if failure.kind == ErrorKind::Closed => {
                let mut ledger = node.debts.lock();
                ledger.debts.clear();
                ledger.at_work = false;
                return;
            }
            Err(failure) if failure.kind != ErrorKind::Unavailable => {
                tracing::warn!(lock = %debt.name, node = %node.address, "a lost round could not be given back");
            }
            answer => {
                debt.work.answered(node.now(), answer.is_ok());
                node.debts.lock().debts.push_back(debt);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_knows_what_to_do_next_and_when_it_is_done() {
        let debts = Debts::default();
        let at = |millis: u64| Moment::from_nanos(millis * 1_000_000);
        let debt = Debt {
            name: LockName::new("x").unwrap(),
            owner: Owner::random().unwrap(),
            due: Due::Everything,
            work: CleaningUp::begin(at(0), PATIENCE, true),
        };
        debts.lock().debts.push_back(debt);
        let Some(Ok(mut debt)) = debts.next(at(0)) else { panic!("it is due at once") };
        debt.work.answered(at(1), true);
        debts.lock().debts.push_back(debt);
        let Some(Err(until)) = debts.next(at(1)) else { panic!("a second look") };
        assert!(until > at(1));
        let Some(Ok(mut debt)) = debts.next(until) else { panic!("it is due then") };
        debt.work.answered(until, true);
        debts.lock().debts.push_back(debt);
        debts.lock().at_work = true;
        assert!(debts.next(until).is_none() && !debts.lock().at_work);
    }
}

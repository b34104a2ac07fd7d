//! One process that adds to the ledger. It may be killed or paused at any point, and be started again.

use std::{error::Error, time::Duration};

use fencepost::{Attempt, Correctness, Efficiency, Error as LockError, ErrorKind, Locks, clock};

use crate::{LOCK, issues_fences, ledger::Ledger};

/// Short, so that a pause outlasts it. Stores whose grants do not expire ignore it.
const TTL: Duration = Duration::from_millis(300);
/// How long a holder thinks between reading and writing.
const THINKS: Duration = Duration::from_millis(1);
/// How long a write is on its way to the ledger, after everything that a client can check.
const ON_ITS_WAY: Duration = Duration::from_millis(2);

pub(crate) async fn work(store: &str, ledger: &Ledger, number: u8, count: u32) -> Result<(), Box<dyn Error>> {
    let locks = Locks::open(store).await?;
    // The ledger knows how far an earlier life of this worker came.
    let left = || ledger.page().map(|page| page.written[usize::from(number)] < u64::from(count));
    if issues_fences(store) {
        let locks = locks.fenced()?;
        while left()? {
            add_fenced(&locks, ledger, number).await?;
        }
        locks.close().await;
    } else {
        let locks = locks.for_efficiency();
        while left()? {
            add_unfenced(&locks, ledger, number).await?;
        }
        locks.close().await;
    }
    Ok(())
}

/// For correctness: advance the fence, read, write with the fence. A refusal means that another holds the lock now.
async fn add_fenced(locks: &Locks<Correctness>, ledger: &Ledger, number: u8) -> Result<(), Box<dyn Error>> {
    let attempt = locks.lock(LOCK).ttl(TTL).acquire().await;
    let Some(mut lease) = in_time(attempt)? else { return Ok(()) };
    let fence = lease.fence();
    if let Ok(balance) = ledger.advance(fence)? {
        pause(locks.clock(), THINKS).await;
        if lease.check().is_ok() {
            pause(locks.clock(), ON_ITS_WAY).await;
            let _refused_is_tried_again = ledger.write(Some(fence), number, balance + 1)?;
        }
    }
    // After an outcome that is unknown, dropping the lease goes on giving it back.
    let _ = lease.release().await;
    Ok(())
}

/// For efficiency: the same with all the care that a client can take. It does not help a write that is on its way.
async fn add_unfenced(locks: &Locks<Efficiency>, ledger: &Ledger, number: u8) -> Result<(), Box<dyn Error>> {
    let attempt = locks.lock(LOCK).ttl(TTL).acquire().await;
    let Some(mut lease) = in_time(attempt)? else { return Ok(()) };
    let balance = ledger.page()?.balance;
    pause(locks.clock(), THINKS).await;
    if lease.check().is_ok() {
        pause(locks.clock(), ON_ITS_WAY).await;
        let _never_refused = ledger.write(None, number, balance + 1)?;
    }
    // After an outcome that is unknown, dropping the lease goes on giving it back.
    let _ = lease.release().await;
    Ok(())
}

/// The lease. A grant that was over on arrival, since this process was paused meanwhile, is tried again.
fn in_time<L>(attempt: Result<Attempt<L>, LockError>) -> Result<Option<L>, LockError> {
    match attempt {
        Ok(attempt) => Ok(attempt.acquired()),
        Err(error) if error.kind() == ErrorKind::LateGrant => Ok(None),
        Err(error) => Err(error),
    }
}

async fn pause(clock: &std::sync::Arc<dyn clock::Clock>, span: Duration) {
    clock::sleep(&**clock, span).await;
}

//! Many tasks that want few locks.

use std::{fs::File, path::PathBuf, time::Duration};

use fencepost::{Acquired, Attempt, Efficiency, ErrorKind, Locks};
use fencepost_core::clock::{BootClock, Clock};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// Who comes, for what and for how long.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Crowd {
    /// Tasks that take and give back without a pause.
    pub tasks: u64,
    /// Locks among them.
    pub names: u64,
    /// How long it goes on, in milliseconds.
    pub millis: u64,
    /// A directory that the crowds of all processes share: a holder creates a file there, which fails for a second.
    pub arena: PathBuf,
}

/// How it went.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Served {
    /// Grants altogether.
    pub grants: u64,
    /// Grants of the task that had fewest.
    pub least: u64,
    /// What went wrong: errors, starved tasks, two holders at once.
    pub errors: Vec<String>,
}

/// How long a task of the crowd is willing to wait for one grant.
const PATIENCE: Duration = Duration::from_secs(30);

/// Lets a crowd loose on `locks`.
pub async fn serve(locks: &Locks<Efficiency>, crowd: &Crowd) -> Served {
    let mut tasks = JoinSet::new();
    for number in 0..crowd.tasks {
        tasks.spawn(one(locks.clone(), crowd.clone(), format!("crowd-{}", number % crowd.names)));
    }
    let mut served = Served { grants: 0, least: u64::MAX, errors: Vec::new() };
    for outcome in tasks.join_all().await {
        match outcome {
            Ok(grants) => {
                served.grants += grants;
                served.least = served.least.min(grants);
            }
            Err(error) => served.errors.push(error),
        }
    }
    served
}

async fn one(locks: Locks<Efficiency>, crowd: Crowd, name: String) -> Result<u64, String> {
    let until = BootClock.now().after(Duration::from_millis(crowd.millis));
    let mut grants = 0;
    while BootClock.now() < until {
        let attempt = locks.lock(&name).wait(PATIENCE).acquire().await.map_err(|error| error.to_string())?;
        let mut lease = match attempt {
            Acquired(lease) => lease,
            Attempt::Busy(busy) => return Err(format!("{name}: starved behind {busy:?}")),
        };
        let mark = crowd.arena.join(&name);
        File::create_new(&mark).map_err(|error| format!("{name} has two holders at once: {error}"))?;
        tokio::task::yield_now().await;
        std::fs::remove_file(&mark).map_err(|error| error.to_string())?;
        match lease.release().await {
            // Nobody answered in time: it goes on in the background, and whether it was done shows in what is left in the end.
            Err(error) if error.kind() != ErrorKind::Unavailable => return Err(error.to_string()),
            _ => {}
        }
        grants += 1;
    }
    Ok(grants)
}

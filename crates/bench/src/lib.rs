//! What Fencepost's locks cost on a store, next to the **floor**: what the same machine needs at the same time for the
//! bare system calls, or the bare commands on the same kind of connection.
//!
//! Only the ratio of the two says something about Fencepost; the times themselves say more about the machine. So each
//! work and its floor take turns, in rounds of a few hundredths of a second, and whatever else the machine does meanwhile
//! falls on both.
//!
//! Everything runs on the caller's runtime. A runtime of one thread gives the steadiest figures, and ours and the floor
//! share it.

mod counted;
mod distance;
mod floor;
mod ground;
mod plan;
mod process;
mod report;
mod rounds;
mod samples;
mod work;

pub use crate::{
    plan::{Plan, Work},
    report::{Against, Figure, Goal, Latency, Outcome, Report, SCHEMA},
    work::{
        PassedOver, passed_over,
        transfers::{Page, Transfer, Way, page},
    },
};

use fencepost::Error;

use crate::ground::Ground;

/// Carries out `plan`. Before each part `progress` hears what comes next and which share of the time is over.
///
/// Locks are taken under names of its own that nobody else uses, and all of them are given back.
///
/// # Errors
/// The store's own. One that comes in the middle ends the whole run: figures of a store that fails are no figures.
///
/// # Cancel safety
/// Safe: leases are given back in the background. A directory keeps the files of the unfinished run, and a server the accounts of
/// [`Work::Transfers`].
pub async fn run(plan: &Plan, progress: &mut dyn FnMut(&str, f64)) -> Result<Report, Error> {
    process::raise_file_limit();
    let ground = Ground::open(plan).await?;
    let parts: Vec<_> = plan.works().flat_map(|work| work.parts(plan)).collect();
    let all: f64 = parts.iter().map(|part| part.weight).sum();
    let mut over = 0.0;
    let mut outcomes = Vec::new();
    for part in parts {
        progress(&part.to_string(), over / all);
        outcomes.push(work::measure(&ground, plan, &part, plan.total.mul_f64(part.weight / all)).await?);
        over += part.weight;
    }
    progress("done", 1.0);
    Ok(ground.finish(outcomes))
}

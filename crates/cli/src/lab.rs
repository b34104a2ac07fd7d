//! `lab`: breaks locks on servers of its own, and judges histories.

mod check;
mod choice;
mod list;
mod measure;
mod play;
mod report;
mod twice;

use clap::Subcommand;
use tokio::runtime::Runtime;

use crate::{arguments::Global, exit::Ending, signals::Caught};

/// What an exit code of these verbs says, beside those of every verb.
const CODES: &str = "\
Exit codes:
  0    as expected; of check: nothing was wrong; of twice: nothing differs
  40   DOUBLE-GRANT: the store granted twice, or its fences did not rise
  41   OVERLAP: two acted as holders, and nothing stopped the late one; of twice: something differs
  42   OVERLAP-FENCED: somebody was late, and the fence kept the resource right
  43   BLOCKED: safe, and nobody could have the lock for a while
  44   UNKNOWN: what happened cannot be told
  45   VACUOUS: the danger was not reached, or there is no grant in the history
  46   NOT-RUN: a server, a package or a right is missing
  47   INFRASTRUCTURE: the laboratory itself failed
  48   OK, where something worse was expected
  64   the command line, or the history, was refused
  70   something failed: a file that cannot be written, a job that cannot be run
  128+n  ended by signal n";

#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// Show every scenario and what is expected of each store
    #[command(after_help = "Example: fencepost lab list --store redis")]
    List,
    /// Play scenarios and say what came of each
    ///
    /// Exit code 0 when each came out as expected, else that of the worst that did not.
    #[command(after_help = format!("Example: fencepost lab run kleppmann-pause --store redis --trials 5 --out lab\n\n{CODES}"))]
    Run(play::Run),
    /// Judge a history, one event as JSON on each line
    ///
    /// Exit code 0 when nothing was wrong, else that of the verdict.
    #[command(after_help = format!("Example: fencepost lab check history.jsonl --slowest-recovery 30s\n\n{CODES}"))]
    Check(check::Check),
    /// Draw a history as a page, or write the report of an earlier run anew
    ///
    /// Of a directory that `run --out` wrote: report.html and report.md in it. Of a history in a file: a page beside it.
    #[command(after_help = "Example: fencepost lab report history.jsonl --out history.html")]
    Report(report::Report),
    /// Measure what a failover loses, or what the stores cost beside each other
    ///
    /// On servers of its own. failover: the loss window of a Sentinel failover by load and lag, with and without WAIT and
    /// min-replicas. cost: times side by side, and how long no lock can be had while a leader dies.
    #[command(after_help = "Example: fencepost lab measure failover --trials 10 --out measurements")]
    Measure(measure::Measure),
    /// Run a job once, and twice at once, in copies of a directory or of a database, and show what differs
    ///
    /// A lock for efficiency lets a job run twice in rare cases. This shows what that costs. The job runs in the copies only;
    /// what it does elsewhere, it does three times. FENCEPOST_TWICE is once, first or second in its environment. Exit code 0
    /// when nothing differs, else 41.
    #[command(after_help = "Example: fencepost lab twice --dir data -- ./nightly.sh")]
    Twice(twice::Twice),
    #[command(hide = true, about = "Be a client process of the laboratory")]
    Agent {
        /// The role as JSON
        role: String,
    },
}

/// Carries out one of its verbs.
pub(crate) fn lab(global: &Global, verb: Lab) -> Ending {
    crate::log(global.verbose);
    let outcome = match verb {
        Lab::List => list::list(global),
        Lab::Run(verb) => play::play(global, &verb),
        Lab::Check(verb) => check::check(global, &verb),
        Lab::Report(verb) => report::report(&verb),
        Lab::Measure(verb) => measure::measure(global, &verb),
        Lab::Twice(verb) => twice::twice(global, verb),
        Lab::Agent { role } => agent(&role),
    };
    outcome.unwrap_or_else(|ending| ending)
}

fn agent(role: &str) -> Result<Ending, Ending> {
    let role = serde_json::from_str(role).map_err(|error| Ending::usage(error.to_string()))?;
    fencepost_lab::agent::run(role).map_err(|error| Ending::internal(error.to_string()))?;
    Ok(Ending::done())
}

/// A runtime of many threads, for many servers and clients at once.
fn runtime() -> Result<Runtime, Ending> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(|error| Ending::internal(format!("cannot start: {error}")))
}

/// Does the work until it is done or somebody wants this process to end. Whatever is under way then is dropped, and so ended.
fn until_interrupted<T>(work: impl Future<Output = Result<T, Ending>>) -> Result<T, Ending> {
    runtime()?.block_on(async {
        tokio::select! {
            done = work => done,
            signal = interrupted() => Err(Ending::interrupted(signal)),
        }
    })
}

/// Completes when somebody wants this process to end.
async fn interrupted() -> Caught {
    use tokio::signal::unix::{SignalKind, signal};
    let both = (signal(SignalKind::interrupt()), signal(SignalKind::terminate()));
    let (Ok(mut interrupt), Ok(mut terminate)) = both else { return std::future::pending().await };
    tokio::select! {
        _ = interrupt.recv() => Caught { number: SignalKind::interrupt().as_raw_value(), by_key: true },
        _ = terminate.recv() => Caught { number: SignalKind::terminate().as_raw_value(), by_key: false },
    }
}

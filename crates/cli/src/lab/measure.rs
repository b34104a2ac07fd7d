//! `lab measure`: figures instead of verdicts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fencepost_lab::{Stop, Verdict, measure as figures};

use super::until_interrupted;
use crate::{arguments::Global, exit::Ending, listing};

#[derive(Debug, Args)]
pub(crate) struct Measure {
    /// What to measure
    #[arg(value_enum)]
    what: Measurement,
    /// How often each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    trials: u32,
    /// Write a page, a drawing and the figures into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Measurement {
    /// What a Sentinel failover loses of what was answered
    Failover,
    /// The stores side by side, and how long no lock can be had while a leader dies
    Cost,
}

pub(super) fn measure(global: &Global, verb: &Measure) -> Result<Ending, Ending> {
    let bar = crate::bench::bar(global.quiet, 100);
    let measured = until_interrupted(async {
        let mut progress = |next: &str, over: f64| {
            bar.set_position((over * 100.0) as u64);
            bar.set_message(next.to_owned());
        };
        let measured = match verb.what {
            Measurement::Failover => figures::failover::measure(verb.trials, &mut progress).await,
            Measurement::Cost => figures::cost::measure(verb.trials, &mut progress).await,
        };
        measured.map_err(|stop| match stop {
            Stop::Missing(_) => Ending::coded("not_run", Verdict::NotRun.exit_code()).saying(stop.to_string()),
            other => Ending::internal(other.to_string()),
        })
    });
    bar.finish_and_clear();
    let measured = measured?;
    if let Some(out) = &verb.out {
        measured.save(out).map_err(Ending::internal)?;
    }
    let text = if global.json { format!("{}\n", listing::to_json(&measured)) } else { measured.table() };
    crate::print(&text);
    Ok(Ending::done())
}

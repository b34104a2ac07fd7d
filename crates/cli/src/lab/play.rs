//! `lab run`: plays scenarios.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fencepost_lab::{
    AgentCommand, CutBy, Scenario, Subject, Verdict, Wish, report,
    run::{self, Cell, Faults, Plan},
    versions,
};

use super::{choice, until_interrupted};
use crate::{
    arguments::Global,
    exit::{Ending, say},
    listing,
};

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// The scenarios; all without any
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// How often each
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    trials: u32,
    /// The seed of the first trial [default: by chance]
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// How many scenarios at once; most of a scenario is waiting
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    at_once: u16,
    /// How networks are cut: by the kernel, between network namespaces, or by relays [default: by the kernel where it may be]
    #[arg(long, value_name = "HOW", value_enum, env = "FENCEPOST_LAB_CUT_BY")]
    cut_by: Option<How>,
    /// Write the histories, report.html and report.md into this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// Each server and each client has a network of its own, and a cable is taken away
    Namespaces,
    /// Relays between them lose what comes
    Relays,
}

pub(super) fn play(global: &Global, verb: &Run) -> Result<Ending, Ending> {
    let plan = plan(global, verb)?;
    if let Some(out) = &verb.out {
        // Minutes of playing are not to be lost for a directory that cannot be written to.
        report::prepare(out).map_err(Ending::internal)?;
    }
    let bar = crate::bench::bar(global.quiet, plan.cells.len() as u64);
    let played = until_interrupted(async {
        let mut progress = |cell: &Cell| {
            bar.suspend(|| told(cell, global));
            bar.inc(1);
        };
        Ok(run::play(&plan, &mut progress).await)
    });
    bar.finish_and_clear();
    let done = played?;
    kept(&done, verb, plan.seed)?;
    if global.json {
        crate::print(&format!("{}\n", listing::to_json(&report::summary(&done))));
    }
    Ok(ending(&done))
}

fn plan(global: &Global, verb: &Run) -> Result<Plan, Ending> {
    let cells = run::cells(&choice::scenarios(&verb.scenarios)?, &choice::subjects(global)?);
    if cells.is_empty() {
        return Err(Ending::usage("none of these scenarios applies to that store: see `fencepost lab list`"));
    }
    let program = std::env::current_exe().map_err(|error| Ending::internal(error.to_string()))?;
    let agent = AgentCommand { program, arguments: vec!["lab".into(), "agent".into()] };
    for remark in versions::remarks(cells.iter().map(|(_, on)| on.store)) {
        say(&remark);
    }
    let seed = verb.seed.unwrap_or_else(|| fastrand::u64(1..1_000_000));
    let cut_by = cut_by(verb, &cells);
    Ok(Plan { cells, trials: verb.trials, seed, at_once: verb.at_once.into(), agent, cut_by, faults: Faults::Made })
}

/// Moves this process into namespaces where they are wanted, before it has threads.
fn cut_by(verb: &Run, cells: &[(&'static dyn Scenario, Subject)]) -> CutBy {
    let wish = match verb.cut_by {
        None => Wish::Either,
        Some(How::Namespaces) => Wish::Namespaces,
        Some(How::Relays) => Wish::Relays,
    };
    let cuts = cells.iter().any(|(scenario, _)| scenario.cuts_the_network());
    if !cuts && !cells.iter().any(|(scenario, on)| scenario.fills_the_disk(*on)) {
        return CutBy::Relays { why: "no network is cut".to_owned() };
    }
    let chosen = CutBy::choose(wish);
    if cuts {
        say(&chosen.said());
    }
    chosen
}

/// Writes the report where it was asked for; else what was not as expected, since it may not come again.
fn kept(done: &[Cell], verb: &Run, seed: u64) -> Result<(), Ending> {
    if let Some(out) = &verb.out {
        report::save(done, out).map_err(Ending::internal)?;
        say(&format!("the report is in {}", out.join("report.html").display()));
        return Ok(());
    }
    let other: Vec<_> = done.iter().filter(|cell| !cell.as_expected()).cloned().collect();
    if !other.is_empty() {
        let out = std::env::temp_dir().join(format!("fencepost-lab-{seed}-{}", std::process::id()));
        report::save(&other, &out).map_err(Ending::internal)?;
        say(&format!("the histories and the servers' logs of what was not as expected are in {}", out.display()));
    }
    Ok(())
}

/// One line for each cell, and what to do about one that is not as expected.
fn told(cell: &Cell, global: &Global) {
    if global.quiet || global.json {
        return;
    }
    let Some(trial) = cell.worst() else { return };
    let name = cell.scenario.about().name;
    let expected =
        if cell.as_expected() { "as expected".into() } else { format!("expected {}", cell.expected.verdict) };
    let seconds = trial.took.as_secs_f64();
    let mut line = format!("{:15} {name:22} {:16} {seconds:5.1} s  {expected}\n", trial.verdict, cell.subject);
    if !cell.as_expected() {
        line.push_str(&format!("    {}\n    seed {}; again: {}\n", trial.why, trial.seed, cell.again(trial)));
    }
    crate::print(&line);
}

fn ending(done: &[Cell]) -> Ending {
    let other = done.iter().filter(|cell| !cell.as_expected());
    let (mut worst, mut count) = (None, 0);
    for cell in other {
        count += 1;
        // A trial among many may be the one that differs.
        let differs = cell.trials.iter().map(|trial| trial.verdict).filter(|verdict| *verdict != cell.expected.verdict);
        worst = worst.max(differs.max());
    }
    match worst {
        None => Ending::done().saying(format!("{} as expected", cells(done.len()))),
        Some(worst) => Ending::coded("unexpected", Verdict::exit_code(worst))
            .saying(format!("{count} of {} not as expected, the worst {worst}", cells(done.len()))),
    }
}

fn cells(count: usize) -> String {
    if count == 1 { "1 cell".to_owned() } else { format!("{count} cells") }
}

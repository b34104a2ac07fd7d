//! `lab`: breaks locks on servers of its own, and judges histories.

use std::{
    ffi::OsString,
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Subcommand, ValueEnum};
use fencepost_history::{Findings, Options};
use fencepost_lab::{
    AgentCommand, CutBy, IDLE_LIMIT, SUBJECTS, Scenario, Stop, Subject, Verdict, Wish, measure, report,
    run::{self, Cell, Plan},
    scenarios,
    twice::{self, Difference},
    versions,
};

use crate::{
    arguments::Global,
    exit::{Ending, say},
    listing,
    signals::Caught,
    when,
};

#[derive(Debug, Subcommand)]
pub(crate) enum Lab {
    /// Show every scenario and what is expected of each store
    #[command(after_help = "Example: fencepost lab list --store redis")]
    List,
    /// Play scenarios and say what came of each
    ///
    /// Exit code 0 when each came out as expected, else that of the worst that did not: 40 DOUBLE-GRANT, 41 OVERLAP,
    /// 42 OVERLAP-FENCED, 43 BLOCKED, 44 UNKNOWN, 45 VACUOUS, 46 NOT-RUN, 47 INFRASTRUCTURE, 48 OK.
    #[command(after_help = "Example: fencepost lab run kleppmann-pause --store redis --trials 5 --out lab")]
    Run(Run),
    /// Judge a history, one event as JSON on each line
    ///
    /// Exit code 0 when nothing was wrong, else that of the verdict, as for `run`.
    #[command(after_help = "Example: fencepost lab check history.jsonl")]
    Check(Check),
    /// Write the report of an earlier run anew: report.html and report.md
    #[command(after_help = "Example: fencepost lab report lab")]
    Report {
        /// The directory that `run --out` wrote
        dir: PathBuf,
    },
    /// Measure what a failover loses, or what the stores cost beside each other
    ///
    /// On servers of its own. failover: the loss window of a Sentinel failover by load and lag, with and without WAIT and
    /// min-replicas. cost: times side by side, and how long no lock can be had while a leader dies.
    #[command(after_help = "Example: fencepost lab measure failover --trials 10 --out measurements")]
    Measure(Measure),
    /// Run a job once, and twice at once, in copies of a directory or of a database, and show what differs
    ///
    /// A lock for efficiency lets a job run twice in rare cases. This shows what that costs. The job runs in the copies only;
    /// what it does elsewhere, it does three times. FENCEPOST_TWICE is once, first or second in its environment. Exit code 0
    /// when nothing differs, else 41.
    #[command(after_help = "Example: fencepost lab twice --dir data -- ./nightly.sh")]
    Twice(Twice),
    #[command(hide = true, about = "Be a client process of the laboratory")]
    Agent {
        /// The role as JSON
        role: String,
    },
}

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
pub(crate) enum How {
    /// Each server and each client has a network of its own, and a cable is taken away
    Namespaces,
    /// Relays between them lose what comes
    Relays,
}

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
pub(crate) enum Measurement {
    /// What a Sentinel failover loses of what was answered
    Failover,
    /// The stores side by side, and how long no lock can be had while a leader dies
    Cost,
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The history; - for stdin
    file: PathBuf,
    /// Judge what can be read, although some lines cannot
    #[arg(long)]
    rest: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Twice {
    /// The directory to copy
    #[arg(long, value_name = "DIR", default_value = ".", conflicts_with = "database")]
    dir: PathBuf,
    /// The PostgreSQL database to copy instead; the job finds the copy's URL in DATABASE_URL
    #[arg(long, value_name = "URL", env = "FENCEPOST_TWICE_DATABASE", hide_env_values = true)]
    database: Option<String>,
    /// A column that is not compared, such as a time of change; may be repeated
    #[arg(long, value_name = "COLUMN", requires = "database")]
    ignore_column: Vec<String>,
    /// How long after the first of the two the second one starts
    #[arg(long, value_name = "SPAN", default_value = "0s", value_parser = crate::arguments::values::span)]
    apart: Duration,
    /// The command and its arguments, after --
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Carries out one of its verbs.
pub(crate) fn lab(global: &Global, verb: Lab) -> Ending {
    crate::log(global.verbose);
    let outcome = match verb {
        Lab::List => list(global),
        Lab::Run(verb) => play(global, &verb),
        Lab::Check(verb) => check(global, &verb),
        Lab::Report { dir } => report::render(&dir).map(|()| Ending::done()).map_err(Ending::internal),
        Lab::Measure(verb) => measure(global, &verb),
        Lab::Twice(verb) => twice(global, verb),
        Lab::Agent { role } => agent(&role),
    };
    outcome.unwrap_or_else(|ending| ending)
}

fn agent(role: &str) -> Result<Ending, Ending> {
    let role = serde_json::from_str(role).map_err(|error| Ending::usage(error.to_string()))?;
    fencepost_lab::agent::run(role).map_err(|error| Ending::internal(error.to_string()))?;
    Ok(Ending::done())
}

fn twice(global: &Global, verb: Twice) -> Result<Ending, Ending> {
    let Twice { dir, database, ignore_column, apart, command } = verb;
    let job = twice::Job { command, apart };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ending::internal(format!("cannot start: {error}")))?;
    let mut signal = None;
    let stop = async { signal = Some(interrupted().await) };
    let outcome = runtime.block_on(async {
        match database {
            None => {
                let outcome = twice::in_directories(&job, &dir, stop).await;
                outcome.map_err(|error| format!("{}: {error}", dir.display()))
            }
            Some(url) => twice::in_databases(&job, &url, &ignore_column, stop).await,
        }
    });
    let Some(outcome) = outcome.map_err(Ending::internal)? else {
        return Err(signal.map_or_else(Ending::done, Ending::interrupted));
    };
    crate::print(&if global.json { format!("{}\n", listing::to_json(&outcome)) } else { compared(&outcome) });
    if !outcome.once.well() {
        return Err(Ending::internal("the command failed when it ran alone: there is nothing to compare with"));
    }
    Ok(match outcome.differences.len() {
        0 => Ending::done().saying("nothing differs: here the job may run twice"),
        count => Ending::coded("differs", Verdict::Overlap.exit_code()).saying(format!("{count} differ")),
    })
}

fn compared(outcome: &twice::Outcome) -> String {
    let [first, second] = outcome.twice;
    let mut text = format!("alone: {}; at once: {first} and {second}\n", outcome.once);
    for differs in &outcome.differences {
        let said = match differs.how {
            Difference::OnlyTwice => "is there only after two at once",
            Difference::OnlyOnce => "is there only after one alone",
            Difference::Content => "has another content",
            Difference::Kind => "is another kind of thing, or has other permissions",
            Difference::Rows { once, twice } => {
                &format!("has {twice} rows after two at once, and {once} after one alone")
            }
        };
        text.push_str(&format!("{}: {said}\n", when::harmless(&differs.what)));
    }
    text
}

fn list(global: &Global) -> Result<Ending, Ending> {
    let subjects = subjects(global)?;
    let mut text = String::new();
    for scenario in scenarios::ALL {
        let about = scenario.about();
        let on: Vec<_> = subjects.iter().filter_map(|on| Some((*on, scenario.expects(*on)?))).collect();
        if on.is_empty() {
            continue;
        }
        text.push_str(&format!("{}\n    {}: {}\n", about.name, about.title, about.why));
        for (subject, expected) in on {
            text.push_str(&format!("    {subject:16} {:15} {}\n", expected.verdict, expected.because));
        }
    }
    Ok(crate::print(&text))
}

fn play(global: &Global, verb: &Run) -> Result<Ending, Ending> {
    let chosen = chosen(&verb.scenarios)?;
    let cells = run::cells(&chosen, &subjects(global)?);
    if cells.is_empty() {
        return Err(Ending::usage("none of these scenarios applies to that store: see `fencepost lab list`"));
    }
    let program = std::env::current_exe().map_err(|error| Ending::internal(error.to_string()))?;
    let agent = AgentCommand { program, arguments: vec!["lab".into(), "agent".into()] };
    for remark in versions::remarks(cells.iter().map(|(_, on)| on.store)) {
        say(&remark);
    }
    let seed = verb.seed.unwrap_or_else(by_chance);
    let cut_by = cut_by(verb, &cells);
    let plan = Plan { cells, trials: verb.trials, seed, at_once: verb.at_once.into(), agent, cut_by };
    let bar = crate::bench::bar(global.quiet, plan.cells.len() as u64);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ending::internal(format!("cannot start: {error}")))?;
    let done = runtime.block_on(async {
        let mut progress = |cell: &Cell| {
            bar.suspend(|| told(cell, global));
            bar.inc(1);
        };
        tokio::select! {
            done = run::play(&plan, &mut progress) => Ok(done),
            signal = interrupted() => Err(Ending::interrupted(signal)),
        }
    });
    bar.finish_and_clear();
    // Whatever is still on a stage is dropped, and so ended, with the runtime.
    drop(runtime);
    let done = done?;
    if let Some(out) = &verb.out {
        report::save(&done, out).map_err(Ending::internal)?;
        say(&format!("the report is in {}", out.join("report.html").display()));
    } else if done.iter().any(|cell| !cell.as_expected()) {
        let other: Vec<_> = done.iter().filter(|cell| !cell.as_expected()).cloned().collect();
        let out = std::env::temp_dir().join(format!("fencepost-lab-{seed}-{}", std::process::id()));
        report::save(&other, &out).map_err(Ending::internal)?;
        say(&format!("the histories and the servers' logs of what was not as expected are in {}", out.display()));
    }
    if global.json {
        crate::print(&format!("{}\n", listing::to_json(&report::summary(&done))));
    }
    Ok(ending(&done))
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

fn measure(global: &Global, verb: &Measure) -> Result<Ending, Ending> {
    let bar = crate::bench::bar(global.quiet, 100);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ending::internal(format!("cannot start: {error}")))?;
    let measured = runtime.block_on(async {
        let mut progress = |next: &str, over: f64| {
            bar.set_position((over * 100.0) as u64);
            bar.set_message(next.to_owned());
        };
        let work = async {
            match verb.what {
                Measurement::Failover => measure::failover::measure(verb.trials, &mut progress).await,
                Measurement::Cost => measure::cost::measure(verb.trials, &mut progress).await,
            }
        };
        tokio::select! {
            done = work => done.map_err(|stop| match stop {
                Stop::Missing(_) => Ending::coded("not_run", Verdict::NotRun.exit_code()).saying(stop.to_string()),
                other => Ending::internal(other.to_string()),
            }),
            signal = interrupted() => Err(Ending::interrupted(signal)),
        }
    });
    bar.finish_and_clear();
    drop(runtime);
    let measured = measured?;
    if let Some(out) = &verb.out {
        measured.save(out).map_err(Ending::internal)?;
    }
    let text = if global.json { format!("{}\n", listing::to_json(&measured)) } else { measured.table() };
    crate::print(&text);
    Ok(Ending::done())
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
        Some(worst) => Ending::coded("unexpected", worst.exit_code()).saying(format!(
            "{} of {} not as expected, the worst {worst}",
            count,
            cells(done.len())
        )),
    }
}

fn cells(count: usize) -> String {
    if count == 1 { "1 cell".to_owned() } else { format!("{count} cells") }
}

fn check(global: &Global, verb: &Check) -> Result<Ending, Ending> {
    let reading = fencepost_history::read(BufReader::new(opened(&verb.file)?));
    for broken in reading.broken.iter().take(20) {
        say(&format!("{}, line {}: {}", verb.file.display(), broken.line, broken.why));
    }
    if !reading.broken.is_empty() && !verb.rest {
        let count = reading.broken.len();
        return Err(Ending::usage(if reading.history.events().is_empty() {
            "no line of it is an event of a history: it may be another tool's, and docs/history.md has the format"
                .to_owned()
        } else {
            format!("{count} lines cannot be read; --rest judges the others, and docs/history.md has the format")
        }));
    }
    let findings = fencepost_history::check(&reading.history, &Options::default());
    let limit = u64::try_from(IDLE_LIMIT.as_nanos()).unwrap_or(u64::MAX);
    let verdict = if findings.measures.grants == 0 { Verdict::Vacuous } else { Verdict::of(&findings, limit) };
    if global.json {
        crate::print(&format!("{}\n", listing::to_json(&findings)));
    } else {
        crate::print(&described(&findings, verdict));
    }
    Ok(match verdict {
        Verdict::Ok => Ending::done(),
        verdict => Ending::coded("found", verdict.exit_code()),
    })
}

fn described(findings: &Findings, verdict: Verdict) -> String {
    let mut text = String::new();
    for finding in &findings.list {
        let lines: Vec<_> = finding.lines.iter().map(u32::to_string).collect();
        text.push_str(&format!("line {}: {}\n", lines.join(" and "), finding.said));
    }
    let measures = &findings.measures;
    text.push_str(&format!(
        "{verdict}: {}\n{} grants, {} operations at resources, {} outcomes unknown; unused while wanted for {} ms at most\n",
        verdict.means(),
        measures.grants,
        measures.operations,
        measures.unknown,
        measures.longest_idle / 1_000_000,
    ));
    if measures.grants == 0 {
        text.push_str("there is not one grant in it\n");
    }
    text
}

fn opened(file: &Path) -> Result<Box<dyn Read>, Ending> {
    if file == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    let opened = File::open(file).map_err(|error| Ending::usage(format!("{}: {error}", file.display())))?;
    Ok(Box::new(opened))
}

fn chosen(names: &[String]) -> Result<Vec<&'static dyn Scenario>, Ending> {
    if names.is_empty() {
        return Ok(scenarios::ALL.to_vec());
    }
    names.iter().map(|name| scenarios::named(name).map_err(|near| unknown("scenario", name, &near))).collect()
}

fn subjects(global: &Global) -> Result<Vec<Subject>, Ending> {
    let Some(said) = global.stated_store() else { return Ok(SUBJECTS.to_vec()) };
    if said.contains(':') {
        say("the laboratory starts servers of its own: the URL of a store is not used");
        return Ok(SUBJECTS.to_vec());
    }
    let mut chosen = Vec::new();
    for word in said.split(',') {
        let before = chosen.len();
        chosen.extend(SUBJECTS.iter().filter(|on| on.to_string() == word || on.store.word() == word));
        if chosen.len() == before {
            let known: Vec<_> = SUBJECTS.iter().map(Subject::to_string).collect();
            return Err(unknown("store", word, &scenarios::nearest(word, known.iter().map(String::as_str))));
        }
    }
    Ok(chosen)
}

fn unknown(what: &str, name: &str, near: &[&str]) -> Ending {
    let near = if near.is_empty() { String::new() } else { format!("; did you mean {}?", near.join(" or ")) };
    Ending::usage(format!("there is no {what} {name:?}{near} `fencepost lab list` shows all"))
}

fn by_chance() -> u64 {
    fastrand::u64(1..1_000_000)
}

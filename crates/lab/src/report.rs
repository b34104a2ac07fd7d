//! What was played, for people: one HTML page that needs nothing else, and Markdown for the documentation.

mod markdown;
mod page;
mod timeline;

use std::{collections::BTreeMap, fs, io::BufReader, path::Path, time::Duration};

use fencepost_history::{Options, check};
use serde::{Deserialize, Serialize};

pub use markdown::{guarantees, short};
pub use page::{history, page, picture};

use crate::{
    run::{Cell, Trial, save as save_history},
    scenario::{NotPlayed, Scenario},
    scenarios,
    subject::{SUBJECTS, Subject},
    verdict::Verdict,
};

/// The file beside the histories that says what they are.
const RESULTS: &str = "results.json";

/// A cell for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CellSummary {
    /// The scenario's name.
    pub scenario: String,
    /// The subject.
    pub subject: String,
    /// What was expected.
    pub expected: Verdict,
    /// What came, the worst of all trials.
    pub verdict: Verdict,
    /// The trials.
    pub trials: Vec<TrialSummary>,
}

/// A trial for programs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TrialSummary {
    /// What came of it.
    pub verdict: Verdict,
    /// Why.
    pub why: String,
    /// Its seed.
    pub seed: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The file with its history.
    pub history: String,
}

/// The cells for programs.
pub fn summary(cells: &[Cell]) -> Vec<CellSummary> {
    let trial = |cell: &Cell, trial: &Trial| TrialSummary {
        verdict: trial.verdict,
        why: trial.why.clone(),
        seed: trial.seed,
        took_ms: u64::try_from(trial.took.as_millis()).unwrap_or(u64::MAX),
        history: history_file(cell, trial),
    };
    let of = |cell: &Cell| CellSummary {
        scenario: cell.scenario.about().name.to_owned(),
        subject: cell.subject.to_string(),
        expected: cell.expected.verdict,
        verdict: cell.verdict(),
        trials: cell.trials.iter().map(|one| trial(cell, one)).collect(),
    };
    cells.iter().map(of).collect()
}

fn history_file(cell: &Cell, trial: &Trial) -> String {
    format!("{}.{}.jsonl", cell_name(cell), trial.seed)
}

fn cell_name(cell: &Cell) -> String {
    format!("{}.{}", cell.scenario.about().name, cell.subject.to_string().replace('/', "-"))
}

/// Makes a directory for a report, and sees whether it can be written to.
///
/// # Errors
/// In words, when it cannot.
pub fn prepare(into: &Path) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", into.display());
    fs::create_dir_all(into).map_err(at)?;
    tempfile::tempfile_in(into).map_err(at).map(drop)
}

/// Writes the histories, the servers' logs of what did not come out as expected, what they are, a drawing of each cell, and the report.
///
/// # Errors
/// In words, when something cannot be written.
pub fn save(cells: &[Cell], into: &Path) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", into.display());
    fs::create_dir_all(into).map_err(at)?;
    for cell in cells {
        for trial in &cell.trials {
            save_history(trial, &into.join(history_file(cell, trial))).map_err(at)?;
            for (server, log) in &trial.logs {
                let name = format!("{}.{}.{server}.log", cell_name(cell), trial.seed);
                fs::write(into.join(name), log).map_err(at)?;
            }
        }
    }
    for cell in cells {
        if let Some(trial) = cell.worst().filter(|trial| !trial.events.is_empty()) {
            let name = format!("{}.svg", cell_name(cell));
            fs::write(into.join(name), picture(&trial.events)).map_err(at)?;
        }
    }
    let results = serde_json::to_vec_pretty(&summary(cells)).map_err(|error| error.to_string())?;
    fs::write(into.join(RESULTS), results).map_err(at)?;
    write(cells, into)
}

/// Writes the report of an earlier run anew, from its histories.
///
/// # Errors
/// In words, when something cannot be read or written.
pub fn render(dir: &Path) -> Result<(), String> {
    write(&load(dir)?, dir)
}

fn write(cells: &[Cell], into: &Path) -> Result<(), String> {
    let put = |name: &str, text: String| {
        fs::write(into.join(name), text).map_err(|error| format!("{}: {error}", into.join(name).display()))
    };
    put("report.html", page(cells))?;
    put("report.md", guarantees(cells))
}

fn load(dir: &Path) -> Result<Vec<Cell>, String> {
    let path = dir.join(RESULTS);
    let text = fs::read(&path).map_err(|error| {
        format!("{}: {error}; `fencepost lab run --out {}` writes it", path.display(), dir.display())
    })?;
    let cells: Vec<CellSummary> =
        serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    cells.into_iter().map(|cell| loaded(dir, cell)).collect()
}

fn loaded(dir: &Path, cell: CellSummary) -> Result<Cell, String> {
    let CellSummary { scenario: name, subject: on, trials, .. } = cell;
    let scenario = scenarios::named(&name).map_err(|_| format!("this build knows no scenario {name:?}"))?;
    let subject = SUBJECTS.iter().copied().find(|subject| subject.to_string() == on);
    let subject: Subject = subject.ok_or_else(|| format!("this build knows no store {on:?}"))?;
    let expected = scenario.expects(subject).map_err(|_| format!("{name} does not apply to {on} in this build"))?;
    let of = |trial: TrialSummary| {
        let path = dir.join(&trial.history);
        let file = fs::File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let history = fencepost_history::read(BufReader::new(file));
        let history = history.whole().map_err(|broken| format!("{}: {broken}", path.display()))?;
        let event =
            |recorded: &fencepost_history::Recorded| recorded.event.clone().map(|name| history.text(name).to_owned());
        let events = history.events().iter().map(event).collect();
        let findings = check(&history, &Options::default());
        let TrialSummary { verdict, why, seed, took_ms, .. } = trial;
        Ok(Trial { verdict, why, seed, events, logs: Vec::new(), findings, took: Duration::from_millis(took_ms) })
    };
    let trials = trials.into_iter().map(of).collect::<Result<_, String>>()?;
    Ok(Cell { scenario, subject, expected, trials })
}

/// On which of these subjects a scenario is not played, by the reasons, save those that stand apart.
fn not_played(scenario: &dyn Scenario, on: &[Subject]) -> Vec<(&'static str, Vec<Subject>)> {
    by_reason(on.iter().filter_map(|subject| match scenario.expects(*subject) {
        Err(NotPlayed::Because(why)) => Some((why, *subject)),
        Err(NotPlayed::Apart) | Ok(_) => None,
    }))
}

/// Those of these subjects that stand apart, by what holds of them.
fn apart(on: &[Subject]) -> Vec<(&'static str, Vec<Subject>)> {
    by_reason(on.iter().filter_map(|subject| Some((subject.apart()?, *subject))))
}

fn by_reason(said: impl Iterator<Item = (&'static str, Subject)>) -> Vec<(&'static str, Vec<Subject>)> {
    let mut reasons: Vec<(&'static str, Vec<Subject>)> = Vec::new();
    for (why, subject) in said {
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, subjects)) => subjects.push(subject),
            None => reasons.push((why, vec![subject])),
        }
    }
    reasons
}

fn titles(subjects: &[Subject]) -> String {
    subjects.iter().map(|on| on.title()).collect::<Vec<_>>().join("; ")
}

/// A scenario's name and its cells, by their columns.
type Row<'a> = (&'static str, BTreeMap<usize, &'a Cell>);

/// The cells as a table: the subjects that occur, and a row for each scenario.
fn table<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> (Vec<Subject>, Vec<Row<'a>>) {
    let columns: Vec<Subject> =
        SUBJECTS.iter().copied().filter(|on| cells.clone().any(|cell| cell.subject == *on)).collect();
    let mut rows: Vec<Row<'a>> = Vec::new();
    for cell in cells {
        let name = cell.scenario.about().name;
        let column = columns.iter().position(|on| *on == cell.subject).unwrap_or_default();
        match rows.iter_mut().find(|row| row.0 == name) {
            Some(row) => drop(row.1.insert(column, cell)),
            None => rows.push((name, BTreeMap::from([(column, cell)]))),
        }
    }
    (columns, rows)
}

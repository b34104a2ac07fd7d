//! `docs/guarantees.md`: the matrix and the stories, without anything that differs from run to run.

use std::fmt::Write;

use super::{apart, not_played, table, titles};
use crate::{agent::Client, run::Cell, verdict::Verdict};

const HEAD: &str = "\
# What holds, and what breaks

What came of it when each store was brought into each danger, on real servers with real processes. This page is generated
from a run of the laboratory: a test plays every cell and fails when one differs from this page.
`fencepost lab run --out DIR` plays them on your machine and draws what happened.

";

/// The page.
pub fn guarantees(cells: &[Cell]) -> String {
    let mut text = HEAD.to_owned();
    verdicts(&mut text);
    matrix(&mut text, cells);
    stories(&mut text, cells);
    text
}

/// The rows of the short matrix.
const IN_SHORT: [&str; 8] = [
    "contention",
    "holder-killed",
    "cut-off",
    "kleppmann-pause",
    "write-in-flight",
    "restart-without-data",
    "crash-before-replication",
    "redlock-clock-jump",
];

/// The matrix for the README: this library alone, and the dangers that tell most.
pub fn short(cells: &[Cell]) -> String {
    let mut text = String::new();
    let ours: Vec<Cell> = cells
        .iter()
        .filter(|cell| cell.subject.client == Client::Library && cell.subject.everywhere())
        .cloned()
        .collect();
    let (columns, rows) = table(ours.iter());
    let heads: Vec<_> = columns.iter().map(|on| on.title()).collect();
    line(&mut text, &format!("| danger | {} |", heads.join(" | ")));
    line(&mut text, &format!("|---|{}", "---|".repeat(columns.len())));
    for (name, row) in rows.iter().filter(|(name, _)| IN_SHORT.contains(name)) {
        let Some(title) = row.values().next().map(|cell| cell.scenario.about().title) else { continue };
        let of = |column| row.get(&column).map_or("–", |cell| cell.verdict().word());
        let cells: Vec<_> = (0..columns.len()).map(of).collect();
        line(&mut text, &format!("| [{title}](docs/guarantees.md#{name}) | {} |", cells.join(" | ")));
    }
    text
}

fn verdicts(text: &mut String) {
    line(text, "| verdict | meaning |\n|---|---|");
    for verdict in Verdict::ALL.into_iter().filter(|verdict| verdict.tells()) {
        line(text, &format!("| {verdict} | {} |", verdict.means()));
    }
    line(
        text,
        "\nA danger that was not reached counts as VACUOUS, a store that is not installed as NOT-RUN, and neither as success.\n",
    );
}

fn matrix(text: &mut String, cells: &[Cell]) {
    line(text, "## The matrix\n");
    one_matrix(text, cells.iter().filter(|cell| cell.subject.everywhere()));
    line(text, "\nStandbys, a pool, and what is often done with them, in the dangers that are theirs:\n");
    one_matrix(text, cells.iter().filter(|cell| !cell.subject.everywhere()));
    line(text, "\n– is not played there. Each scenario says below why, except of these:\n");
    for (why, on) in apart(&table(cells.iter()).0) {
        line(text, &format!("- {}: {why}", titles(&on)));
    }
    line(text, "");
}

fn one_matrix<'a>(text: &mut String, cells: impl Iterator<Item = &'a Cell> + Clone) {
    let (columns, rows) = table(cells);
    let heads: Vec<_> = columns.iter().map(|on| on.title()).collect();
    line(text, &format!("| scenario | {} |", heads.join(" | ")));
    line(text, &format!("|---|{}", "---|".repeat(columns.len())));
    for (name, row) in &rows {
        let of = |column| row.get(&column).map_or("–", |cell| cell.verdict().word());
        let cells: Vec<_> = (0..columns.len()).map(of).collect();
        line(text, &format!("| [{name}](#{name}) | {} |", cells.join(" | ")));
    }
}

fn stories(text: &mut String, cells: &[Cell]) {
    line(text, "## The scenarios\n");
    let (columns, rows) = table(cells.iter());
    for (name, row) in rows {
        let Some(cell) = row.values().next() else { continue };
        let about = cell.scenario.about();
        line(text, &format!("### {name}\n\n**{}.** {}\n", about.title, about.why));
        for (number, step) in (1..).zip(about.steps) {
            line(text, &format!("{number}. {step}"));
        }
        line(text, "");
        for cell in row.values() {
            line(text, &format!("- {}: **{}**, {}", cell.subject.title(), cell.verdict(), cell.expected.because));
        }
        for (why, on) in not_played(cell.scenario, &columns) {
            line(text, &format!("- {}: –, {why}", titles(&on)));
        }
        line(text, &format!("\nSource: {}. Again: `fencepost lab run {name}`\n", about.source));
    }
    while text.ends_with("\n\n") {
        text.pop();
    }
}

fn line(text: &mut String, line: &str) {
    // Writing into a string does not fail.
    let _ = writeln!(text, "{line}");
}

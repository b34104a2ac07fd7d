//! The HTML page.

use fencepost_history::Event;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{table, timeline};
use crate::{run::Cell, verdict::Verdict};

const STYLE: &str = include_str!("style.css");

/// One self-contained page: no script, no font, no picture from anywhere.
pub fn page(cells: &[Cell]) -> String {
    let (columns, rows) = table(cells.iter());
    let unexpected = cells.iter().filter(|cell| !cell.as_expected()).count();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { "What holds, and what breaks" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                a.skip href="#matrix" { "To the matrix" }
                header {
                    h1 { "What holds, and what breaks" }
                    p {
                        "Each store was brought into each danger, on real servers with real processes. "
                        (cells.len()) " cells, "
                        @if unexpected == 0 { "all as expected." } @else { strong { (unexpected) " not as expected." } }
                    }
                }
                main {
                    section aria-labelledby="matrix" {
                        h2 id="matrix" { "The matrix" }
                        div.scroll tabindex="0" role="region" aria-labelledby="matrix" {
                            table {
                                thead { tr {
                                    th scope="col" { "scenario" }
                                    @for on in &columns { th scope="col" { (on.title()) } }
                                } }
                                tbody { @for (name, row) in &rows {
                                    tr {
                                        th scope="row" { a href={"#" (name)} { (name) } }
                                        @for column in 0..columns.len() {
                                            td { @match row.get(&column) {
                                                Some(cell) => (verdict_link(cell)),
                                                None => span.none title="does not apply" { "–" },
                                            } }
                                        }
                                    }
                                } }
                            }
                        }
                        (verdicts())
                        (drawing_key())
                    }
                    @for (name, row) in &rows { (story(name, &row.values().copied().collect::<Vec<_>>())) }
                }
            }
        }
    }
    .into_string()
}

/// A history's drawing as a file of its own.
pub fn picture(events: &[Event]) -> String {
    let drawing = timeline::drawing(events).into_string();
    // The page's own style serves it too: the same colours, in light and in dark.
    let styled = format!("><style>{STYLE}svg {{ background: var(--card); }}</style>");
    drawing.replacen('>', &styled, 1)
}

fn anchor(cell: &Cell) -> String {
    format!("{}-{}", cell.scenario.about().name, cell.subject.to_string().replace('/', "-"))
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Ok => "verdict ok",
        Verdict::Blocked => "verdict blocked",
        Verdict::OverlapFenced => "verdict fenced",
        Verdict::Overlap | Verdict::DoubleGrant => "verdict broken",
        Verdict::Unknown | Verdict::Vacuous | Verdict::NotRun | Verdict::Infrastructure => "verdict nothing",
    }
}

fn verdict_link(cell: &Cell) -> Markup {
    let verdict = cell.verdict();
    html! {
        a class=(class(verdict)) href={"#" (anchor(cell))} { (verdict.word()) }
        @if !cell.as_expected() { span.unexpected { "expected " (cell.expected.verdict.word()) } }
    }
}

fn verdicts() -> Markup {
    html! {
        details {
            summary { "What the verdicts mean" }
            dl { @for verdict in Verdict::ALL {
                dt { span class=(class(verdict)) { (verdict.word()) } }
                dd { (verdict.means()) }
            } }
        }
    }
}

fn drawing_key() -> Markup {
    html! {
        details {
            summary { "How to read the drawings" }
            p {
                "Each client has a lane. The thick bar is how long it " em { "believes" } " that it holds; the thin bar below "
                "is how long the store surely " em { "holds" } " for it. A dotted line: it waits. A hatched lane: it is paused. "
                "A cross at the end of a lane: it died. Above the resource's line stands each write that was accepted (a filled "
                "dot) and each that was refused (a cross), in the colour of its client; small rings are reads."
            }
        }
    }
}

fn story(name: &str, cells: &[&Cell]) -> Markup {
    let Some(first) = cells.first() else { return html! {} };
    let about = first.scenario.about();
    html! {
        section aria-labelledby=(name) {
            h2 id=(name) { (about.title) }
            p { (about.why) }
            ol { @for step in about.steps { li { (step) } } }
            p.source { "Source: " (about.source) }
            @for cell in cells { (played(cell)) }
            p.up { a href="#matrix" { "Back to the matrix" } }
        }
    }
}

fn played(cell: &Cell) -> Markup {
    let Some(trial) = cell.worst() else { return html! {} };
    let as_expected = cell.trials.iter().filter(|trial| trial.verdict == cell.expected.verdict).count();
    html! {
        article id=(anchor(cell)) {
            h3 { (cell.subject.title()) " " span class=(class(cell.verdict())) { (cell.verdict().word()) } }
            p {
                @if cell.as_expected() { "As expected: " } @else { "Expected " (cell.expected.verdict.word()) ", since " }
                (cell.expected.because) "."
                @if cell.trials.len() > 1 { " " (as_expected) " of " (cell.trials.len()) " trials came out so." }
            }
            @if !trial.events.is_empty() {
                div.scroll tabindex="0" role="region" aria-label={"What happened: " (cell.subject.title())} {
                    (timeline::drawing(&trial.events))
                }
            }
            @if !trial.findings.list.is_empty() {
                ul.findings { @for finding in &trial.findings.list { li { (finding.said) } } }
            } @else {
                p { (trial.why) "." }
            }
            p.again { code { (cell.again(trial)) } }
        }
    }
}

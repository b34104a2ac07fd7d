//! The HTML page.

use fencepost_history::{Event, Finding, Findings, History, Measures, Recorded};
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::{apart, not_played, table, timeline, titles};
use crate::{run::Cell, subject::Subject, verdict::Verdict};

const STYLE: &str = include_str!("style.css");

/// One self-contained page: no script, no font, no picture from anywhere.
pub fn page(cells: &[Cell]) -> String {
    let (columns, rows) = table(cells.iter());
    let unexpected = cells.iter().filter(|cell| !cell.as_expected()).count();
    let title = "What holds, and what breaks";
    framed(
        title,
        &html! {
            a.skip href="#matrix" { "To the matrix" }
            header {
                h1 { (title) }
                p {
                    "Each store was brought into each danger, on real servers with real processes. "
                    (cells.len()) " cells, "
                    @if unexpected == 0 { "all as expected." } @else { strong { (unexpected) " not as expected." } }
                }
            }
            main {
                section aria-labelledby="matrix" {
                    h2 id="matrix" { "The matrix" }
                    (matrix(cells))
                    @for (why, on) in apart(&columns) { p { "– at " (titles(&on)) ": " (why) "." } }
                    (verdicts())
                    (drawing_key())
                }
                @for (name, row) in &rows { (story(name, &row.values().copied().collect::<Vec<_>>(), &columns)) }
            }
        },
    )
}

/// A page of one's own history.
pub fn history(title: &str, history: &History, findings: &Findings, verdict: Verdict) -> String {
    let shown = excerpt(history, findings);
    let Measures { grants, operations, unknown, longest_idle, .. } = findings.measures;
    framed(
        title,
        &html! {
            a.skip href="#findings" { "To the findings" }
            header {
                h1 { (title) }
                p { span class=(class(verdict)) { (verdict.word()) } " " (verdict.means()) "." }
                p {
                    (grants) " grants, " (operations) " operations at resources, " (unknown) " of unknown outcome; unused while wanted for "
                    (longest_idle / 1_000_000) " ms at most."
                }
            }
            main {
                section aria-labelledby="drawing" {
                    h2 id="drawing" { "What happened" }
                    @if shown.len() < history.events().len() {
                        p { "Drawn are " (shown.len()) " of " (history.events().len()) " events, around the first finding." }
                    }
                    (scrolled("What happened", &timeline::drawing(history, shown)))
                    (timeline::legend())
                    (drawing_key())
                }
                section aria-labelledby="findings" {
                    h2 id="findings" { "What was found" }
                    @if findings.list.is_empty() { p { "Nothing was wrong." } }
                    ul.findings { @for finding in findings.list.iter().take(MOST_FOUND) {
                        li { (lines_of(finding)) ": " (finding.said) }
                    } }
                    @if findings.list.len() > MOST_FOUND {
                        p { "And " (findings.list.len() - MOST_FOUND) " more; " code { "fencepost lab check" } " lists them all." }
                    }
                    (verdicts())
                }
            }
        },
    )
}

/// So many findings are listed on a page.
const MOST_FOUND: usize = 500;

/// So many events are drawn.
const MOST_DRAWN: usize = 400;

/// The events around the first finding; all of them where they are few.
fn excerpt<'a>(history: &'a History, findings: &Findings) -> &'a [Recorded] {
    let events = history.events();
    if events.len() <= MOST_DRAWN {
        return events;
    }
    let first = findings.list.first().map_or(0, |finding| events.partition_point(|one| one.event.at < finding.at));
    let begin = first.saturating_sub(MOST_DRAWN / 2).min(events.len() - MOST_DRAWN);
    &events[begin..begin + MOST_DRAWN]
}

fn lines_of(finding: &Finding) -> String {
    let lines: Vec<_> = finding.lines.iter().map(u32::to_string).collect();
    format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, lines.join(" and "))
}

/// A page around its body.
fn framed(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
    .into_string()
}

/// What may be wider than a phone, and is reached by keyboard.
fn scrolled(label: &str, what: &Markup) -> Markup {
    html! { div.scroll tabindex="0" role="region" aria-label=(label) { (what) } }
}

fn matrix(cells: &[Cell]) -> Markup {
    let (columns, rows) = table(cells.iter());
    scrolled(
        "The matrix",
        &html! {
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
                                None => span.none title="not played: see below" { "–" },
                            } }
                        }
                    }
                } }
            }
        },
    )
}

/// A history's drawing as a file of its own.
pub fn picture(events: &[Event]) -> String {
    let history = History::of(events.iter().cloned());
    let drawing = timeline::drawing(&history, history.events()).into_string();
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
                "Each client has a lane and a colour. The thick bar is how long it " em { "believes" } " that it holds; the thin bar "
                "below is how long the store surely " em { "holds" } " for it. Where the first goes on without the second, it is "
                "wrong. What was done to one client stands in its lane, what was done to the store goes over all of them. At the "
                "resource stands what it accepted and refused, in the colour of whose grant it was done under. What a mark is "
                "shows when the pointer rests on it."
            }
        }
    }
}

fn story(name: &str, cells: &[&Cell], columns: &[Subject]) -> Markup {
    let Some(first) = cells.first() else { return html! {} };
    let about = first.scenario.about();
    html! {
        section aria-labelledby=(name) {
            h2 id=(name) { (about.title) }
            p { (about.why) }
            ol { @for step in about.steps { li { (step) } } }
            p.source { "Source: " (about.source) }
            @for cell in cells { (played(cell)) }
            @for (why, on) in not_played(first.scenario, columns) { p { "Not played on " (titles(&on)) ": " (why) "." } }
            (timeline::legend())
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
                @let history = History::of(trial.events.iter().cloned());
                @let label = format!("What happened: {}", cell.subject.title());
                (scrolled(&label, &timeline::drawing(&history, history.events())))
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

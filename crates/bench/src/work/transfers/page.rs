//! What was measured as a table and a picture for docs/choosing.md.

use std::fmt::Write;

use maud::{Render, html};
use serde::Deserialize;

use super::{Transfer, Way};

/// A report's transfers for readers.
#[derive(Debug)]
pub struct Page {
    /// In Markdown.
    pub table: String,
    /// An SVG file.
    pub picture: String,
}

/// What of a report belongs here.
#[derive(Debug, Deserialize)]
struct Measured {
    cores: usize,
    outcomes: Vec<Workers>,
}

#[derive(Debug, Deserialize)]
struct Workers {
    size: usize,
    #[serde(default)]
    transfers: Vec<Transfer>,
}

/// Reads what `fencepost bench --only transfers --json` said.
///
/// # Errors
/// When it is something else.
pub fn page(report: &str) -> Result<Page, serde_json::Error> {
    let measured: Measured = serde_json::from_str(report)?;
    Ok(Page { table: table(&measured), picture: picture(&measured) })
}

impl Way {
    /// For people.
    pub fn says(self) -> &'static str {
        match self {
            Way::Bare => "read, write, unprotected",
            Way::Lock => "Fencepost lock, read, write",
            Way::Watch => "WATCH, read, EXEC",
            Way::CompareAndSet => "read, compare and set",
            Way::Script => "one script",
            Way::Version => "read, write if unchanged",
            Way::ForUpdate => "SELECT FOR UPDATE, write",
            Way::Statement => "one statement",
        }
    }
}

impl Measured {
    /// The ways, in their order.
    fn ways(&self) -> Vec<(&str, Way)> {
        let mut ways = Vec::new();
        for transfer in self.outcomes.iter().flat_map(|outcome| &outcome.transfers) {
            if !ways.contains(&(transfer.store.as_str(), transfer.way)) {
                ways.push((transfer.store.as_str(), transfer.way));
            }
        }
        ways
    }

    /// Accounts and workers, in their order.
    fn sizes(&self) -> Vec<(usize, usize)> {
        let mut sizes = Vec::new();
        for outcome in &self.outcomes {
            for transfer in &outcome.transfers {
                if !sizes.contains(&(transfer.accounts, outcome.size)) {
                    sizes.push((transfer.accounts, outcome.size));
                }
            }
        }
        sizes.sort_unstable();
        sizes
    }

    fn of(&self, way: (&str, Way), (accounts, workers): (usize, usize)) -> Option<&Transfer> {
        let outcomes = self.outcomes.iter().filter(|outcome| outcome.size == workers);
        let mut all = outcomes.flat_map(|outcome| &outcome.transfers);
        all.find(|transfer| (transfer.store.as_str(), transfer.way) == way && transfer.accounts == accounts)
    }
}

fn table(measured: &Measured) -> String {
    let sizes = measured.sizes();
    let mut table = "| | ".to_owned();
    for (accounts, workers) in &sizes {
        put(&mut table, format_args!("| {accounts} accounts, {} ", counted(*workers)));
    }
    table.push_str("|\n|---|---");
    sizes.iter().for_each(|_| table.push_str("|---:"));
    table.push_str("|\n");
    for (store, way) in measured.ways() {
        put(&mut table, format_args!("| {store} | {} ", way.says()));
        for size in &sizes {
            match measured.of((store, way), *size) {
                Some(transfer) => put(&mut table, format_args!("| {} ", told(transfer))),
                None => table.push_str("| "),
            }
        }
        table.push_str("|\n");
    }
    put(
        &mut table,
        format_args!(
            "\nTransfers per second on {} processors; behind it, times the lock of the same store.\n",
            measured.cores
        ),
    );
    table
}

fn told(transfer: &Transfer) -> String {
    let mut told = format!("{:.0}", transfer.per_second);
    if transfer.way != Way::Lock {
        put(&mut told, format_args!(" × {:.1}", transfer.by_lock));
    }
    if transfer.conflicts >= 0.005 {
        put(&mut told, format_args!(", {:.2} conflicts each", transfer.conflicts));
    }
    if transfer.lost != 0 {
        told.push_str(", **wrong**");
    }
    told
}

fn counted(workers: usize) -> String {
    if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") }
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 330.0;
/// For the figure behind the longest bar.
const RIGHT: f64 = 130.0;
const ROW: f64 = 22.0;

/// Light and dark, as the reader's system has it.
const STYLE: &str = "text{font:13px sans-serif;fill:#1f2328}.head{font-weight:600}.free{fill:#0969da}.lock{fill:#bc4c00}\
                     .bare{fill:#d0d7de}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.free{fill:#4493f8}\
                     .lock{fill:#db6d28}.bare{fill:#3d444d}}";

/// Bars for the most workers: a group for each store and number of accounts, with a scale of its own.
fn picture(measured: &Measured) -> String {
    let most = measured.sizes().into_iter().map(|(_, workers)| workers).max().unwrap_or_default();
    let sizes: Vec<_> = measured.sizes().into_iter().filter(|(_, workers)| *workers == most).collect();
    let mut stores: Vec<_> = measured.ways().into_iter().map(|(store, _)| store).collect();
    stores.dedup();
    let mut groups = Vec::new();
    for store in stores {
        for size in &sizes {
            let ways = measured.ways().into_iter().filter(|(of, _)| *of == store);
            let bars: Vec<_> = ways.filter_map(|way| measured.of(way, *size)).collect();
            groups.push((format!("{store}, {} accounts, {}", size.0, counted(size.1)), bars));
        }
    }
    let title = "Transfers per second: a lock around reading and writing, and what needs none";
    let height = 30.0 + groups.iter().map(|(_, bars)| ROW * (bars.len() as f64 + 1.5)).sum::<f64>();
    let mut y = 30.0;
    html! {
        svg xmlns="http://www.w3.org/2000/svg" viewBox={"0 0 " (WIDTH) " " (height)} role="img" aria-label=(title) {
            style { (STYLE) }
            text x="0" y="16" class="head" { (title) }
            @for (head, bars) in &groups {
                @let longest = bars.iter().map(|bar| bar.per_second).fold(1.0, f64::max);
                ({ y += ROW; "" })
                text x="0" y=(y) class="head" { (head) }
                @for bar in bars {
                    ({ y += ROW; "" })
                    @let width = (bar.per_second / longest * (WIDTH - LEFT - RIGHT) * 10.0).round() / 10.0;
                    text x="12" y=(y) { (bar.way.says()) }
                    rect class=(class(bar.way)) x=(LEFT) y=(y - 12.0) width=(width) height="15" {}
                    text x=(LEFT + width + 6.0) y=(y) { (format!("{:.0}", bar.per_second)) @if bar.lost != 0 { " (wrong)" } }
                }
                ({ y += ROW / 2.0; "" })
            }
        }
    }
    .render()
    .into_string()
}

fn class(way: Way) -> &'static str {
    match way {
        Way::Bare => "bare",
        Way::Lock => "lock",
        Way::Watch | Way::CompareAndSet | Way::Script | Way::Version | Way::ForUpdate | Way::Statement => "free",
    }
}

fn put(text: &mut String, what: std::fmt::Arguments<'_>) {
    text.write_fmt(what).expect("a string takes everything");
}

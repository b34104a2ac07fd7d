//! `lab check`: judges a history.

use std::{
    fs::File,
    io::{BufReader, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Args;
use fencepost_history::{Findings, History, Options, Reading};
use fencepost_lab::Verdict;

use crate::{
    arguments::{Global, values::span},
    exit::{Ending, say},
    listing, when,
};

#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(super) source: Source,
    #[command(flatten)]
    limits: Limits,
}

/// Where a history is from.
#[derive(Debug, Args)]
pub(super) struct Source {
    /// The history; - for stdin
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    /// Use what can be read, although some lines cannot
    #[arg(long)]
    rest: bool,
}

/// What is borne.
#[derive(Debug, Args)]
struct Limits {
    /// By how much an expiry in the store may be early: its clock may be coarser, or faster
    #[arg(long, value_name = "SPAN", default_value = "2ms", value_parser = span)]
    tolerance: Duration,
    /// BLOCKED when nobody has the lock for so long while somebody wants it
    #[arg(long, value_name = "SPAN", default_value = "600ms", value_parser = span)]
    longest_idle: Duration,
    /// BLOCKED when a waiter is passed over more often than this [default: any number]
    #[arg(long, value_name = "N")]
    most_bypassed: Option<u64>,
    /// BLOCKED when a dead holder's lock comes free later than this [default: whenever]
    #[arg(long, value_name = "SPAN", value_parser = span)]
    slowest_recovery: Option<Duration>,
}

pub(super) fn check(global: &Global, verb: &Check) -> Result<Ending, Ending> {
    let history = verb.source.read()?;
    let limits = &verb.limits;
    let options = Options {
        tolerance: nanos(limits.tolerance),
        most_bypassed: limits.most_bypassed,
        slowest_recovery: limits.slowest_recovery.map(nanos),
    };
    let findings = fencepost_history::check(&history, &options);
    let verdict = Verdict::of_all(&findings, nanos(limits.longest_idle));
    crate::print(&if global.json {
        format!("{}\n", listing::to_json(&findings))
    } else {
        described(&findings, verdict)
    });
    Ok(match verdict {
        Verdict::Ok => Ending::done(),
        verdict => Ending::coded("found", verdict.exit_code()),
    })
}

impl Source {
    /// The history; broken lines are told, and refused unless the rest of it is wanted.
    pub(super) fn read(&self) -> Result<History, Ending> {
        let Reading { history, broken, foreign } = fencepost_history::read(BufReader::new(opened(&self.file)?));
        let file = self.file.display();
        if let Some(foreign) = foreign {
            let why = broken.first().map_or_else(String::new, |first| format!("; line {}: {}", first.line, first.why));
            return Err(Ending::usage(format!("{file} is no history of locks: {foreign}{why}")));
        }
        for broken in broken.iter().take(20) {
            say(&format!("{file}, line {}: {}", broken.line, broken.why));
        }
        match broken.len() {
            0 => Ok(history),
            _ if self.rest => Ok(history),
            count => Err(Ending::usage(format!(
                "{} cannot be read; --rest uses the others, and docs/history.md has the format",
                if count == 1 { "1 line".to_owned() } else { format!("{count} lines") }
            ))),
        }
    }
}

fn opened(file: &Path) -> Result<Box<dyn Read>, Ending> {
    if file == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    let opened = File::open(file).and_then(|opened| {
        // Opening a directory succeeds, and reading it does not.
        if opened.metadata()?.is_dir() { Err(std::io::ErrorKind::IsADirectory.into()) } else { Ok(opened) }
    });
    match opened {
        Ok(opened) => Ok(Box::new(opened)),
        Err(error) => Err(Ending::usage(format!("{}: {error}", file.display()))),
    }
}

fn described(findings: &Findings, verdict: Verdict) -> String {
    let mut text = String::new();
    for finding in &findings.list {
        let lines: Vec<_> = finding.lines.iter().map(u32::to_string).collect();
        let lines = format!("line{} {}", if lines.len() == 1 { "" } else { "s" }, lines.join(" and "));
        // Names in a history may be anybody's.
        text.push_str(&format!("{lines}: {}\n", when::harmless(&finding.said)));
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
    if measures.orphans > 0 {
        text.push_str(&format!("{} answers have no question, and count for nothing\n", measures.orphans));
    }
    if measures.grants == 0 {
        text.push_str("there is not one grant in it\n");
    }
    text
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        check: Check,
    }

    #[test]
    fn without_limits_of_its_own_a_history_is_judged_as_in_the_laboratory() {
        let limits = Alone::parse_from(["check", "history.jsonl"]).check.limits;
        assert_eq!(limits.longest_idle, fencepost_lab::IDLE_LIMIT);
        assert_eq!(nanos(limits.tolerance), Options::default().tolerance);
    }
}

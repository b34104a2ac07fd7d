//! The report for people.

use std::fmt;

use super::{Against, Figure, Goal, Latency, Outcome, Report, Transfer};

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} on {} cores; only ratios measured in one run can be compared", self.store, self.cores)?;
        writeln!(f, "\n{:<48}{:>10}{:>10}{:>10}{:>8}  goal", "", "p50", "p99", "per s", "ratio")?;
        self.outcomes.iter().try_for_each(|outcome| write!(f, "{outcome}"))
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("{} {}", self.work.word(), self.size);
        writeln!(f, "{}", Row { title: &title, latency: self.latency, per_second: self.per_second, end: "" })?;
        for against in &self.against {
            write!(f, "{against}")?;
        }
        if self.latency.is_some() && self.against.is_empty() && self.figures.is_empty() {
            writeln!(f, "  no floor")?;
        }
        self.figures.iter().try_for_each(|figure| write!(f, "{figure}"))?;
        self.transfers.iter().try_for_each(|transfer| write!(f, "{transfer}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "  ({note})"))
    }
}

impl fmt::Display for Against {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("  {}", self.floor);
        let end = format!("{:>8.2}  {}", self.ratio, judged(self.goal, self.met));
        let row = Row { title: &title, latency: Some(self.latency), per_second: self.per_second, end: &end };
        writeln!(f, "{row}")
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = if self.value.fract() == 0.0 { 0 } else { 2 };
        let value = format!("{:.digits$} {}", self.value, self.unit);
        writeln!(f, "  {:<46}{:>20}{:18}  {}", self.name, value.trim_end(), "", judged(self.goal, self.met))
    }
}

/// The ratio is to the lock of the same store.
impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let title = format!("  {} in {}: {}", self.accounts, self.store, self.way.says());
        let conflicts =
            if self.conflicts > 0.0 { format!("{:.2} conflicts each", self.conflicts) } else { String::new() };
        let lost = if self.lost == 0 { String::new() } else { format!("wrong by {}", self.lost) };
        let end = format!("{:>8.2}  {conflicts}{lost}", self.by_lock);
        let row = Row { title: &title, latency: Some(self.latency), per_second: Some(self.per_second), end: &end };
        writeln!(f, "{row}")
    }
}

/// One line of the table.
struct Row<'a> {
    title: &'a str,
    latency: Option<Latency>,
    per_second: Option<f64>,
    end: &'a str,
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<48}", self.title)?;
        if let Some(latency) = self.latency {
            let per_second = self.per_second.map(|rate| format!("{rate:.0}")).unwrap_or_default();
            write!(f, "{:>10}{:>10}{per_second:>10}", time(latency.p50_us), time(latency.p99_us))?;
        }
        f.write_str(self.end)
    }
}

fn time(us: f64) -> String {
    if us < 1000.0 { format!("{us:.1} µs") } else { format!("{:.2} ms", us / 1000.0) }
}

fn judged(goal: Option<Goal>, met: Option<bool>) -> String {
    let met = if met == Some(true) { "met" } else { "missed" };
    match goal {
        None => String::new(),
        Some(Goal::AtMost(most)) => format!("≤ {most} {met}"),
        Some(Goal::AtLeast(least)) => format!("≥ {least} {met}"),
    }
}

//! Questions whose answer is a number: what a failover loses, and what the stores cost beside each other.

pub mod cost;
pub mod failover;
mod plot;

use std::{fs, path::Path};

use serde::Serialize;

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// A word for it, which its files are called by.
    pub name: &'static str,
    /// The question.
    pub question: &'static str,
    /// The command that measures it again.
    pub command: String,
    /// Processors of the machine: times differ from one to the next.
    pub cores: usize,
    /// The head of each column.
    pub columns: Vec<&'static str>,
    /// The rows, each with as many cells.
    pub rows: Vec<Vec<String>>,
    /// What the reader has to know.
    pub notes: Vec<&'static str>,
    /// What is drawn of it.
    #[serde(skip)]
    pub(crate) plot: plot::Plot,
}

impl Measured {
    /// A heading, the command, a table and the drawing, as Markdown. `pictures` is where the drawing lies, seen from the
    /// page.
    pub fn markdown(&self, pictures: &str) -> String {
        let Self { question, cores, command, name, .. } = self;
        let head = format!("## {question}\n\nOn {cores} cores, by `{command}`.\n\n");
        let notes: String = self.notes.iter().map(|note| format!("\n{note}\n")).collect();
        format!("{head}{}{notes}\n![{}]({pictures}{name}.svg)\n", self.table(), self.plot.title)
    }

    /// The figures.
    pub fn table(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let columns: Vec<String> = self.columns.iter().map(|head| (*head).to_owned()).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}|{}\n{rows}", line(&columns), "---|".repeat(columns.len()))
    }

    /// Writes it into a directory: a page, the drawing, and the figures for programs.
    ///
    /// # Errors
    /// In words, when something cannot be written.
    pub fn save(&self, into: &Path) -> Result<(), String> {
        fs::create_dir_all(into).map_err(|error| format!("{}: {error}", into.display()))?;
        let figures = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        for (ending, content) in [("md", self.markdown("")), ("svg", self.plot.drawn()), ("json", figures)] {
            let path = into.join(format!("{}.{ending}", self.name));
            fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Milliseconds, with as many digits as mean something.
fn millis(millis: f64) -> String {
    match millis {
        0.0 => "0 ms".to_owned(),
        ..0.01 => "< 0.01 ms".to_owned(),
        ..10.0 => format!("{millis:.2} ms"),
        ..100.0 => format!("{millis:.1} ms"),
        _ => format!("{millis:.0} ms"),
    }
}

/// The middle one; `None` of none.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

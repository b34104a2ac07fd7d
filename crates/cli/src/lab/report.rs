//! `lab report`: pages of what was played, or of somebody's own history.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::Args;
use fencepost_history::Options;
use fencepost_lab::{IDLE_LIMIT, Verdict, report as pages};

use super::check::{Source, nanos};
use crate::exit::{Ending, say};

#[derive(Debug, Args)]
pub(crate) struct Report {
    #[command(flatten)]
    source: Source,
    /// Write the page of a history here [default: beside it, with .html behind its name]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

pub(super) fn report(verb: &Report) -> Result<Ending, Ending> {
    let from = &verb.source.file;
    if from.is_dir() {
        if verb.out.is_some() {
            return Err(Ending::usage(
                "--out is for the page of one history; that of a run is written into its directory",
            ));
        }
        pages::render(from).map_err(Ending::internal)?;
        say(&format!("the report is in {}", from.join("report.html").display()));
        return Ok(Ending::done());
    }
    let history = verb.source.read()?;
    let findings = fencepost_history::check(&history, &Options::default());
    let verdict = Verdict::of_all(&findings, nanos(IDLE_LIMIT));
    let title = if from == Path::new("-") { "A history".to_owned() } else { from.display().to_string() };
    let page = pages::history(&title, &history, &findings, verdict);
    let Some(out) = verb.out.clone().or_else(|| beside(from)) else { return Ok(crate::print(&page)) };
    fs::write(&out, page).map_err(|error| Ending::internal(format!("{}: {error}", out.display())))?;
    say(&format!("the page is in {}", out.display()));
    Ok(Ending::done())
}

/// Where the page of a file goes; that of stdin goes to stdout.
fn beside(file: &Path) -> Option<PathBuf> {
    let mut page = file.as_os_str().to_owned();
    page.push(".html");
    (file != Path::new("-")).then(|| page.into())
}

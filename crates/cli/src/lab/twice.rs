//! `lab twice`: is a job really idempotent?

use std::{ffi::OsString, path::PathBuf, time::Duration};

use clap::Args;
use fencepost_lab::{
    Verdict,
    twice::{self, Difference, Failure},
};

use super::interrupted;
use crate::{
    arguments::Global,
    exit::{self, Ending},
    listing, when,
};

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

pub(super) fn twice(global: &Global, verb: Twice) -> Result<Ending, Ending> {
    let Twice { dir, database, ignore_column, apart, command } = verb;
    let job = twice::Job { command, apart };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Ending::internal(format!("cannot start: {error}")))?;
    let mut signal = None;
    let stop = async { signal = Some(interrupted().await) };
    let outcome = runtime.block_on(async {
        match database {
            None => twice::in_directories(&job, &dir, stop).await,
            Some(url) => twice::in_databases(&job, &url, &ignore_column, stop).await,
        }
    });
    let outcome = outcome.map_err(|failure| {
        let (outcome, code) = match failure {
            Failure::NotFound(_) => ("not_found", exit::NOT_FOUND),
            Failure::NotExecutable(..) => ("not_executable", exit::NOT_EXECUTABLE),
            Failure::Failed(_) => ("failed", exit::INTERNAL),
        };
        Ending::coded(outcome, code).saying(failure.to_string())
    });
    let Some(outcome) = outcome? else {
        return Err(signal.map_or_else(Ending::done, Ending::interrupted));
    };
    crate::print(&if global.json { format!("{}\n", listing::to_json(&outcome)) } else { compared(&outcome) });
    if !outcome.once.well() {
        return Err(Ending::internal("the command failed when it ran alone: there is nothing to compare with"));
    }
    let well = outcome.twice.iter().all(|one| one.well());
    Ok(match outcome.differences.len() {
        0 if well => Ending::done().saying("nothing differs: here the job may run twice"),
        0 => Ending::done().saying("nothing differs, and of the two at once one failed: see whether it is meant to"),
        count => Ending::coded("differs", Verdict::Overlap.exit_code()).saying(format!("{count} differ")),
    })
}

fn compared(outcome: &twice::Outcome) -> String {
    let [first, second] = outcome.twice;
    let mut text = format!("alone: {}; at once: {first} and {second}\n", outcome.once);
    for link in &outcome.outside {
        let link = when::harmless(link);
        text.push_str(&format!(
            "{link}: is a link that leads out of the copy: what is done through it is not looked at\n"
        ));
    }
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

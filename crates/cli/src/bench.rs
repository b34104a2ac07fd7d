//! `bench`: what locks cost on a store, next to what the bare store costs.

use std::{io::IsTerminal, time::Duration};

use fencepost_bench::Plan;
use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    arguments::{Bench, Global},
    exit::Ending,
    listing,
};

/// Measures and prints.
pub(crate) fn measure(global: &Global, verb: Bench) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let url = global.store().map_err(Ending::usage)?;
        let plan = Plan {
            namespace: global.namespace.clone(),
            total: Duration::from_secs(verb.seconds),
            only: verb.only,
            distance: verb.distance,
            beside: verb.beside,
            // Without it the start of the command is left out, which the report says.
            command: std::env::current_exe().ok(),
            ..Plan::new(url)
        };
        let bar = bar(global.quiet, 100);
        let report = fencepost_bench::run(&plan, &mut |next, over| {
            bar.set_position((over * 100.0) as u64);
            bar.set_message(next.to_owned());
        })
        .await;
        bar.finish_and_clear();
        let report = report?;
        Ok(crate::print(&if global.json { format!("{}\n", listing::to_json(&report)) } else { report.to_string() }))
    })
}

/// A bar on stderr where people look at it, else nothing.
pub(crate) fn bar(quiet: bool, steps: u64) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    // The template is ours and sound.
    let style = ProgressStyle::with_template("{bar:30} {percent:>3} %  {elapsed}  {msg}");
    ProgressBar::new(steps).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

//! `man`: the manual pages, made of the same definitions as the help.

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_mangen::Man;

use crate::{arguments::Arguments, exit::Ending};

/// The page about the whole, or about one verb, as roff.
///
/// # Errors
/// When there is no such verb.
pub(crate) fn page(verb: Option<&str>) -> Result<String, Ending> {
    let mut whole = Arguments::command();
    // What every verb takes over from the whole is known from here on.
    whole.build();
    let command = match verb {
        None => Some(&whole),
        Some(verb) => whole.find_subcommand(verb),
    };
    let command = command.ok_or_else(|| Ending::usage("there is no such verb; see `fencepost --help`"))?;
    let mut text = Vec::new();
    render(command, &mut text).map_err(|error| Ending::internal(error.to_string()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn render(command: &Command, out: &mut Vec<u8>) -> io::Result<()> {
    let page = Man::new(command.clone()).source(concat!("fencepost ", env!("CARGO_PKG_VERSION")));
    page.render_title(out)?;
    page.render_name_section(out)?;
    page.render_synopsis_section(out)?;
    page.render_description_section(out)?;
    page.render_options_section(out)?;
    if command.has_subcommands() {
        page.render_subcommands_section(out)?;
    }
    // Examples and exit codes: lines that stay lines.
    for section in command.get_after_help().map(ToString::to_string).iter().flat_map(|text| text.split("\n\n")) {
        let (heading, lines) = section.split_once(':').unwrap_or(("", section));
        writeln!(out, ".SH {}\n.nf", heading.to_uppercase())?;
        for line in lines.trim_matches('\n').lines() {
            // A line that begins with a dot or a quote would be an order to the formatter.
            let line = line.strip_prefix("  ").unwrap_or(line.trim_start());
            writeln!(out, "\\&{}", line.replace('\\', "\\e").replace('-', "\\-"))?;
        }
        writeln!(out, ".fi")?;
    }
    Ok(())
}

//! The command `fencepost`: runs jobs under a lock, takes locks for scripts, shows and breaks them.

mod advise;
mod arguments;
mod bench;
mod elect;
mod exit;
mod fork;
mod grant;
mod guardian;
mod held;
mod keeper;
mod lab;
mod listing;
mod manual;
mod migrate;
mod once;
mod run;
mod signals;
mod supervisor;
mod take;
mod terminal;
mod watched;
mod when;
mod wire;

use std::io::Write;

use clap::CommandFactory;

use crate::{
    arguments::{Arguments, Refusal, Verb},
    exit::Ending,
};

fn main() {
    let (ending, json, quiet) = match Arguments::read() {
        Ok(arguments) => {
            let (json, quiet) = (arguments.global.json, arguments.global.quiet);
            (carry_out(arguments), json, quiet)
        }
        Err(Refusal::Told(text)) => (print(&text), false, false),
        Err(Refusal::Wrong(line)) => (Ending::usage(line), arguments::asks_for_json(), false),
    };
    let code = ending.tell(json, quiet);
    if ending.by_interrupt_key {
        signals::die_of_interrupt();
    }
    // Not a return: a runtime thread that waits for a name server must not hold up the end.
    std::process::exit(i32::from(code))
}

fn carry_out(arguments: Arguments) -> Ending {
    let Arguments { global, verb } = arguments;
    match verb {
        Verb::Run(verb) => run::run(&global, &verb),
        Verb::Once(verb) => once::once(&global, &verb),
        Verb::Elect(verb) => elect::elect(&global, &verb),
        Verb::Observe(named) => listing::observe(&global, &named),
        Verb::Advise(verb) => advise::advise(&global, &verb),
        Verb::Acquire(verb) => keeper::acquire(&global, verb),
        Verb::Renew(verb) => grant::renew(&global, &verb),
        Verb::Check(grant) => grant::check(&global, &grant),
        Verb::Release(grant) => grant::release(&global, &grant),
        Verb::Ls => listing::list(&global),
        Verb::Who(named) => listing::who(&global, &named.name),
        Verb::Break(verb) => listing::break_by_force(&global, &verb),
        Verb::Watch(named) => listing::watch(&global, &named.name),
        Verb::FenceTable(verb) => migrate::fence_table(&global, &verb),
        Verb::Migrate(verb) => migrate::migrate(&global, &verb),
        Verb::Bench(verb) => bench::measure(&global, verb),
        Verb::Lab(verb) => lab::lab(&global, verb),
        Verb::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Arguments::command(), "fencepost", &mut text);
            print(&String::from_utf8_lossy(&text))
        }
        Verb::Man { verb } => manual::page(verb.as_deref()).map_or_else(|ending| ending, |text| print(&text)),
    }
}

/// Writes to stdout what is of use only to whoever reads it.
fn hand_over(text: &str) -> Result<(), Ending> {
    if write(text)? { Ok(()) } else { Err(Ending::internal("nobody reads stdout")) }
}

/// Writes to stdout. A reader that went away is no failure, a full disk is.
fn print(text: &str) -> Ending {
    write(text).map_or_else(|ending| ending, |_| Ending::answered())
}

/// Writes to stdout; answers whether anybody still reads.
fn write(text: &str) -> Result<bool, Ending> {
    let mut stdout = std::io::stdout();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Ending::internal(format!("cannot write to stdout: {error}"))),
    }
}

/// Whether stdout is a pipe or a terminal whose other end is gone.
fn nobody_reads() -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec};
    let stdout = std::io::stdout();
    let mut watched = [PollFd::new(&stdout, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut watched, Some(&at_once)).is_ok()
        && watched[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Begins to log to stderr as far as `-v` was given. Called in the process that does the work.
fn log(verbose: u8) {
    use std::io::IsTerminal;
    use tracing_subscriber::{filter::LevelFilter, fmt::format::FmtSpan};
    let (level, steps) = match verbose {
        0 => return,
        1 => (LevelFilter::DEBUG, FmtSpan::CLOSE),
        _ => (LevelFilter::TRACE, FmtSpan::NEW | FmtSpan::CLOSE),
    };
    let logging = tracing_subscriber::fmt().with_max_level(level).with_span_events(steps);
    logging.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).init();
}

/// Runs `work` on a runtime of this one thread.
fn block_on(work: impl Future<Output = Result<Ending, Ending>>) -> Ending {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Ending::internal(format!("cannot start: {error}")),
    };
    let ending = runtime.block_on(work);
    runtime.shutdown_background();
    ending.unwrap_or_else(|ending| ending)
}

//! Faults of processes.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::scenario::Stop;

/// Sends a signal to a process that the laboratory started.
///
/// # Errors
/// [`Stop::NotInstalled`] when it does not run any more.
pub(crate) fn signal(pid: Option<u32>, signal: Signal) -> Result<(), Stop> {
    kill_process(running(pid)?, signal).map_err(refused)
}

/// The same to a process that leads a group, and to all that it started.
///
/// # Errors
/// As [`signal`].
pub(crate) fn signal_group(leader: Option<u32>, signal: Signal) -> Result<(), Stop> {
    kill_process_group(running(leader)?, signal).map_err(refused)
}

/// Looks whether a process stands still, which it does a moment after it was told to.
///
/// # Errors
/// [`Stop::Ineffective`] when it runs on.
pub(crate) fn stands_still(pid: Option<u32>) -> Result<(), Stop> {
    for _ in 0..200 {
        if state(pid) == "stands still" {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(Stop::Ineffective("the process runs on".to_owned()))
}

/// Whether a process runs, as the kernel lists it.
pub(crate) fn state(pid: Option<u32>) -> &'static str {
    let stat = pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()).unwrap_or_default();
    // The name before it stands in brackets, and may hold anything.
    match stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next()) {
        Some('T' | 't') => "stands still",
        Some(_) => "runs",
        None => "has ended",
    }
}

fn running(pid: Option<u32>) -> Result<Pid, Stop> {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    pid.ok_or_else(|| Stop::NotInstalled("the process does not run".to_owned()))
}

fn refused(error: rustix::io::Errno) -> Stop {
    Stop::NotInstalled(format!("the signal was refused: {error}"))
}

//! Faults of processes.

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

fn running(pid: Option<u32>) -> Result<Pid, Stop> {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    pid.ok_or_else(|| Stop::NotInstalled("the process does not run".to_owned()))
}

fn refused(error: rustix::io::Errno) -> Stop {
    Stop::NotInstalled(format!("the signal was refused: {error}"))
}

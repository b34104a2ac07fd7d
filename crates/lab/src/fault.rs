//! Faults of processes.

use rustix::process::{Pid, Signal, kill_process};

use crate::scenario::Stop;

/// Sends a signal to a process that the laboratory started.
///
/// # Errors
/// [`Stop::NotInstalled`] when it does not run any more.
pub(crate) fn signal(pid: Option<u32>, signal: Signal) -> Result<(), Stop> {
    let pid = pid.and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| Stop::NotInstalled("the process does not run".to_owned()))?;
    kill_process(pid, signal).map_err(|error| Stop::NotInstalled(format!("the signal was refused: {error}")))
}

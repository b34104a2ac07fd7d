//! A disk that takes its time: `strace` holds a process up whenever it waits for what it wrote to be on the disk.

use std::{
    fs,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use crate::lan::Place;

/// The disk of one process. As fast as before when dropped.
#[derive(Debug)]
pub struct SlowDisk(Child);

impl SlowDisk {
    /// Makes each `fdatasync` of this process take so much longer.
    ///
    /// # Errors
    /// In words, when `strace` is missing or may not do that.
    pub fn of(pid: Option<u32>, delay: Duration) -> Result<Self, String> {
        let pid = pid.ok_or("the process does not run")?;
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync", "-e"]);
        strace.arg(format!("inject=fdatasync:delay_enter={}", delay.as_micros())).args(["-p", &pid.to_string()]);
        strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = Place::default().spawn(&mut strace, "KILL");
        let mut slow =
            Self(child.map_err(|error| format!("strace cannot be run, install the package strace: {error}"))?);
        for _ in 0..500 {
            if is_traced(pid) {
                return Ok(slow);
            }
            if slow.0.try_wait().is_ok_and(|ended| ended.is_some()) {
                break;
            }
            thread::sleep(Duration::from_millis(10));
        }
        Err("strace may not trace another process here: that needs the right to ptrace it".to_owned())
    }

    /// Whether a process is held up by one.
    pub fn is_of(pid: Option<u32>) -> bool {
        pid.is_some_and(is_traced)
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether all of its threads are.
fn is_traced(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let traced = |status: String| status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"));
    threads.flatten().all(|thread| fs::read_to_string(thread.path().join("status")).is_ok_and(traced))
}

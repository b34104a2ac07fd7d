//! Processes of this very test program, which a test starts and kills.

use std::{
    fs::OpenOptions,
    io::Write,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};

/// Far more than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(120);

/// What a process is to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    Atomic(crate::atomic::Job),
    Claims(crate::claims::Job),
    Fenced(crate::fenced::Job),
    Rates(crate::rates::Job),
    Requests(crate::requests::Job),
    Shadows(crate::shadows::Job),
    SingleWriter(crate::single_writer::Job),
    Updates(crate::updates::Job),
}

const JOB: &str = "FENCEPOST_TEST_JOB";

/// Starts a process, killed when dropped.
pub(crate) fn start(job: &Job) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::the_work_of_a_process", "--nocapture"]).stdout(Stdio::null());
    Running(command.env(JOB, serde_json::to_string(job).unwrap()).spawn().unwrap())
}

/// Does nothing unless this is a process that a test has started.
#[test]
fn the_work_of_a_process() {
    let Ok(job) = std::env::var(JOB) else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    match serde_json::from_str(&job).unwrap() {
        Job::Atomic(job) => runtime.block_on(job.work()),
        Job::Claims(job) => runtime.block_on(job.work()),
        Job::Fenced(job) => runtime.block_on(job.work()),
        Job::Rates(job) => runtime.block_on(job.work()),
        Job::Requests(job) => runtime.block_on(job.work()),
        Job::Shadows(job) => runtime.block_on(job.work()),
        Job::SingleWriter(job) => runtime.block_on(job.work()),
        Job::Updates(job) => runtime.block_on(job.work()),
    }
}

pub(crate) struct Running(Child);

impl Running {
    /// As `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    /// A process that has failed makes no progress, and the test would wait for it in vain.
    fn has_not_failed(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none_or(|status| status.success()), "a process failed");
    }

    pub(crate) fn ended(mut self) {
        for _ in 0..LONG.as_millis() / 10 {
            if let Some(status) = self.0.try_wait().unwrap() {
                assert!(status.success(), "a process failed");
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("a process does not end");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Eight processes at work, two of which are killed one after the other when `progress` has risen by `step` since.
pub(crate) fn eight_of_which_two_are_killed(job: impl Fn(u32) -> Job, step: usize, progress: impl Fn() -> usize) {
    let mut all: Vec<_> = (0..8).map(|number| start(&job(number))).collect();
    for _ in 0..2 {
        let before = progress();
        eventually(|| {
            all.iter_mut().for_each(Running::has_not_failed);
            progress() >= before + step
        });
        all.remove(0).kill();
    }
    all.into_iter().for_each(Running::ended);
}

/// Appends a line in one piece.
pub(crate) fn note(log: &Path, line: &str) {
    let mut log = OpenOptions::new().append(true).create(true).open(log).unwrap();
    log.write_all(format!("{line}\n").as_bytes()).unwrap();
}

pub(crate) fn lines(log: &Path) -> Vec<String> {
    std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Asks until it is so.
pub(crate) fn eventually(mut is_so: impl FnMut() -> bool) {
    for _ in 0..LONG.as_millis() / 5 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("it never came to be");
}

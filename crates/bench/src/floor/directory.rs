//! The floor of a directory: the bare system calls on a file in it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::mpsc,
    thread,
    time::Duration,
};

use fencepost::{Error, ErrorKind, Namespace, Owner, clock::Moment, error::Operation};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::{Errno, pwrite},
};

use crate::{
    floor::{Beside, Commands, Cycle, Floor, Measured, Measuring},
    report::Goal,
    samples::{Samples, now},
};

/// In this time a thread that was asked to wait is asleep in flock.
const FALLS_ASLEEP: Duration = Duration::from_micros(300);

/// Files of a namespace that is removed in the end: a lock's file stays for its fence, and a bench makes thousands.
#[derive(Debug)]
pub(crate) struct DirectoryFloor {
    namespace: Namespace,
    directory: PathBuf,
    calls: BareCalls,
    unlock: BareUnlock,
}

impl DirectoryFloor {
    pub(crate) fn new(base: &str) -> Result<Self, Error> {
        let namespace = Namespace::new(format!("bench-{}", Owner::random()?))?;
        // Letters, digits and a hyphen: the directory store calls the namespace's directory just so.
        let directory = Path::new(base).join(namespace.as_str());
        let (calls, unlock) = (BareCalls(directory.clone()), BareUnlock(directory.clone()));
        Ok(Self { namespace, directory, calls, unlock })
    }

    pub(crate) fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl Floor for DirectoryFloor {
    fn cycles(&self) -> Vec<Measured<'_>> {
        vec![Measured {
            what: "open, flock, pwrite of a counter, close",
            cycle: &self.calls,
            time_goal: Some(Goal::AtMost(1.5)),
            throughput_goal: None,
            at_once: true,
        }]
    }

    fn message(&self) -> Measured<'_> {
        Measured {
            what: "a thread that waits in flock",
            cycle: &self.unlock,
            time_goal: None,
            throughput_goal: None,
            at_once: false,
        }
    }

    fn beside(&self, _name: &str) -> Option<Beside> {
        let mut command = Command::new("flock");
        command.arg(self.directory.join("floor-start")).arg("true");
        Some(Beside { what: "flock x true", command, goal: Some(Goal::AtMost(2.0)) })
    }

    fn commands(&self) -> Measuring<'_, Option<Commands>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    fn uncounted(&self) -> &'static str {
        "no commands to count: the store has no server"
    }

    fn tidy(&self) {
        // What cannot be removed is clutter of a few kilobytes, and nobody's lock.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

#[derive(Debug)]
struct BareCalls(PathBuf);

impl Cycle for BareCalls {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let path = file(&self.0, name);
        Box::pin(async move {
            let mut counter = 0u64;
            samples
                .fill(until, async || {
                    counter += 1;
                    let file = opened(&path).map_err(failed)?;
                    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(failed)?;
                    pwrite(&file, &counter.to_le_bytes(), 0).map_err(failed)?;
                    drop(file);
                    Ok(())
                })
                .await
        })
    }
}

/// From the unlocking to the moment at which another thread has it.
#[derive(Debug)]
struct BareUnlock(PathBuf);

impl Cycle for BareUnlock {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let path = file(&self.0, name);
        Box::pin(async move {
            let (ask, asked) = mpsc::channel::<()>();
            let (tell, told) = mpsc::channel();
            let theirs = opened(&path).map_err(failed)?;
            let waiter = thread::spawn(move || {
                while asked.recv().is_ok() {
                    let got = flock(&theirs, FlockOperation::LockExclusive).map(|()| now());
                    let unlocked = flock(&theirs, FlockOperation::Unlock);
                    if tell.send(got.and_then(|at| unlocked.map(|()| at))).is_err() {
                        break;
                    }
                }
            });
            let ours = opened(&path).map_err(failed)?;
            loop {
                flock(&ours, FlockOperation::LockExclusive).map_err(failed)?;
                // A receiver that is gone shows as an answer that does not come.
                let _ = ask.send(());
                thread::sleep(FALLS_ASLEEP);
                let before = now();
                flock(&ours, FlockOperation::Unlock).map_err(failed)?;
                let at = told.recv().unwrap_or(Err(Errno::INTR)).map_err(failed)?;
                samples.record(at.since(before));
                if now() >= until {
                    break;
                }
            }
            drop(ask);
            // It has nothing to answer any more.
            let _ = waiter.join();
            Ok(())
        })
    }
}

fn file(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("floor-{}", name.replace('/', "-")))
}

fn opened(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)
}

fn failed(errno: Errno) -> Error {
    Error::new(ErrorKind::Unavailable, Operation::Run, "the bare system calls failed").caused_by(errno)
}

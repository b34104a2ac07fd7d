//! Signals as something to wait for instead of something that strikes.
//!
//! They are blocked from before the fork on and read from a descriptor, so that none is lost between two states and
//! no handler runs anywhere. The command that is run starts with an empty mask all the same.

use std::io;

use nix::sys::{
    signal::{SigSet, SigmaskHow, Signal},
    signalfd::{SfdFlags, SignalFd},
};

use crate::watched::Watched;

/// What is passed on to the command, or ends a wait.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGTSTP,
];

/// Signals that are held back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held(SigSet);

/// Holds back what is to be passed on, and what would stop us for touching the terminal.
///
/// What is ignored already stays so: `nohup` and a shell's background jobs mean it, and the command inherits it.
///
/// # Errors
/// Only when the system refuses, which it does not.
pub(crate) fn hold() -> io::Result<Held> {
    let ignored = ignored();
    let mut read = SigSet::empty();
    for signal in PASSED_ON.into_iter().filter(|signal| ignored & bit(*signal) == 0) {
        read.add(signal);
    }
    read.add(Signal::SIGCONT);
    let mut blocked = read;
    blocked.add(Signal::SIGTTOU);
    // Only the guardian reads it; blocked from here on so that no child's end is missed.
    blocked.add(Signal::SIGCHLD);
    blocked.thread_block()?;
    Ok(Held(read))
}

/// A descriptor that tells of children that ended or stopped.
///
/// # Errors
/// When no descriptor is to be had.
pub(crate) fn of_children() -> io::Result<SignalFd> {
    let mut children = SigSet::empty();
    children.add(Signal::SIGCHLD);
    children.thread_block()?;
    Ok(SignalFd::with_flags(&children, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Stops this process, and whatever else belongs to its job, as the terminal's stop key would.
///
/// Answers when it is continued, or at once when the system finds that nobody could continue it.
pub(crate) fn stop_this_job() {
    let mut stop = SigSet::empty();
    stop.add(Signal::SIGTSTP);
    // Let through for a moment; nothing else of ours reads it meanwhile.
    let let_through = stop.thread_swap_mask(SigmaskHow::SIG_UNBLOCK);
    let _ = rustix::process::kill_current_process_group(rustix::process::Signal::TSTP);
    if let_through.is_ok() {
        let _ = stop.thread_block();
    }
}

/// The stream of signals that were held back.
#[derive(Debug)]
pub(crate) struct Signals(Watched);

/// A signal that came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caught {
    pub(crate) number: i32,
    /// Whether the kernel sent it, as it does for a key of the terminal, and not another process.
    pub(crate) by_key: bool,
}

/// The size of the kernel's record of one signal (signalfd(2)): first the number, at 8 who sent it (sigaction(2)).
const RECORD: usize = 128;
const SI_KERNEL: i32 = 0x80;

impl Signals {
    /// Begins to read them, inside a runtime.
    ///
    /// # Errors
    /// When no descriptor is to be had.
    pub(crate) fn of(held: Held) -> io::Result<Self> {
        let descriptor = SignalFd::with_flags(&held.0, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Watched::new(descriptor.into()).map(Self)
    }

    /// The next one. Cancel safe.
    pub(crate) async fn next(&self) -> Caught {
        let mut record = [0; RECORD];
        match self.0.read(|descriptor| Ok(rustix::io::read(descriptor, &mut record)?)).await {
            Ok(RECORD) => {
                let field =
                    |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
                Caught { number: field(0), by_key: field(8) == SI_KERNEL }
            }
            _ => std::future::pending().await,
        }
    }

    /// The next one that ends things; stops and continuations are none.
    pub(crate) async fn next_end(&self) -> Caught {
        loop {
            let caught = self.next().await;
            if caught.number == Signal::SIGTSTP as i32 {
                stop_this_job();
            } else if caught.number != Signal::SIGCONT as i32 {
                return caught;
            }
        }
    }
}

/// Dies of the interrupt key as if nothing had held it back. A shell goes on with its script unless the line that was
/// interrupted died of it; the code is 130 all the same. Answers where the signal is ignored.
pub(crate) fn die_of_interrupt() {
    let mut interrupt = SigSet::empty();
    interrupt.add(Signal::SIGINT);
    if interrupt.thread_unblock().is_ok() {
        let _ = nix::sys::signal::raise(Signal::SIGINT);
    }
}

/// Which signals this process was started with as ignored, one bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal as i32 - 1)
}

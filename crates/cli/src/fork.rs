//! What only bare system calls can do: the one early fork, and signals as the command expects them. The only
//! `unsafe` of the project is in this file.
//!
//! The guardian and the keeper must be there before anything can go wrong, cost next to nothing, and outlive the
//! process that started them; a second `exec` of this program would double the start-up time.
#![allow(unsafe_code)]

use std::{io, os::unix::process::CommandExt, process::Command};

use nix::{
    sys::signal::{SigHandler, SigSet, Signal},
    unistd::ForkResult,
};

/// Which of the two processes goes on here.
pub(crate) enum Side {
    /// The one that called.
    Parent,
    /// The new one.
    Child,
}

/// Makes a second process of this one.
///
/// # Errors
/// When there are no processes to be had, or this one has other threads already.
pub(crate) fn fork() -> io::Result<Side> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads run already; a fork would copy only one of them")));
    }
    // SAFETY: what makes `fork` unsafe is other threads, whose locks would stay locked for ever in the new process.
    // There are none: the count above was one, and only the one thread there is could have started another since.
    match unsafe { nix::unistd::fork() }? {
        ForkResult::Parent { .. } => Ok(Side::Parent),
        ForkResult::Child => Ok(Side::Child),
    }
}

/// Makes the kernel tell of children that end, also where this program was started with that ignored: their exit
/// codes would be lost.
///
/// # Errors
/// Only when the system refuses, which it does not.
pub(crate) fn hear_of_children() -> io::Result<()> {
    // SAFETY: what makes `signal` unsafe is the handler that it installs; the default is none.
    unsafe { nix::sys::signal::signal(Signal::SIGCHLD, SigHandler::SigDfl) }?;
    Ok(())
}

/// Lets the command receive every signal from its first instruction on, though this process holds them back.
pub(crate) fn start_unblocked(command: &mut Command) {
    let unblock = || SigSet::empty().thread_set_mask().map_err(io::Error::from);
    // SAFETY: between fork and exec only what is safe inside a signal handler may be called; `pthread_sigmask` on a
    // value of the closure's own is, and it neither allocates nor takes a lock.
    unsafe { command.pre_exec(unblock) };
}

//! What only bare system calls can do: the one early fork, and what a command is started with besides its arguments. The
//! only `unsafe` of the project is in this file.
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

/// Has the kernel kill the command when this process dies, should both processes above it be killed at once.
///
/// The kernel counts the death of the *thread* that starts the command: call this in a process with one thread. It
/// forgets the wish when the command gains rights by its set-user-id bit, and does not extend it to the command's children.
pub(crate) fn end_with_this_process(command: &mut Command) {
    let this_process = rustix::process::getpid();
    let end_with_it = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // It may have died before that call, and then nothing would ever be sent.
        if rustix::process::getppid() == Some(this_process) { Ok(()) } else { Err(rustix::io::Errno::SRCH.into()) }
    };
    // SAFETY: between fork and exec only what is safe inside a signal handler may be called; these are two bare system
    // calls on values of the closure's own, which neither allocate nor take a lock, and so are the errors made of numbers.
    unsafe { command.pre_exec(end_with_it) };
}

//! Lending the terminal to the command's process group and taking it back.

use std::os::fd::OwnedFd;

use rustix::{
    fs::{Mode, OFlags},
    process::Pid,
};

/// The terminal that controls this session.
#[derive(Debug)]
pub(crate) struct Terminal(OwnedFd);

impl Terminal {
    /// The terminal, where this session has one.
    pub(crate) fn of_this_session() -> Option<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open("/dev/tty", flags, Mode::empty()).ok().map(Self)
    }

    /// Whether this process's job has it.
    pub(crate) fn is_ours(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.0).is_ok_and(|group| group == rustix::process::getpgrp())
    }

    /// Gives it to `group`. The signal that punishes a background job for this is blocked in every process that
    /// calls it.
    pub(crate) fn lend(&self, group: Pid) {
        // It fails when the group is gone already, and then nobody misses the terminal.
        let _ = rustix::termios::tcsetpgrp(&self.0, group);
    }

    /// Takes it back from `group`; answers whether that had it.
    pub(crate) fn take_back(&self, group: Pid) -> bool {
        rustix::termios::tcgetpgrp(&self.0).is_ok_and(|holder| holder == group)
            && rustix::termios::tcsetpgrp(&self.0, rustix::process::getpgrp()).is_ok()
    }
}

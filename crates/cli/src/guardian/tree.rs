//! Everything that descends from this process, and how it is ended.
//!
//! This process is a *subreaper*: what loses its parent becomes its child instead of init's, whatever session or
//! process group it moved to. So the tree below it is all that the command ever started, except what it had
//! somebody else start (a service manager, `at`, a container engine).

use std::{collections::HashSet, fs, io};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus},
};

/// Makes this process the one that orphans below it fall to.
///
/// # Errors
/// On kernels older than 3.4.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// What a child did.
pub(crate) enum Change {
    /// This child ended or stopped.
    Of(Pid, WaitStatus),
    /// Nothing new.
    Nothing,
    /// There is no child left, and with it no descendant.
    NoneLeft,
}

/// The next change of a child, without waiting for one.
pub(crate) fn next_change() -> Change {
    match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        Ok(Some((pid, status))) => Change::Of(pid, status),
        Err(Errno::CHILD) => Change::NoneLeft,
        Ok(None) | Err(_) => Change::Nothing,
    }
}

/// Sends `signal` to every descendant outside `except`'s process group. Answers how many it was meant for.
///
/// Processes that are born meanwhile may be missed: for a kill, call it until [`Change::NoneLeft`].
pub(crate) fn signal_all(signal: Signal, except: Option<Pid>) -> usize {
    let mut meant = 0;
    walk(|parent, child| {
        let group = rustix::process::getpgid(Some(child)).ok();
        if except.is_none() || group != except {
            // Who is gone meanwhile, or elsewhere, is not counted; who is protected from us is.
            meant += usize::from(matches!(signal_one(parent, child, signal), Ok(()) | Err(Errno::PERM)));
        }
    });
    meant
}

/// The descendants that have not ended.
pub(crate) fn alive() -> Vec<i32> {
    let mut alive = Vec::new();
    walk(|_, child| {
        if stat(child).is_some_and(|stat| !matches!(stat.state, 'Z' | 'X')) {
            alive.push(child.as_raw_pid());
        }
    });
    alive
}

/// Visits every descendant, along with the process above it.
fn walk(mut visit: impl FnMut(Pid, Pid)) {
    let mut seen = HashSet::new();
    let mut open = vec![rustix::process::getpid()];
    while let Some(parent) = open.pop() {
        for child in children_of(parent) {
            if seen.insert(child) {
                visit(parent, child);
                open.push(child);
            }
        }
    }
}

/// Signals `child` only while it is the process that was seen below `parent`: its number may have passed on to a
/// stranger since.
fn signal_one(parent: Pid, child: Pid, signal: Signal) -> Result<(), Errno> {
    let descriptor = rustix::process::pidfd_open(child, PidfdFlags::empty())?;
    let above = stat(child).and_then(|stat| stat.parent);
    if above != Some(parent) && above != Some(rustix::process::getpid()) {
        return Err(Errno::SRCH);
    }
    rustix::process::pidfd_send_signal(descriptor, signal)
}

fn children_of(pid: Pid) -> Vec<Pid> {
    let tasks = format!("/proc/{}/task", pid.as_raw_pid());
    let mut children = Vec::new();
    for task in fs::read_dir(tasks).into_iter().flatten().flatten() {
        let list = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        children.extend(list.split_ascii_whitespace().filter_map(pid_from));
    }
    children
}

struct Stat {
    state: char,
    parent: Option<Pid>,
}

fn stat(pid: Pid) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The program's name stands in brackets and may hold anything, brackets and spaces included.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    Some(Stat { state: fields.next()?.chars().next()?, parent: fields.next().and_then(pid_from) })
}

fn pid_from(text: &str) -> Option<Pid> {
    text.parse().ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn who_ended_is_not_alive_though_nobody_has_asked_for_its_code() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id().try_into().unwrap();
        assert!(alive().contains(&pid));
        child.kill().unwrap();
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(Pid::from_raw(pid).unwrap()), ended).unwrap();
        assert!(
            !alive().contains(&pid) && children_of(rustix::process::getpid()).contains(&Pid::from_raw(pid).unwrap())
        );
        child.wait().unwrap();
    }
}

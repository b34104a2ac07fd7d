//! The guardian: a small process between this command and the command it runs.
//!
//! It starts the command, knows the lease's deadline and ends the command's whole tree before that passes, whatever
//! becomes of the process that renews the lease: stopped, killed or stuck. On stores where a lock is a descriptor it
//! holds those too, and lets them go only when nothing of the command runs any more.

pub(crate) mod plan;
pub(crate) mod tree;

use std::{
    ffi::{CStr, OsString},
    io,
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::CommandExt,
    },
    process::Command,
    time::Duration,
};

use fencepost::{
    LockName, Namespace,
    clock::{BootClock, Clock, Moment},
};
use nix::sys::signalfd::SignalFd;
use rustix::{
    event::{PollFd, PollFlags},
    process::{Pid, Signal, WaitStatus},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
};

use self::{
    plan::{OnLost, Plan, Step},
    tree::Change,
};
use crate::{
    fork, signals,
    terminal::Terminal,
    wire::{Ended, Line, Order, Report, Start, Told},
};

/// What listings of processes call it, where they do not show the command line.
const NAME: &CStr = c"guardian";

/// What the guardian is to run. Known before the fork.
#[derive(Debug)]
pub(crate) struct Job {
    /// The locks, sorted.
    pub(crate) names: Vec<LockName>,
    /// The store's URL, or what stands for it when it holds a secret.
    pub(crate) store: String,
    pub(crate) namespace: Namespace,
    pub(crate) command: Vec<OsString>,
    pub(crate) on_lost: OnLost,
    pub(crate) grace: Duration,
    /// Where the command writes what it prints, when that is not where this program does.
    pub(crate) stdout: Option<OwnedFd>,
}

/// Guards the command from start to end, as often as it is started. It never returns to what the process was forked from.
pub(crate) fn keep(line: Line, job: &Job) -> ! {
    if let Err(error) = guard(line, job) {
        crate::exit::say(&format!("the guardian cannot work: {error}"));
    }
    std::process::exit(0)
}

fn guard(line: Line, job: &Job) -> io::Result<()> {
    // A name of its own: who kills all that are called like the program kills the other process only, and then this
    // one ends the command.
    nix::sys::prctl::set_name(NAME)?;
    // A group of its own: a signal to the job, or the terminal's keys, must not reach the guardian.
    rustix::process::setpgid(None, None)?;
    tree::adopt_orphans()?;
    let children = signals::of_children()?;
    let mut line = Some(line);
    while let Some(listening) = line {
        line = guard_once(listening, job, &children)?;
    }
    Ok(())
}

/// Waits for the order to start and guards that command to its end. Answers the line unless the other side is gone.
fn guard_once(line: Line, job: &Job, children: &SignalFd) -> io::Result<Option<Line>> {
    let Some(Due { start, locks, lost, signals }) = wait_for_start(&line)? else { return Ok(None) };
    let not_started = |locks: Vec<OwnedFd>, why| {
        drop(locks);
        line.send(&why, &[])
    };
    if locks.len() != start.descriptors {
        // The kernel leaves out what this process may not open any more: the lock would be free with the other side's end.
        let too_many = rustix::io::Errno::MFILE.raw_os_error();
        not_started(locks, Report::NotStarted(too_many))?;
        return Ok(Some(line));
    }
    let plan = Plan::new(job.on_lost, job.grace, start.deadline.map(Moment::from_nanos));
    if lost || !plan.may_start(BootClock.now()) {
        not_started(locks, Report::TooLate)?;
        return Ok(Some(line));
    }
    let command = match spawn(job, &start.told) {
        Ok(command) => command,
        Err(error) => {
            not_started(locks, Report::NotStarted(error.raw_os_error().unwrap_or(0)))?;
            return Ok(Some(line));
        }
    };
    if start.terminal
        && let Some(terminal) = Terminal::of_this_session()
    {
        terminal.lend(command);
        // It may have reached for the terminal before it had it, and been stopped for that.
        let _ = rustix::process::kill_process_group(command, Signal::CONT);
    }
    let timer = rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?;
    let line = Some(line);
    let mut guardian =
        Guardian { line, locks, command, end: None, plan, timer, children, unkillable: Vec::new(), left_behind: 0 };
    guardian.report(&Report::Started(command.as_raw_pid()));
    signals.into_iter().for_each(|signal| guardian.pass_on(signal));
    guardian.watch()?;
    Ok(guardian.line)
}

/// The order to start, with all that was ordered since: this process may have been paused, and the lease renewed or
/// lost meanwhile.
struct Due {
    start: Start,
    locks: Vec<OwnedFd>,
    lost: bool,
    signals: Vec<i32>,
}

/// `None` when the other side is gone: nothing is started for nobody.
fn wait_for_start(line: &Line) -> io::Result<Option<Due>> {
    let mut due: Option<Due> = None;
    loop {
        match (line.receive::<Order>(), &mut due) {
            (Ok(Some((Order::Start(start), locks))), _) => {
                due = Some(Due { start, locks, lost: false, signals: Vec::new() });
            }
            (Ok(Some((Order::Deadline(deadline), _))), Some(due)) => due.start.deadline = Some(deadline),
            (Ok(Some((Order::Lost, _))), Some(due)) => due.lost = true,
            (Ok(Some((Order::Signal(signal), _))), Some(due)) => due.signals.push(signal),
            (Ok(Some(_)), None) => {} // about a command that is not yet to be
            (Ok(None), _) => return Ok(None),
            (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(line, PollFlags::IN)])?;
            }
            (Err(error), Some(_)) if error.kind() == io::ErrorKind::WouldBlock => return Ok(due),
            (Err(error), _) => return Err(error),
        }
    }
}

/// Starts the command in a process group of its own, with every signal as this program found it.
fn spawn(job: &Job, told: &Told) -> io::Result<Pid> {
    let [program, arguments @ ..] = &job.command[..] else { return Err(io::ErrorKind::InvalidInput.into()) };
    let mut command = prepared(program.clone(), job, told)?;
    command.args(arguments);
    let child = match command.spawn() {
        // A script without a `#!` line, which shells run as well.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOEXEC.raw_os_error()) => {
            prepared("/bin/sh".into(), job, told)?.arg(program).args(arguments).spawn()
        }
        spawned => spawned,
    }?;
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("a process without a number"))
}

fn prepared(program: OsString, job: &Job, told: &Told) -> io::Result<Command> {
    let mut command = Command::new(program);
    command.process_group(0);
    if let Some(stdout) = &job.stdout {
        command.stdout(stdout.try_clone()?);
    }
    // All that it takes to name the grant. A `fencepost` in the command uses the same store and namespace, however this
    // one was told of them, unless it is told otherwise itself.
    command.env("FENCEPOST_STORE", &job.store).env("FENCEPOST_NAMESPACE", job.namespace.as_str());
    let names = lines(&job.names);
    command.env("FENCEPOST_LOCK", names).env("FENCEPOST_OWNER", lines(&told.owners));
    let slots: Vec<_> = told.slots.iter().map(u32::to_string).collect();
    let term = told.term.map_or_else(String::new, |term| term.to_string());
    for (variable, value) in
        [("FENCEPOST_FENCE", lines(&told.fences)), ("FENCEPOST_SLOTS", slots.join(",")), ("FENCEPOST_TERM", term)]
    {
        if value.is_empty() {
            // An outer `fencepost` may have set it for another lock.
            command.env_remove(variable);
        } else {
            command.env(variable, value);
        }
    }
    fork::start_unblocked(&mut command);
    fork::end_with_this_process(&mut command);
    Ok(command)
}

/// One for each lock, in the order of their names. A name has no line break.
fn lines<T: ToString>(all: &[T]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

struct Guardian<'a> {
    /// `None` once the other side is gone.
    line: Option<Line>,
    locks: Vec<OwnedFd>,
    /// The command's pid, and the number of its process group.
    command: Pid,
    /// How the command itself ended.
    end: Option<WaitStatus>,
    plan: Plan,
    timer: OwnedFd,
    children: &'a SignalFd,
    unkillable: Vec<i32>,
    left_behind: usize,
}

impl Guardian<'_> {
    /// Until nothing of the command is left, or what is left cannot be killed.
    fn watch(&mut self) -> io::Result<()> {
        loop {
            let none_left = self.reap();
            if none_left && self.end.is_some() {
                return self.finish();
            }
            self.take_orders();
            let now = BootClock.now();
            match self.plan.due(now) {
                Some(Step::GiveUp) => {
                    self.unkillable = tree::alive();
                    return self.finish();
                }
                Some(step) => self.take(step),
                None => self.sleep()?,
            }
        }
    }

    /// Takes in what children did; answers whether none is left.
    fn reap(&mut self) -> bool {
        while let Ok(Some(_)) = self.children.read_signal() {}
        loop {
            match tree::next_change() {
                Change::NoneLeft => return true,
                Change::Nothing => {
                    if self.end.is_some() {
                        self.plan.left_behind(BootClock.now());
                    }
                    return false;
                }
                Change::Of(pid, status) if pid == self.command => match status.stopping_signal() {
                    Some(signal) => self.report(&Report::Stopped(signal)),
                    None => self.end = Some(status),
                },
                Change::Of(..) => {}
            }
        }
    }

    fn take_orders(&mut self) {
        while let Some(line) = &self.line {
            let now = BootClock.now();
            match line.receive::<Order>() {
                Ok(Some((Order::Deadline(deadline), _))) => self.plan.extend(Moment::from_nanos(deadline)),
                Ok(Some((Order::Signal(signal), _))) => self.pass_on(signal),
                Ok(Some((Order::Lost, _))) => {
                    let step = self.plan.lost(now);
                    step.into_iter().for_each(|step| self.take(step));
                }
                Ok(Some((Order::Start(_), _))) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Ok(None) | Err(_) => {
                    self.line = None;
                    let step = self.plan.orphaned(now);
                    step.into_iter().for_each(|step| self.take(step));
                }
            }
        }
    }

    fn pass_on(&self, signal: i32) {
        let Some(signal) = Signal::from_named_raw(signal) else { return };
        if self.end.is_none() {
            let _ = rustix::process::kill_process_group(self.command, signal);
        } else {
            // The group may be gone and its number a stranger's; what is left is found by descent.
            tree::signal_all(signal, None);
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Term => self.ask_to_end(),
            Step::Kill | Step::GiveUp => self.kill(),
        }
    }

    fn ask_to_end(&mut self) {
        let group = self.end.is_none().then_some(self.command);
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, Signal::TERM);
        }
        let reach = tree::signal_all(Signal::TERM, group);
        if group.is_none() {
            self.left_behind = reach;
        }
        // Continued as well: a stopped process would not see it before the KILL.
        tree::signal_all(Signal::CONT, None);
    }

    fn kill(&mut self) {
        if self.end.is_none() {
            // The group first and at once, so that it cannot fork away from under the walk.
            let _ = rustix::process::kill_process_group(self.command, Signal::KILL);
        }
        tree::signal_all(Signal::KILL, None);
    }

    fn sleep(&self) -> io::Result<()> {
        arm(&self.timer, self.plan.wake_at())?;
        let children = self.children.as_fd();
        let mut watched =
            vec![PollFd::new(&self.timer, PollFlags::IN), PollFd::from_borrowed_fd(children, PollFlags::IN)];
        watched.extend(self.line.as_ref().map(|line| PollFd::new(line, PollFlags::IN)));
        poll(&mut watched)
    }

    /// Lets the lock go first and tells then, so that whoever is told finds it free.
    fn finish(&mut self) -> io::Result<()> {
        self.locks.clear();
        let signal = self.end.and_then(WaitStatus::terminating_signal);
        let code = match signal {
            Some(signal) => 128 + signal,
            None => self.end.and_then(WaitStatus::exit_status).unwrap_or(i32::from(u8::MAX)),
        };
        self.report(&Report::Ended(Ended {
            code: u8::try_from(code).unwrap_or(u8::MAX),
            signal,
            for_the_lease: self.plan.is_for_the_lease(),
            left_behind: self.left_behind,
            unkillable: self.unkillable.clone(),
        }));
        Ok(())
    }

    fn report(&self, report: &Report) {
        if let Some(line) = &self.line {
            // A reader that is gone shows as the end of the line.
            let _ = line.send(report, &[]);
        }
    }
}

fn arm(timer: &OwnedFd, at: Option<Moment>) -> io::Result<()> {
    // Zero disarms it, which a deadline must not do.
    let nanos = at.map_or(0, |at| at.as_nanos().max(1));
    let it_value = Timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
    rustix::time::timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}

fn poll(watched: &mut [PollFd<'_>]) -> io::Result<()> {
    match rustix::event::poll(watched, None) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

//! `fencepost run`: takes the lock, has the guardian start the command, and ends as the command ends.

use std::{io, time::Duration};

use fencepost::{
    Attempt, Lease, Locks, Ttl,
    claim::LossReason,
    clock::{self, BootClock, Clock, Moment},
    url::StoreUrl,
};
use rustix::process::{Pid, Signal};

use crate::{
    arguments::{Global, Run},
    exit::{self, Ending},
    fork::{self, Side},
    guardian::{
        self, Job,
        plan::{KILLING_LASTS, OnLost},
        tree,
    },
    signals::{self, Signals},
    take::{self, Opened, Patience, Takes},
    terminal::Terminal,
    watched::Watched,
    wire::{Ended, Line, Order, Report, Start},
};

/// Carries the verb out.
pub(crate) fn run(global: &Global, run: Run) -> Ending {
    let patience = Patience::begin(run.taking.wait);
    let store = match global.store() {
        Ok(store) => StoreUrl::passed_on(&store),
        Err(line) => return Ending::usage(line),
    };
    let job = Job {
        name: run.name.clone(),
        store,
        namespace: global.namespace.clone(),
        command: run.command.clone(),
        on_lost: run.on_lost,
        grace: run.grace(),
    };
    let (line, held) = match fork_guardian(&job) {
        Ok(forked) => forked,
        Err(error) => return Ending::internal(format!("cannot start the guardian: {error}")),
    };
    crate::log(global.verbose);
    crate::block_on(async {
        let work = Work {
            global,
            run: &run,
            patience,
            line: line.watched().map_err(broken)?,
            signals: Signals::of(held).map_err(broken)?,
            terminal: Terminal::of_this_session(),
        };
        if run.on_lost == OnLost::Ignore && !global.quiet {
            exit::say("warning: with --on-lost ignore the command runs on without the lock when the lease is lost");
        }
        work.open().await
    })
}

/// Before any thread exists: the guardian is a copy of this process.
fn fork_guardian(job: &Job) -> io::Result<(Line, signals::Held)> {
    let held = signals::hold()?;
    fork::hear_of_children()?;
    // Should the guardian be killed, the command falls to this process, which ends it.
    tree::adopt_orphans()?;
    let (near, far) = Line::pair()?;
    match fork::fork()? {
        Side::Parent => Ok((near, held)),
        Side::Child => {
            drop(near);
            guardian::keep(far, job)
        }
    }
}

struct Work<'a> {
    global: &'a Global,
    run: &'a Run,
    patience: Patience,
    line: Line<Watched>,
    signals: Signals,
    terminal: Option<Terminal>,
}

impl Work<'_> {
    async fn open(&self) -> Result<Ending, Ending> {
        let opened = tokio::select! {
            biased;
            opened = take::open(self.global, self.run.fenced, self.patience) => opened?,
            signal = self.signals.next_end() => return Err(Ending::interrupted(signal)),
        };
        match opened {
            Opened::Fenced(locks) => self.take(&locks).await,
            Opened::Plain(locks) => self.take(&locks).await,
        }
    }

    async fn take<P: Takes>(&self, locks: &Locks<P>) -> Result<Ending, Ending> {
        let request = take::request(locks, &self.run.name, &self.run.taking, self.patience);
        let attempt = tokio::select! {
            biased;
            attempt = take::acquire(self.global, locks, &self.run.name, request) => attempt.map_err(Ending::from),
            signal = self.signals.next_end() => Err(Ending::interrupted(signal)),
        };
        let waited = self.patience.spent();
        let ending = match attempt {
            Ok(Attempt::Acquired(lease)) => self.hold(lease, waited).await,
            Ok(Attempt::Busy(busy)) => Ending::busy(&self.run.name, &busy, self.run.busy_code),
            Err(ending) => {
                // What the claim may have left in the store goes before this process does.
                locks.close().await;
                ending
            }
        };
        Ok(Ending { waited_ms: Some(millis(waited)), ..ending })
    }

    async fn hold<P: Takes>(&self, mut lease: Lease<P>, waited: Duration) -> Ending {
        let began = BootClock.now();
        let fence = P::fence(&lease).map(|fence| fence.get());
        let ending = match self.start(&lease, fence) {
            Ok(()) => self.attend(&lease).await,
            Err(error) => Ending::internal(format!("cannot reach the guardian: {error}")),
        };
        self.hold_on(&lease, began).await;
        let held = BootClock.now().since(began);
        let ending = match lease.release().await {
            Ok(_) => ending,
            Err(error) => {
                let note = ending.message.map_or_else(String::new, |message| format!("{message}; "));
                Ending { message: Some(format!("{note}{error}")), ..ending }
            }
        };
        Ending { fence, waited_ms: Some(millis(waited)), held_ms: Some(millis(held)), ..ending }
    }

    fn start<P: Takes>(&self, lease: &Lease<P>, fence: Option<u64>) -> io::Result<()> {
        let lock = lease.descriptor().transpose()?;
        let start = Start {
            owner: lease.owner().to_string(),
            fence,
            deadline: lease.deadline().map(Moment::as_nanos),
            terminal: self.terminal.as_ref().is_some_and(Terminal::is_ours),
        };
        self.tell(&Order::Start(start), lock.as_ref().map(std::os::fd::AsFd::as_fd))
    }

    fn tell(&self, order: &Order, descriptor: Option<std::os::fd::BorrowedFd<'_>>) -> io::Result<()> {
        self.line.send(order, descriptor)
    }

    /// From the start of the command to its end.
    async fn attend<P: Takes>(&self, lease: &Lease<P>) -> Ending {
        let mut lost = None;
        let mut group = None;
        let mut told = lease.deadline();
        loop {
            tokio::select! {
                biased;
                report = self.line.next() => match report {
                    Some(Report::Started(pid)) => group = Pid::from_raw(pid),
                    Some(Report::NotStarted(error)) => return self.not_started(error),
                    Some(Report::TooLate) => return self.too_late(),
                    Some(Report::Stopped(signal)) => self.stop_as_well(signal, group),
                    Some(Report::Ended(ended)) => return self.ended(&ended, group, lost),
                    None => return self.guardian_died(group).await,
                },
                caught = self.signals.next() => {
                    if caught.number == Signal::CONT.as_raw() {
                        self.lend_terminal(group);
                    }
                    // A guardian that is gone is heard of on the line.
                    let _ = self.tell(&Order::Signal(caught.number), None);
                }
                reason = lease.lost(), if lost.is_none() => {
                    lost = Some(reason);
                    if self.run.on_lost == OnLost::Ignore {
                        exit::say(&format!("warning: {reason}; the command runs on without the lock"));
                    }
                    let _ = self.tell(&Order::Lost, None);
                }
                () = self.next_look(told), if lost.is_none() && told.is_some() => {
                    let deadline = lease.deadline();
                    if let Some(deadline) = deadline.filter(|_| deadline > told) {
                        let _ = self.tell(&Order::Deadline(deadline.as_nanos()), None);
                    }
                    told = deadline;
                }
            }
        }
    }

    /// When to look whether the lease was extended: often enough that the guardian hears of each renewal long
    /// before it would ask the command to end.
    async fn next_look(&self, told: Option<Moment>) {
        let left = told.map_or(Duration::MAX, |told| told.since(BootClock.now()));
        let often = self.run.taking.ttl.get().min(left.max(Ttl::MIN)) / 12;
        clock::sleep(&BootClock, often.max(Duration::from_millis(1))).await;
    }

    fn not_started(&self, error: i32) -> Ending {
        let program = self.run.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let error = io::Error::from_raw_os_error(error);
        let (outcome, code) = match error.kind() {
            io::ErrorKind::NotFound => ("not_found", exit::NOT_FOUND),
            _ => ("not_executable", exit::NOT_EXECUTABLE),
        };
        Ending::coded(outcome, code).saying(format!("{program}: {error}"))
    }

    fn too_late(&self) -> Ending {
        let why = "the lease ended before the command could be started; it was not started";
        Ending::coded("lost", exit::LOST).saying(format!("lock {:?}: {why}", self.run.name))
    }

    fn ended(&self, ended: &Ended, group: Option<Pid>, lost: Option<LossReason>) -> Ending {
        let by_interrupt_key = self.take_terminal_back(group, ended.signal);
        let mut said = Vec::new();
        let stopped = ended.for_the_lease || lost.is_some() && self.run.on_lost != OnLost::Ignore;
        let ending = if stopped {
            let why = match lost {
                Some(reason) => format!("the lease is lost: {reason}"),
                None => "the lease could not be renewed in time".into(),
            };
            said.push(format!("lock {:?}: {why}; the command was stopped", self.run.name));
            Ending::coded("lost", exit::LOST)
        } else {
            Ending { by_interrupt_key, ..Ending::coded("ended", ended.code) }
        };
        match ended.left_behind {
            0 => {}
            1 => said.push("1 process that the command left behind was ended".into()),
            many => said.push(format!("{many} processes that the command left behind were ended")),
        }
        said.extend(running_on(&ended.unkillable));
        if said.is_empty() { ending } else { ending.saying(said.join("; ")) }
    }

    /// The command fell to this process, which must not let the lock go while it runs.
    async fn guardian_died(&self, group: Option<Pid>) -> Ending {
        let give_up = BootClock.now().after(KILLING_LASTS);
        let left = loop {
            while let tree::Change::Of(..) = tree::next_change() {}
            if let tree::Change::NoneLeft = tree::next_change() {
                break Vec::new();
            }
            if BootClock.now() >= give_up {
                break tree::alive();
            }
            tree::signal_all(Signal::KILL, None);
            clock::sleep(&BootClock, Duration::from_millis(2)).await;
        };
        self.take_terminal_back(group, None);
        let command = running_on(&left);
        let command = command.unwrap_or_else(|| "the command was killed before the lock was given back".into());
        Ending::internal(format!("the guardian was killed from outside; {command}"))
    }

    /// `--min-hold`: until then, unless the lease is lost or somebody wants this process to end.
    async fn hold_on<P: Takes>(&self, lease: &Lease<P>, began: Moment) {
        let until = began.after(self.run.min_hold);
        if BootClock.now() >= until || lease.check().is_err() {
            return;
        }
        tokio::select! {
            () = BootClock.sleep_until(until) => {}
            _ = lease.lost() => {}
            _ = self.signals.next_end() => {}
        }
    }

    /// The command was stopped from the terminal or for reaching for it: this job stops with it, so that the shell
    /// notices. The guardian's deadline goes on.
    fn stop_as_well(&self, signal: i32, group: Option<Pid>) {
        let by_terminal = [Signal::TSTP, Signal::TTIN, Signal::TTOU].map(Signal::as_raw);
        if !by_terminal.contains(&signal) {
            return; // somebody stopped the command alone; the lease is renewed meanwhile
        }
        self.take_terminal_back(group, None);
        signals::stop_this_job();
        self.lend_terminal(group);
        let _ = self.tell(&Order::Signal(Signal::CONT.as_raw()), None);
    }

    fn lend_terminal(&self, group: Option<Pid>) {
        if let (Some(terminal), Some(group)) = (&self.terminal, group)
            && terminal.is_ours()
        {
            terminal.lend(group);
        }
    }

    /// Answers whether the interrupt key ended the command.
    fn take_terminal_back(&self, group: Option<Pid>, ended_by: Option<i32>) -> bool {
        let (Some(terminal), Some(group)) = (&self.terminal, group) else { return false };
        if !terminal.take_back(group) {
            return false;
        }
        let key = [Signal::INT, Signal::QUIT].into_iter().find(|key| ended_by == Some(key.as_raw()));
        if let Some(key) = key {
            // It reached the command's group alone. The rest of the job, such as the script that this is a line of,
            // would have had it too. This process has it blocked.
            let _ = rustix::process::kill_current_process_group(key);
        }
        key == Some(Signal::INT)
    }
}

/// What there is to say of processes that would not die.
fn running_on(processes: &[i32]) -> Option<String> {
    let which = || format!("these processes could not be ended and run on without the lock: {processes:?}");
    (!processes.is_empty()).then(which)
}

fn broken(error: io::Error) -> Ending {
    Ending::internal(format!("cannot start: {error}"))
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

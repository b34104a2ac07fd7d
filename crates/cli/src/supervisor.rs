//! A command under something held: started through the guardian, attended to, and ended before that is lost.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

use fencepost::{
    LockName, Ttl,
    clock::{self, BootClock, Clock, Moment},
    url::StoreUrl,
};
use rustix::process::{Pid, Signal};

use crate::{
    arguments::{Global, Guarded, Taking},
    exit::{self, Ending},
    fork::{self, Side},
    guardian::{
        self, Job,
        plan::{KILLING_LASTS, OnLost},
        tree,
    },
    held::{Held, Loss},
    signals::{self, Signals},
    take::{self, Opened, Patience},
    terminal::Terminal,
    watched::Watched,
    wire::{Ended, Line, Order, Report, Start},
};

/// What is to be run, and under the locks of which names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Work<'a> {
    pub(crate) global: &'a Global,
    /// Sorted.
    pub(crate) names: &'a [LockName],
    pub(crate) taking: &'a Taking,
    pub(crate) guarded: &'a Guarded,
    /// Where the command writes what it prints; where this program does, unless said otherwise.
    pub(crate) stdout: Option<BorrowedFd<'a>>,
}

/// The process that holds, beside the guardian that runs.
pub(crate) struct Supervisor<'a> {
    pub(crate) work: Work<'a>,
    pub(crate) signals: Signals,
    line: Line<Watched>,
    terminal: Option<Terminal>,
}

/// How the command ended, and how that is told.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ending: Ending,
    pub(crate) end: End,
    /// Whether a signal to this process asked for the end.
    pub(crate) by_our_signal: bool,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself, with this code.
    Code(u8),
    /// It was stopped for the sake of the lease.
    Stopped,
    /// It was not started: the lease had ended before.
    TooLate,
    /// It cannot be started.
    NotStarted,
    /// Nobody knows, or something of it runs on.
    Broken,
}

impl Work<'_> {
    /// Forks the guardian and does `with_it` on a runtime. To be called before any thread exists.
    pub(crate) fn supervise(self, with_it: impl AsyncFnOnce(&Supervisor<'_>) -> Result<Ending, Ending>) -> Ending {
        let Self { global, names, taking, guarded, stdout } = self;
        let stdout = match stdout.map(|stdout| stdout.try_clone_to_owned()).transpose() {
            Ok(stdout) => stdout,
            Err(error) => return broken(error),
        };
        let store = match global.store() {
            Ok(store) => StoreUrl::passed_on(&store),
            Err(line) => return Ending::usage(line),
        };
        let job = Job {
            names: names.to_vec(),
            store,
            namespace: global.namespace.clone(),
            command: guarded.command.clone(),
            on_lost: guarded.on_lost,
            grace: guarded.grace(taking),
            stdout,
        };
        let (line, held) = match fork_guardian(&job) {
            Ok(forked) => forked,
            Err(error) => return Ending::internal(format!("cannot start the guardian: {error}")),
        };
        crate::log(global.verbose);
        crate::block_on(async {
            let supervisor = Supervisor {
                work: self,
                line: line.watched().map_err(broken)?,
                signals: Signals::of(held).map_err(broken)?,
                terminal: Terminal::of_this_session(),
            };
            if guarded.on_lost == OnLost::Ignore && !global.quiet {
                exit::say("warning: with --on-lost ignore the command runs on without the lock when the lease is lost");
            }
            with_it(&supervisor).await
        })
    }
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

impl Supervisor<'_> {
    /// The locks, unless a signal comes first.
    pub(crate) async fn open(&self, patience: Patience) -> Result<Opened, Ending> {
        tokio::select! {
            biased;
            opened = take::open(self.work.global, self.work.guarded.fenced, patience) => opened,
            signal = self.signals.next_end() => Err(Ending::interrupted(signal)),
        }
    }

    /// The command under what is held, from its start to its end.
    pub(crate) async fn run(&self, held: &dyn Held) -> Outcome {
        match self.start(held) {
            Ok(()) => self.attend(held).await,
            Err(error) => {
                let said = format!("cannot hand what is held to the guardian: {error}; the command was not started");
                End::NotStarted.told(Ending::internal(said))
            }
        }
    }

    /// Gives back what was held since `began`, and adds to the ending what there is to say of it.
    pub(crate) async fn give_back(&self, held: Box<dyn Held>, began: Moment, ending: Ending) -> Ending {
        let fences = held.told().fences;
        let lasted = BootClock.now().since(began);
        let ending = match held.give_back().await {
            Ok(()) => ending,
            Err(error) => ending.adding(error.to_string()),
        };
        Ending { held_ms: Some(exit::millis(lasted)), ..ending.with_fences(self.work.names, &fences) }
    }

    fn start(&self, held: &dyn Held) -> io::Result<()> {
        let locks = held.descriptors()?;
        let start = Start {
            told: held.told(),
            descriptors: locks.len(),
            deadline: held.deadline().map(Moment::as_nanos),
            terminal: self.terminal.as_ref().is_some_and(Terminal::is_ours),
        };
        let locks: Vec<_> = locks.iter().map(AsFd::as_fd).collect();
        self.line.send(&Order::Start(start), &locks)
    }

    fn tell(&self, order: &Order) {
        // A guardian that is gone is heard of on the line.
        let _ = self.line.send(order, &[]);
    }

    async fn attend(&self, held: &dyn Held) -> Outcome {
        let mut lost = None;
        let mut group = None;
        let mut told = held.deadline();
        let mut passed_on = Vec::new();
        loop {
            tokio::select! {
                biased;
                report = self.line.next() => match report {
                    Some(Report::Started(pid)) => group = Pid::from_raw(pid),
                    Some(Report::NotStarted(error)) => return self.not_started(error),
                    Some(Report::TooLate) => return self.too_late(),
                    Some(Report::Stopped(signal)) => self.stop_as_well(signal, group),
                    Some(Report::Ended(ended)) => {
                        let outcome = self.ended(&ended, group, lost);
                        let by_our_signal = outcome.by_our_signal || asked_to_end(&passed_on, &ended);
                        return Outcome { by_our_signal, ..outcome };
                    }
                    None => return self.guardian_died(group).await,
                },
                caught = self.signals.next() => {
                    if caught.number == Signal::CONT.as_raw() {
                        self.lend_terminal(group);
                    }
                    passed_on.push(caught.number);
                    self.tell(&Order::Signal(caught.number));
                }
                loss = held.lost(), if lost.is_none() => {
                    if self.work.guarded.on_lost == OnLost::Ignore {
                        exit::say(&format!("warning: {}; the command runs on without the lock", loss.reason));
                    }
                    lost = Some(loss);
                    self.tell(&Order::Lost);
                }
                () = self.next_look(told), if lost.is_none() && told.is_some() => {
                    let deadline = held.deadline();
                    if let Some(deadline) = deadline.filter(|_| deadline > told) {
                        self.tell(&Order::Deadline(deadline.as_nanos()));
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
        let often = self.work.taking.ttl.get().min(left.max(Ttl::MIN)) / 12;
        clock::sleep(&BootClock, often.max(Duration::from_millis(1))).await;
    }

    fn not_started(&self, error: i32) -> Outcome {
        let program = self.work.guarded.command.first().map(|program| program.to_string_lossy()).unwrap_or_default();
        let error = io::Error::from_raw_os_error(error);
        let (outcome, code) = match error.kind() {
            io::ErrorKind::NotFound => ("not_found", exit::NOT_FOUND),
            _ => ("not_executable", exit::NOT_EXECUTABLE),
        };
        End::NotStarted.told(Ending::coded(outcome, code).saying(format!("{program}: {error}")))
    }

    fn too_late(&self) -> Outcome {
        let why = "the lease ended before the command could be started; it was not started";
        End::TooLate.told(Ending::coded("lost", exit::LOST).saying(format!("{}: {why}", self.named(None))))
    }

    /// The lock that a message is about.
    fn named(&self, loss: Option<&Loss>) -> String {
        match (loss, self.work.names) {
            (Some(Loss { name, .. }), _) | (None, [name]) => format!("lock {name:?}"),
            (None, names) => format!("locks {}", exit::listed(names)),
        }
    }

    fn ended(&self, ended: &Ended, group: Option<Pid>, lost: Option<Loss>) -> Outcome {
        let by_interrupt_key = self.take_terminal_back(group, ended.signal);
        let mut said = Vec::new();
        let stopped = ended.for_the_lease || lost.is_some() && self.work.guarded.on_lost != OnLost::Ignore;
        let (mut end, ending) = if stopped {
            let why = match &lost {
                Some(Loss { reason, .. }) => format!("the lease is lost: {reason}"),
                None => "the lease could not be renewed in time".into(),
            };
            said.push(format!("{}: {why}; the command was stopped", self.named(lost.as_ref())));
            (End::Stopped, Ending::coded("lost", exit::LOST))
        } else {
            (End::Code(ended.code), Ending { by_interrupt_key, ..Ending::coded("ended", ended.code) })
        };
        match ended.left_behind {
            0 => {}
            1 => said.push("1 process that the command left behind was ended".into()),
            many => said.push(format!("{many} processes that the command left behind were ended")),
        }
        if let Some(running_on) = running_on(&ended.unkillable) {
            end = End::Broken;
            said.push(running_on);
        }
        end.told(if said.is_empty() { ending } else { ending.saying(said.join("; ")) })
    }

    /// The command fell to this process, which must not let the lock go while it runs.
    async fn guardian_died(&self, group: Option<Pid>) -> Outcome {
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
        End::Broken.told(Ending::internal(format!("the guardian was killed from outside; {command}")))
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
        self.tell(&Order::Signal(Signal::CONT.as_raw()));
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

impl End {
    fn told(self, ending: Ending) -> Outcome {
        // The interrupt key reached the command's process group and not this one.
        Outcome { by_our_signal: ending.by_interrupt_key, ending, end: self }
    }
}

/// Whether signals that were passed on asked for the end of more than the command: those that always mean it, or another
/// that the command died of.
fn asked_to_end(passed_on: &[i32], ended: &Ended) -> bool {
    let ends = [Signal::INT, Signal::QUIT, Signal::TERM].map(Signal::as_raw);
    passed_on.iter().any(|signal| ends.contains(signal) || ended.signal == Some(*signal))
}

/// What there is to say of processes that would not die.
fn running_on(processes: &[i32]) -> Option<String> {
    let which = || format!("these processes could not be ended and run on without the lock: {processes:?}");
    (!processes.is_empty()).then(which)
}

fn broken(error: io::Error) -> Ending {
    Ending::internal(format!("cannot start: {error}"))
}

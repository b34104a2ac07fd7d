//! `acquire`: a lock for a script, with its keeper in the background.

use std::{io, os::fd::OwnedFd};

use fencepost::Locks;
use rustix::{
    event::{PollFd, PollFlags},
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags},
};

use crate::{
    arguments::{Acquire, Global, Way},
    exit::{self, Ending},
    fork::{self, Side},
    held::Held,
    signals::{self, Signals},
    take::{self, Opened, Patience, Takes},
    watched::Watched,
    wire::{Kept, Line, Told},
};

/// Takes a lock and leaves it held.
pub(crate) fn acquire(global: &Global, verb: Acquire) -> Ending {
    let patience = Patience::begin(verb.taking.wait);
    if verb.no_keep {
        crate::log(global.verbose);
        return crate::block_on(take_without_keeper(global, &verb, patience));
    }
    if verb.detach && verb.taking.max_hold.is_none() && stdout_leads_nowhere() {
        return Ending::usage(
            "--detach wants somebody who reads the owner value, and stdout is closed or /dev/null: nobody could give the \
             lock back; bound it with --max-hold",
        );
    }
    let caller = match caller(&verb) {
        Ok(caller) => caller,
        Err(ending) => return ending,
    };
    let forked = Line::pair().and_then(|(near, far)| Ok((near, far, fork::fork()?)));
    match forked {
        Err(error) => Ending::internal(format!("cannot start the keeper: {error}")),
        Ok((near, far, Side::Parent)) => {
            drop(far);
            await_keeper(global, &verb, &near)
        }
        Ok((near, far, Side::Child)) => {
            drop(near);
            let keeper = Keeper { global, verb: &verb, patience };
            let ending = crate::block_on(keeper.keep(far, caller));
            std::process::exit(i32::from(ending.exit_code))
        }
    }
}

/// The process whose end ends the keeping: named, or whoever called. `None` when nobody's does.
fn caller(verb: &Acquire) -> Result<Option<OwnedFd>, Ending> {
    if verb.detach {
        return Ok(None);
    }
    let pid = match verb.for_pid {
        Some(pid) => Pid::from_raw(pid),
        None => rustix::process::getppid(),
    };
    let opened = pid.ok_or(rustix::io::Errno::SRCH).and_then(|pid| {
        // Opened before the lock is asked for: a caller that ends meanwhile is noticed all the same.
        rustix::process::pidfd_open(pid, PidfdFlags::empty())
    });
    opened.map(Some).map_err(|error| {
        let whom = pid.map_or_else(|| "the caller".into(), |pid| format!("process {}", pid.as_raw_pid()));
        Ending::usage(format!("cannot watch {whom}: {error}; name another with --for-pid, or say --detach"))
    })
}

async fn take_without_keeper(global: &Global, verb: &Acquire, patience: Patience) -> Result<Ending, Ending> {
    match take::open(global, verb.fenced, patience).await? {
        Opened::Fenced(locks) => leave_held(&locks, global, verb, patience).await,
        Opened::Plain(locks) => leave_held(&locks, global, verb, patience).await,
    }
}

async fn leave_held<P: Takes>(
    locks: &Locks<P>,
    global: &Global,
    verb: &Acquire,
    patience: Patience,
) -> Result<Ending, Ending> {
    let store = locks.capabilities();
    if !store.expires {
        let said = format!("--no-keep leaves a lock to its TTL, and locks on {} have none", store.store);
        return Err(Ending::coded("unsupported", exit::UNSUPPORTED)
            .saying(format!("{said}: they end with their process; leave --no-keep out")));
    }
    let held = take::attempt(global, locks, verb.wanted.way(), &verb.taking, patience).await?;
    match print(global, verb, Kept::Granted(held.told())) {
        Ok(ending) => {
            // Neither released nor renewed: it is the script's from here on.
            std::mem::forget(held);
            Ok(ending)
        }
        Err(untold) => {
            let released = held.give_back().await;
            locks.close().await;
            Err(not_taken(untold, released.err().map(Ending::from)))
        }
    }
}

/// In the process that was called: waits for the keeper's word and prints it.
fn await_keeper(global: &Global, verb: &Acquire, line: &Line) -> Ending {
    let kept = match hear(line) {
        Ok(Some(kept)) => kept,
        Ok(None) => return Ending::internal("the keeper ended before it held the lock"),
        Err(error) => return Ending::internal(format!("cannot hear the keeper: {error}")),
    };
    match print(global, verb, kept) {
        Ok(ending) => {
            // Only from here on is the lock the script's. Without this word the keeper gives it back.
            let _ = line.send(&Taken, &[]);
            ending
        }
        Err(untold) => {
            line.hang_up();
            match hear(line) {
                Ok(Some(Kept::Failed(release))) => not_taken(untold, Some(release)),
                _ => not_taken(untold, None),
            }
        }
    }
}

/// The keeper's next word; `None` when it has ended.
fn hear(line: &Line) -> io::Result<Option<Kept>> {
    loop {
        match line.receive::<Kept>() {
            Ok(kept) => return Ok(kept.map(|(kept, _)| kept)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = rustix::event::poll(&mut [PollFd::new(line, PollFlags::IN)], None);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The owner value reached nobody, and the lock was given back, unless that failed.
fn not_taken(untold: Ending, release: Option<Ending>) -> Ending {
    let release = release.map_or_else(
        || "the lock was given back".to_owned(),
        |failed| failed.message.unwrap_or_else(|| "the lock could not be given back".to_owned()),
    );
    Ending { message: untold.message.map(|message| format!("{message}; {release}")), ..untold }
}

/// The word that somebody knows the owner value now.
#[derive(serde::Serialize, serde::Deserialize)]
struct Taken;

/// Tells whoever asked for the lock.
///
/// # Errors
/// When the grant was told to nobody.
fn print(global: &Global, verb: &Acquire, kept: Kept) -> Result<Ending, Ending> {
    let told = match kept {
        Kept::Granted(told) => told,
        Kept::Failed(ending) => return Ok(ending),
    };
    let text = if global.json { in_json(verb, &told) } else { in_lines(&told) };
    crate::hand_over(&text)?;
    Ok(Ending::answered())
}

/// A line for each lock: owner value, fence, slots; what is missing at its end is left out.
fn in_lines(told: &Told) -> String {
    let slots = told.slots.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let line = |(number, owner): (usize, &String)| {
        let fence = told.fences.get(number).map(u64::to_string);
        match (fence, &*slots) {
            (None, "") => format!("{owner}\n"),
            (Some(fence), "") => format!("{owner} {fence}\n"),
            (fence, slots) => format!("{owner} {} {slots}\n", fence.unwrap_or_else(|| "-".to_owned())),
        }
    };
    told.owners.iter().enumerate().map(line).collect()
}

/// One object; for several locks a list of them with their names.
fn in_json(verb: &Acquire, told: &Told) -> String {
    let grant = |number: usize| serde_json::json!({ "owner": told.owners[number], "fence": told.fences.get(number) });
    let value = match verb.wanted.way() {
        Way::Alone(_) | Way::BesideReaders(_) => grant(0),
        Way::Permits { .. } => {
            let mut granted = grant(0);
            granted["slots"] = told.slots.as_slice().into();
            granted
        }
        Way::Together(names) => {
            let named = names.iter().enumerate().map(|(number, name)| {
                let mut granted = grant(number);
                granted["name"] = name.as_str().into();
                granted
            });
            named.collect()
        }
    };
    format!("{value}\n")
}

/// Whether what is printed is lost. A stdout that was closed is `/dev/null` by the time that this program runs: the
/// language's runtime sees to that.
fn stdout_leads_nowhere() -> bool {
    let null = rustix::fs::stat("/dev/null").map(|null| null.st_rdev);
    rustix::fs::fstat(rustix::stdio::stdout()).is_ok_and(|stdout| Ok(stdout.st_rdev) == null)
}

/// The process in the background.
struct Keeper<'a> {
    global: &'a Global,
    verb: &'a Acquire,
    patience: Patience,
}

impl Keeper<'_> {
    async fn keep(&self, line: Line, caller: Option<OwnedFd>) -> Result<Ending, Ending> {
        crate::log(self.global.verbose);
        // A session of its own: the terminal's hang-up and keys are meant for the script.
        rustix::process::setsid().map_err(|error| Ending::internal(error.to_string()))?;
        let signals = signals::hold().and_then(Signals::of).map_err(|error| Ending::internal(error.to_string()))?;
        let line = line.watched().map_err(|error| Ending::internal(error.to_string()))?;
        let opened = tokio::select! {
            opened = take::open(self.global, self.verb.fenced, self.patience) => opened,
            () = gone(&line) => return Err(Ending::internal("the caller is gone")),
        };
        match opened {
            Ok(Opened::Fenced(locks)) => self.take(&locks, line, caller, &signals).await,
            Ok(Opened::Plain(locks)) => self.take(&locks, line, caller, &signals).await,
            Err(ending) => self.refuse(&line, ending),
        }
        Ok(Ending::done())
    }

    async fn take<P: Takes>(&self, locks: &Locks<P>, line: Line<Watched>, caller: Option<OwnedFd>, signals: &Signals) {
        let Self { global, verb, patience } = self;
        let attempt = take::attempt(global, locks, verb.wanted.way(), &verb.taking, *patience);
        let attempt = tokio::select! {
            attempt = attempt => Some(attempt),
            () = gone(&line) => None,
            _ = signals.next_end() => None,
        };
        match attempt {
            Some(Ok(held)) => {
                let told = Kept::Granted(held.told());
                if line.send(&told, &[]).is_ok() && line.next::<Taken>().await.is_some() {
                    drop(line);
                    self.watch_over(&*held, caller, signals).await;
                    // An outcome that stays unknown ends with the TTL; there is nobody left to tell.
                    let _ = held.give_back().await;
                } else if let Err(error) = held.give_back().await {
                    self.refuse(&line, error.into());
                }
            }
            Some(Err(ending)) => self.refuse(&line, ending),
            None => {}
        }
        locks.close().await;
    }

    fn refuse(&self, line: &Line<Watched>, ending: Ending) {
        let _ = line.send(&Kept::Failed(ending), &[]);
    }

    /// Until the lease is released by its owner value or lost, the caller is gone, or somebody ends the keeper.
    async fn watch_over(&self, held: &dyn Held, caller: Option<OwnedFd>, signals: &Signals) {
        leave_stdio();
        let caller = caller.and_then(|caller| Watched::new(caller).ok());
        let caller_gone = async {
            match &caller {
                // A process descriptor has something to read once the process has ended.
                Some(caller) => drop(caller.read(|_| Ok(())).await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = held.lost() => {}
            () = caller_gone => {}
            _ = signals.next_end() => {}
        }
    }
}

/// Whoever reads what the script prints must not wait for the keeper's end.
fn leave_stdio() {
    let Ok(null) = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else { return };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

/// Completes when the other side is gone. Nothing is said on the line before the grant.
async fn gone(line: &Line<Watched>) {
    line.next::<Taken>().await;
}

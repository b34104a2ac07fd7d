//! `acquire`: a lock for a script, with its keeper in the background.

use std::{io, os::fd::OwnedFd};

use fencepost::{Lease, Locks};
use rustix::{
    event::{PollFd, PollFlags},
    fs::{Mode, OFlags},
    process::{Pid, PidfdFlags},
};

use crate::{
    arguments::{Acquire, Global},
    exit::{self, Ending},
    fork::{self, Side},
    signals::{self, Signals},
    take::{self, Opened, Patience, Takes, Upkeep},
    watched::Watched,
    wire::{Kept, Line},
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
            await_keeper(global, &near)
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
    let mut lease = take::attempt(global, locks, &verb.name, &verb.taking, patience, Upkeep::ByTheScript).await?;
    match print(global, granted(&lease)) {
        Ok(ending) => {
            // Neither released nor renewed: it is the script's from here on.
            std::mem::forget(lease);
            Ok(ending)
        }
        Err(untold) => {
            let released = lease.release().await;
            locks.close().await;
            Err(not_taken(untold, released.err().map(Ending::from)))
        }
    }
}

/// In the process that was called: waits for the keeper's word and prints it.
fn await_keeper(global: &Global, line: &Line) -> Ending {
    let kept = match hear(line) {
        Ok(Some(kept)) => kept,
        Ok(None) => return Ending::internal("the keeper ended before it held the lock"),
        Err(error) => return Ending::internal(format!("cannot hear the keeper: {error}")),
    };
    match print(global, kept) {
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
fn print(global: &Global, kept: Kept) -> Result<Ending, Ending> {
    let (owner, fence) = match kept {
        Kept::Granted { owner, fence } => (owner, fence),
        Kept::Failed(ending) => return Ok(ending),
    };
    let line = match (global.json, fence) {
        (true, _) => serde_json::json!({ "owner": owner, "fence": fence }).to_string(),
        (false, Some(fence)) => format!("{owner} {fence}"),
        (false, None) => owner,
    };
    crate::hand_over(&format!("{line}\n"))?;
    Ok(Ending::answered())
}

/// Whether what is printed is lost. A stdout that was closed is `/dev/null` by the time that this program runs: the
/// language's runtime sees to that.
fn stdout_leads_nowhere() -> bool {
    let null = rustix::fs::stat("/dev/null").map(|null| null.st_rdev);
    rustix::fs::fstat(rustix::stdio::stdout()).is_ok_and(|stdout| Ok(stdout.st_rdev) == null)
}

fn granted<P: Takes>(lease: &Lease<P>) -> Kept {
    Kept::Granted { owner: lease.owner().to_string(), fence: P::fence(lease).map(|fence| fence.get()) }
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
        let attempt = take::attempt(global, locks, &verb.name, &verb.taking, *patience, Upkeep::ByTheKeeper);
        let attempt = tokio::select! {
            attempt = attempt => Some(attempt),
            () = gone(&line) => None,
            _ = signals.next_end() => None,
        };
        match attempt {
            Some(Ok(mut lease)) => {
                if line.send(&granted(&lease), &[]).is_ok() && line.next::<Taken>().await.is_some() {
                    drop(line);
                    self.watch_over(&lease, caller, signals).await;
                    // An outcome that stays unknown ends with the TTL; there is nobody left to tell.
                    let _ = lease.release().await;
                } else if let Err(error) = lease.release().await {
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
    async fn watch_over<P: Takes>(&self, lease: &Lease<P>, caller: Option<OwnedFd>, signals: &Signals) {
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
            _ = lease.lost() => {}
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

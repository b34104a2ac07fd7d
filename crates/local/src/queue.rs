//! The waiters of one lock, first come first served across processes (W3).
//!
//! Each waiter has a *ticket*, a file in the lock's queue directory. Its number is its place; the flock that its
//! owner keeps on it shows that the owner lives. A ticket appears whole: it is written and locked under another name and
//! then linked to the next free number, which fails when somebody else was faster.
//!
//! Each waiter watches only the live ticket before its own, so one leaving wakes one. If he left because he was granted,
//! which the lock's record tells by his owner value, then nobody is left before it, and it need not list the queue
//! again. Tickets of dead owners are
//! removed by whoever meets them, under the ticket's lock and after a look at the path, so that a number that was given
//! out again is never removed by mistake.

use std::{
    fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use fencepost_core::{
    claim::{self, Claim, Claimant, Waiter},
    name::LockName,
    owner::Owner,
};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use serde::{Deserialize, Serialize};

use crate::{
    directory::Directory,
    encode::Place,
    floor::{as_errno, write_all},
    lockfile::inode_at,
    problem::{Outcome, Problem},
};

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct Ticket {
    pub(crate) number: u64,
    path: PathBuf,
    /// Keeps the lock that shows that we live.
    file: Option<OwnedFd>,
    /// The directory, to be removed if it is empty afterwards.
    queue: Option<EmptyQueue>,
}

/// A queue's directory that may be empty. Dropping it removes it then.
#[derive(Debug)]
pub(crate) struct EmptyQueue(PathBuf);

/// Whoever waits next before somebody.
#[derive(Debug)]
pub(crate) struct Ahead {
    pub(crate) ticket: PathBuf,
    /// Not known of one who has just left.
    pub(crate) owner: Option<Owner>,
}

/// What a ticket tells to people.
#[derive(Debug, Serialize, Deserialize)]
struct Written {
    name: String,
    owner: String,
    claimant: Claimant,
    since_unix_ms: u64,
    #[serde(default)]
    mode: claim::Mode,
}

impl Ticket {
    /// Takes the next place.
    pub(crate) fn take(
        directory: &Directory,
        place: &Place,
        claim: &Claim,
        mode: claim::Mode,
        since_unix_ms: u64,
    ) -> Outcome<Self> {
        let (name, owner) = (place.name.as_str().to_owned(), claim.owner());
        let claimant = (*claim.claimant).clone();
        let text = serde_json::to_vec(&Written { name, owner: owner.to_string(), claimant, since_unix_ms, mode });
        let text = text.unwrap_or_default(); // strings and numbers always become JSON
        loop {
            let Some((file, unnamed)) = write_unnamed(directory, place, owner, &text)? else { continue };
            let numbered = number_it(place, &unnamed);
            // Once it has its number, or never gets one, the first name only clutters the directory.
            let _ = rustix::fs::unlink(&unnamed);
            if let Some(number) = numbered? {
                let path = ticket_path(&place.queue(), number);
                return Ok(Self { number, path, file: Some(file), queue: Some(EmptyQueue(place.queue())) });
            }
        }
    }

    /// What is left to be tidied up once the lock was given back: of that the waiter who was granted need not wait for.
    pub(crate) fn served(&mut self) -> Option<EmptyQueue> {
        self.queue.take()
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Should it fail, the ticket is one of a dead owner as soon as the descriptor is closed.
        let _ = rustix::fs::unlink(&self.path);
        // Closed before the directory goes: a directory that is removed while a file of it is open costs ext4 a
        // millisecond and more when that is closed.
        drop(self.file.take());
    }
}

impl Drop for EmptyQueue {
    fn drop(&mut self) {
        let _ = rustix::fs::rmdir(&self.0); // fails unless it is empty
    }
}

/// The nearest live ticket before `number`.
pub(crate) fn before(place: &Place, number: u64) -> Outcome<Option<Ahead>> {
    let mut bound = number;
    // Mostly there is a live one, or none at all: one pass over the directory is enough.
    while let Some(earlier) = highest_below(&place.queue(), bound)? {
        let ticket = ticket_path(&place.queue(), earlier);
        if lives(&ticket)? {
            let owner = written(&ticket).and_then(|written| written.owner.parse().ok());
            return Ok(Some(Ahead { ticket, owner }));
        }
        bound = earlier;
    }
    Ok(None)
}

/// How many tickets lie before `number`, counting those whose owners died unnoticed.
pub(crate) fn count_before(place: &Place, number: u64) -> Outcome<u64> {
    let mut count = 0;
    each_number(&place.queue(), |found| count += u64::from(found < number))?;
    Ok(count)
}

/// Whether anybody waits; removes what the dead left at the head.
pub(crate) fn anyone(place: &Place) -> Outcome<bool> {
    for number in numbers(&place.queue())? {
        if lives(&ticket_path(&place.queue(), number))? {
            return Ok(true);
        }
    }
    sweep(&place.queue());
    Ok(false)
}

/// How the first live waiter wants the lock; `None` when nobody waits.
pub(crate) fn wanted(place: &Place) -> Outcome<Option<claim::Mode>> {
    for number in numbers(&place.queue())? {
        let ticket = ticket_path(&place.queue(), number);
        if lives(&ticket)?
            && let Some(written) = written(&ticket)
        {
            return Ok(Some(written.mode));
        }
    }
    Ok(None)
}

/// Whether the owner of the ticket lives; a dead one's ticket is removed.
pub(crate) fn lives(ticket: &Path) -> Outcome<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(ticket, flags, Mode::empty()) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(false),
        Err(errno) => return Err(Problem::system("opening", ticket)(errno)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(true),
        Err(errno) => return Err(Problem::system("looking at", ticket)(errno)),
        Ok(()) => {}
    }
    let inode = rustix::fs::fstat(&file).map_err(Problem::system("examining", ticket))?.st_ino;
    if inode_at(ticket)? == Some(inode) {
        match rustix::fs::unlink(ticket) {
            // In a sticky directory only its own user may remove it: the dead are dead all the same.
            Ok(()) | Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {}
            Err(errno) => return Err(Problem::system("removing", ticket)(errno)),
        }
    }
    Ok(false)
}

/// The live waiters, first come first, and the lock that they wait for.
pub(crate) fn waiters(queue: &Path) -> Outcome<Vec<(LockName, Waiter)>> {
    let mut waiters = Vec::new();
    for number in numbers(queue)? {
        let path = ticket_path(queue, number);
        if !lives(&path)? {
            continue;
        }
        let Some(written) = written(&path) else { continue };
        let Ok(name) = LockName::new(written.name) else { continue };
        let since_unix_ms = Some(written.since_unix_ms);
        waiters.push((name, Waiter { claimant: written.claimant, mode: written.mode, since_unix_ms }));
    }
    Ok(waiters)
}

/// What a ticket says; `None` of one who has left.
fn written(ticket: &Path) -> Option<Written> {
    serde_json::from_slice(&fs::read(ticket).ok()?).ok()
}

/// A ticket without a number, locked; `None` when somebody took it for a dead one's before it was locked.
fn write_unnamed(
    directory: &Directory,
    place: &Place,
    owner: &Owner,
    text: &[u8],
) -> Outcome<Option<(OwnedFd, PathBuf)>> {
    let path = place.queue().join(format!("{UNNAMED}{owner}"));
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match rustix::fs::open(&path, flags, directory.file_mode) {
        Ok(file) => file,
        Err(Errno::NOENT) => {
            make_directory(directory, &place.queue())?;
            return Ok(None);
        }
        Err(errno) => return Err(Problem::system("creating", &path)(errno)),
    };
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK | Errno::INTR) => return Ok(None),
        Err(errno) => return Err(Problem::system("locking", &path)(errno)),
    }
    let written = rustix::fs::fchmod(&file, directory.file_mode).and_then(|()| write_all(&file, text, 0));
    if let Err(errno) = written {
        let _ = rustix::fs::unlink(&path);
        return Err(Problem::system("writing", &path)(errno));
    }
    Ok(Some((file, path)))
}

/// Links the ticket to the number after the highest; `None` when it was removed before that.
fn number_it(place: &Place, unnamed: &Path) -> Outcome<Option<u64>> {
    let last = highest_below(&place.queue(), u64::MAX)?.unwrap_or(0);
    // A number that none can follow is none of ours.
    for number in last.saturating_add(1)..u64::MAX {
        match rustix::fs::link(unnamed, ticket_path(&place.queue(), number)) {
            Ok(()) => return Ok(Some(number)),
            Err(Errno::EXIST) => {}
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(Problem::system("numbering", unnamed)(errno)),
        }
    }
    Err(Problem::system("numbering", unnamed)(Errno::OVERFLOW))
}

/// How a ticket or a seat begins before it has its name.
pub(crate) const UNNAMED: &str = ".new-";

/// Makes a directory of tickets or seats, unless it is there.
pub(crate) fn make_directory(directory: &Directory, queue: &Path) -> Outcome<()> {
    let made = fs::DirBuilder::new().mode(directory.directory_mode).create(queue);
    match made {
        Ok(()) if directory.directory_mode == 0o700 => Ok(()),
        Ok(()) => match rustix::fs::chmod(queue, Mode::from_raw_mode(directory.directory_mode)) {
            // Somebody who left the queue has found it empty and removed it: it is made again.
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Problem::system("setting the rights of", queue)(errno)),
        },
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(Problem::system("creating", queue)(as_errno(&error))),
    }
}

/// Removes unnumbered tickets of the dead, and the directory when nothing is left in it.
fn sweep(queue: &Path) {
    // Clutter at worst: nobody waits by an unnumbered ticket.
    let Ok(entries) = fs::read_dir(queue) else { return };
    for entry in entries.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(UNNAMED.as_bytes()) {
            let _ = lives(&entry.path());
        }
    }
    let _ = rustix::fs::rmdir(queue);
}

fn ticket_path(queue: &Path, number: u64) -> PathBuf {
    queue.join(format!("{number:020}"))
}

/// The numbers given out, lowest first.
fn numbers(queue: &Path) -> Outcome<Vec<u64>> {
    let mut numbers = Vec::new();
    each_number(queue, |number| numbers.push(number))?;
    numbers.sort_unstable();
    Ok(numbers)
}

fn highest_below(queue: &Path, bound: u64) -> Outcome<Option<u64>> {
    let mut highest = None;
    each_number(queue, |number| highest = highest.max(Some(number).filter(|number| *number < bound)))?;
    Ok(highest)
}

fn each_number(queue: &Path, mut found: impl FnMut(u64)) -> Outcome<()> {
    let system = |error: std::io::Error| Problem::system("listing", queue)(as_errno(&error));
    let entries = match fs::read_dir(queue) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(error)),
    };
    for entry in entries {
        let entry = entry.map_err(system)?;
        if let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            found(number);
        }
    }
    Ok(())
}

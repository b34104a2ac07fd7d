//! Those who hold one lock beside each other: readers, and those who have permits.
//!
//! Each has a *seat*, a file in the lock's directory of seats. The flock that its owner keeps on it shows that the owner
//! lives, as with a waiter's ticket, so that the kernel gives a seat up at once when its owner dies. Seats are taken
//! under two locks that are held for microseconds: that of the directory of seats, in whose turn one taker after another
//! looks at who sits; and the lock's own, which keeps out whoever wants it alone. The lock's record then says that there
//! are seats, and of which kind. Whoever locks the file and reads that, looks at the seats before he holds it: a lock
//! that nobody shares costs nothing for it.
//!
//! The directory stays when the last one leaves, as the lock's file does: one that was removed while somebody is inside would
//! have two turns at once.
//!
//! A seat counts for the very file of the lock that it was taken at. Whoever removes that file takes the lock from all.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use fencepost_core::{
    claim::{Claimant, Holder, Mode},
    fence::Fence,
    owner::Owner,
};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode as Rights, OFlags, Timestamps, UTIME_NOW},
    io::Errno,
    time::Timespec,
};
use serde::{Deserialize, Serialize};

use crate::{
    directory::Directory,
    encode::Place,
    floor::{as_errno, write_all},
    lockfile::inode_at,
    problem::{Again, Outcome, Problem},
    queue,
    record::{Identity, Seats},
};

/// A place beside others. Dropping it gives it up, unless another process has the descriptor; its file is then left to
/// whoever looks next.
#[derive(Debug)]
pub(crate) struct Seat {
    path: PathBuf,
    inode: u64,
    /// Keeps the lock that shows that we live.
    pub(crate) file: OwnedFd,
}

/// What a seat tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Sitting {
    /// Inode and birth of the lock's file.
    of_file: (u64, u64),
    owner: String,
    claimant: Claimant,
    since_unix_ms: u64,
    mode: Mode,
    slots: Vec<u32>,
    fence: Option<u64>,
}

impl Sitting {
    pub(crate) fn new(at: Identity, owner: &Owner, claimant: &Claimant, since_unix_ms: u64, mode: Mode) -> Self {
        let (owner, claimant) = (owner.to_string(), claimant.clone());
        Self { of_file: (at.inode, at.born), owner, claimant, since_unix_ms, mode, slots: Vec::new(), fence: None }
    }

    pub(crate) fn with(mut self, slots: &[u32], fence: Option<Fence>) -> Self {
        self.slots = slots.to_vec();
        self.fence = fence.map(Fence::get);
        self
    }

    /// How it is held.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// The slots of its permits.
    pub(crate) fn slots(&self) -> &[u32] {
        &self.slots
    }

    /// As people see it. Of permits, the record of the lock knows how many there are by now.
    pub(crate) fn holder(&self, seats: Seats) -> Holder {
        let mode = match (self.mode, seats) {
            (Mode::Permits { count, .. }, Seats::Permits(of)) => Mode::Permits { count, of },
            (mode, _) => mode,
        };
        Holder {
            claimant: self.claimant.clone(),
            owner: self.owner.parse().ok(),
            mode,
            slots: self.slots.iter().copied().collect(),
            fence: self.fence.and_then(Fence::new),
            since_unix_ms: Some(self.since_unix_ms),
            expires_in: None,
        }
    }
}

/// The turn to take a seat. Dropping it ends the turn.
#[derive(Debug)]
pub(crate) struct Gate(#[expect(dead_code, reason = "its lock ends with it")] OwnedFd);

impl Gate {
    /// Enters, and makes the directory of seats where it is missing. Never waits for another who is inside.
    pub(crate) fn enter(directory: &Directory, place: &Place) -> Outcome<Self> {
        let path = place.seats();
        loop {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let gate = match rustix::fs::open(&path, flags, Rights::empty()) {
                Ok(gate) => gate,
                Err(Errno::NOENT) => {
                    queue::make_directory(directory, &path)?;
                    continue;
                }
                Err(errno) => return Err(Problem::system("opening", &path)(errno)),
            };
            match rustix::fs::flock(&gate, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(Problem::Again(Again::GateTaken(path))),
                Err(errno) => return Err(Problem::system("locking", &path)(errno)),
            }
            // Somebody may have removed it by hand.
            let inode = rustix::fs::fstat(&gate).map_err(Problem::system("examining", &path))?.st_ino;
            if inode_at(&path)? == Some(inode) {
                return Ok(Self(gate));
            }
        }
    }
}

impl Seat {
    /// Takes a seat. Whoever calls it has locked the lock's own file, so that nobody looks meanwhile.
    pub(crate) fn take(directory: &Directory, place: &Place, sitting: &Sitting) -> Outcome<Self> {
        let text = serde_json::to_vec(sitting).unwrap_or_default(); // strings and numbers always become JSON
        let path = place.seats().join(&sitting.owner);
        let unnamed = place.seats().join(format!("{}{}", queue::UNNAMED, sitting.owner));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = loop {
            match rustix::fs::open(&unnamed, flags, directory.file_mode) {
                Ok(file) => break file,
                Err(Errno::NOENT) => queue::make_directory(directory, &place.seats())?,
                Err(errno) => return Err(Problem::system("creating", &unnamed)(errno)),
            }
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            // Somebody looks whether its owner lives, and takes it for a dead one's.
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(Problem::Again(Again::GateTaken(unnamed))),
            Err(errno) => return Err(Problem::system("locking", &unnamed)(errno)),
        }
        let written = rustix::fs::fchmod(&file, directory.file_mode).and_then(|()| write_all(&file, &text, 0));
        if let Err(errno) = written {
            let _ = rustix::fs::unlink(&unnamed);
            return Err(Problem::system("writing", &unnamed)(errno));
        }
        let inode = rustix::fs::fstat(&file).map_err(Problem::system("examining", &unnamed))?.st_ino;
        // It appears whole and locked, or never.
        match rustix::fs::rename(&unnamed, &path) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Err(Problem::Again(Again::GateTaken(unnamed))),
            Err(errno) => return Err(Problem::system("naming", &unnamed)(errno)),
        }
        Ok(Self { path, inode, file })
    }

    /// Whether it is still the one at its path. What cannot be examined is not known to be removed.
    pub(crate) fn in_place(&self) -> bool {
        !matches!(inode_at(&self.path), Ok(inode) if inode != Some(self.inode))
    }

    /// Gives it up, although other processes may have the descriptor: then closing ours makes no event for who waits.
    pub(crate) fn leave(self, shared_out: bool) {
        // Unlocking an open file does not fail. Should the rest, the seat is one of a dead owner.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        if shared_out {
            let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
            let _ = rustix::fs::futimens(&self.file, &Timestamps { last_access: now, last_modification: now });
        }
        if self.in_place() {
            let _ = rustix::fs::unlink(&self.path);
        }
    }
}

/// Everybody who sits at this very file of the lock, with the paths of their seats. What the dead left is removed.
pub(crate) fn sitting(place: &Place, at: Identity) -> Outcome<Vec<(PathBuf, Sitting)>> {
    let mut all = Vec::new();
    each(&place.seats(), at, |path, sitting| {
        all.push((path, sitting));
        true
    })?;
    Ok(all)
}

/// Anybody who sits at this very file of the lock.
pub(crate) fn anyone(place: &Place, at: Identity) -> Outcome<Option<Sitting>> {
    let mut first = None;
    each(&place.seats(), at, |_, sitting| {
        first = Some(sitting);
        false
    })?;
    Ok(first)
}

/// Removes the seat of an owner, if there is one. Its owner finds out by its watch.
pub(crate) fn unseat(place: &Place, at: Identity, owner: &Owner) -> Outcome<bool> {
    let path = place.seats().join(owner.to_string());
    match look(&path)? {
        Look::Sits(sitting) if sitting.of_file == (at.inode, at.born) => remove(&path),
        _ => Ok(false),
    }
}

/// Removes a seat, and says whether it was there.
pub(crate) fn remove(path: &Path) -> Outcome<bool> {
    match rustix::fs::unlink(path) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Problem::system("removing", path)(errno)),
    }
}

/// Calls `found` with each who sits, until it answers that it has seen enough.
fn each(seats: &Path, at: Identity, mut found: impl FnMut(PathBuf, Sitting) -> bool) -> Outcome<()> {
    let system = |error: std::io::Error| Problem::system("listing", seats)(as_errno(&error));
    let entries = match fs::read_dir(seats) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(error)),
    };
    for entry in entries {
        let path = entry.map_err(system)?.path();
        match look(&path)? {
            Look::Sits(sitting) if sitting.of_file == (at.inode, at.born) => {
                if !found(path, sitting) {
                    return Ok(());
                }
            }
            // Of a file that was removed, and its owner is about to find out; or not written yet.
            Look::Sits(_) | Look::Gone => {}
        }
    }
    Ok(())
}

enum Look {
    Sits(Sitting),
    /// Nobody's, or of somebody who has died; then it is removed.
    Gone,
}

fn look(path: &Path) -> Outcome<Look> {
    if !queue::lives(path)? {
        return Ok(Look::Gone);
    }
    let mut text = Vec::new();
    let read = fs::File::open(path).and_then(|mut file| file.read_to_end(&mut text));
    Ok(match read.ok().and_then(|_| serde_json::from_slice(&text).ok()) {
        Some(sitting) => Look::Sits(sitting),
        None => Look::Gone,
    })
}

//! One lock's file: taking it, looking at it, removing it.
//!
//! The lock is the kernel's: flock(2) on an open file, so that it ends with the last descriptor of it, however the
//! holder died. Everything else is about the file being the right one: whoever removes the file takes the lock
//! from its holder, and the next taker makes a new one.

mod seen;

use std::{path::Path, sync::OnceLock};

use fencepost_core::{claim::Holder, fence::Fence, owner::Owner};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags, Timestamps, UTIME_NOW},
    io::Errno,
    time::Timespec,
};

use seen::Seen;
pub(crate) use seen::inode_at;

use crate::{
    directory::Directory,
    encode::Place,
    floor::{Locked, read_full, write_all},
    problem::{Outcome, Problem},
    record::{self, CLOSING, Content, ISSUED, Identity, Issued, PAGE, QUEUE, Seats, TAKERS_PART},
    seats,
};

/// An open lock's file. Dropping it gives the lock up, if it was taken and no other process has the descriptor.
#[derive(Debug)]
pub(crate) struct LockFile {
    pub(crate) file: OwnedFd,
    /// Which file it is, from the first look at it on.
    identity: OnceLock<Identity>,
}

/// Who takes a lock, as it will be recorded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taker<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) claimant: &'a [u8],
    pub(crate) since_unix_ms: u64,
    /// None for one who takes it alone.
    pub(crate) seats: Seats,
}

/// The outcome of a try.
#[derive(Debug)]
pub(crate) enum Tried {
    /// The lock is ours, under this fence.
    Taken {
        /// The fence, recorded in the file.
        fence: Fence,
        /// The file's number, to be compared with what is at the path later.
        inode: u64,
        /// There may be waiters.
        waiters: bool,
    },
    /// Another has it.
    Held,
    /// Others hold it beside each other, this one among them.
    Seated(Box<Holder>),
    /// This file is not the one at the path any more: open again.
    Stale,
}

impl LockFile {
    fn of(file: OwnedFd) -> Self {
        Self { file, identity: OnceLock::new() }
    }

    /// Opens the lock's file, and creates it where it is missing.
    pub(crate) fn open(directory: &Directory, place: &Place) -> Outcome<Self> {
        loop {
            if let Some(found) = Self::open_existing(place)? {
                return Ok(found);
            }
            // Created in its place and empty: its range of fences must be drawn *after* it can be found here, or a
            // file of the same name that came and went meanwhile could have given out higher ones.
            let flags = FLAGS | OFlags::CREATE | OFlags::EXCL;
            match rustix::fs::open(&place.file, flags, directory.file_mode) {
                Ok(file) => {
                    if directory.file_mode != Mode::RUSR | Mode::WUSR {
                        // The umask of one user must not lock the other users of a shared directory out.
                        rustix::fs::fchmod(&file, directory.file_mode)
                            .map_err(Problem::system("setting the rights of", &place.file))?;
                    }
                    return Ok(Self::of(file));
                }
                Err(Errno::EXIST) => continue,
                Err(errno) => return Err(Problem::system("creating", &place.file)(errno)),
            }
        }
    }

    /// Opens the lock's file if there is one.
    pub(crate) fn open_existing(place: &Place) -> Outcome<Option<Self>> {
        match rustix::fs::open(&place.file, FLAGS, Mode::empty()) {
            Ok(file) => Ok(Some(Self::of(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Problem::system("opening", &place.file)(errno)),
        }
    }

    /// Opens the file at `path`, if there is one, to see who holds it. Closing it wakes no waiter.
    pub(crate) fn open_to_read(path: &Path) -> Outcome<Option<Self>> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(file) => Ok(Some(Self::of(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Problem::system("opening", path)(errno)),
        }
    }

    /// Tries once to take the lock. The fence is drawn and recorded by the same step (F2), and only then is it
    /// checked that the file is still the one at the path and that nobody is removing it: whoever removes it looks
    /// at the fence after having announced the removal, so one of the two sees the other.
    pub(crate) fn try_take(&self, directory: &Directory, place: &Place, taker: Taker<'_>) -> Outcome<Tried> {
        let path = &place.file;
        if !self.try_lock(path)? {
            return Ok(if self.is_at(path)? { Tried::Held } else { Tried::Stale });
        }
        let tried = self.grant(directory, place, taker);
        if !matches!(tried, Ok(Tried::Taken { .. })) {
            // Closing alone would not do: whoever tries again may keep the file open, and a process that another thread is
            // about to start has its descriptors until it runs its program.
            self.unlock();
        }
        tried
    }

    /// By the path, since a waiter may have had the file open for long, and it may have been moved.
    pub(crate) fn is_at(&self, path: &Path) -> Outcome<bool> {
        Ok(inode_at(path)? == Some(self.identity(path)?.inode))
    }

    fn grant(&self, directory: &Directory, place: &Place, taker: Taker<'_>) -> Outcome<Tried> {
        let path = &place.file;
        let (fence, seen) = match self.content(place)? {
            Content::Used { identity, last } => {
                if last.seats != Seats::None
                    && let Some(holder) = self.anyone_beside(place, last.seats)?
                {
                    return Ok(Tried::Seated(Box::new(holder)));
                }
                let next = self.record_next(directory, path, last, taker)?;
                let seen = self.in_place(directory, place)?;
                if self.identity(path)? == identity {
                    (next, seen)
                } else {
                    // A copy of another file, from a backup perhaps, whose counter may be behind.
                    self.begin(directory, place, next.get(), taker)?
                }
            }
            Content::New => self.begin(directory, place, 0, taker)?,
        };
        let seen = match seen {
            Some(seen) if seen.is_being_removed() => self.outwait_removal(directory, place)?,
            seen => seen,
        };
        Ok(seen.map_or(Tried::Stale, |seen| Tried::Taken {
            fence,
            inode: seen.identity.inode,
            waiters: seen.may_have_waiters(),
        }))
    }

    /// Records one who sits down beside others, in this file, which the caller has locked. The fence is that of the last
    /// writer for a reader, who never advances it (F3), and the next one for permits.
    pub(crate) fn record_beside(&self, directory: &Directory, place: &Place, taker: Taker<'_>) -> Outcome<Fence> {
        let path = &place.file;
        match self.content(place)? {
            Content::Used { identity, last } if self.identity(path)? == identity => {
                if taker.seats != Seats::Readers || last.boot != directory.boot {
                    // After a failure of the machine the last writer's may not have reached the disk: what a reader carries
                    // then is above every one that was given out, and below the next.
                    return self.record_next(directory, path, last, taker);
                }
                if last.seats != Seats::Readers {
                    let issued = taker.issued(last.fence, last.range_end, directory);
                    self.write_issued(path, &issued, taker.claimant)?;
                }
                Fence::new(last.fence).ok_or_else(|| Problem::Exhausted { path: path.clone() })
            }
            Content::Used { last, .. } => Ok(self.begin(directory, place, last.fence, taker)?.0),
            Content::New => Ok(self.begin(directory, place, 0, taker)?.0),
        }
    }

    /// Sets how many permits there are, in this file, which the caller has locked.
    pub(crate) fn record_limit(&self, place: &Place, of: u32) -> Outcome<()> {
        let path = &place.file;
        let page = self.page(path)?;
        let Content::Used { last, .. } = record::read(path, &page, place.name.as_str())? else { return Ok(()) };
        let claimant = record::claimant_in(&page).unwrap_or_default();
        self.write_issued(path, &Issued { seats: Seats::Permits(of), ..last }, claimant)
    }

    /// Which seats the record says that there may be.
    pub(crate) fn seats(&self, place: &Place) -> Outcome<Seats> {
        Ok(match self.content(place)? {
            Content::Used { last, .. } => last.seats,
            Content::New => Seats::None,
        })
    }

    /// One of those who hold it beside each other, if anybody does.
    pub(crate) fn anyone_beside(&self, place: &Place, seats: Seats) -> Outcome<Option<Holder>> {
        if seats == Seats::None {
            return Ok(None);
        }
        let anyone = seats::anyone(place, self.identity(&place.file)?)?;
        Ok(anyone.map(|sitting| sitting.holder(seats)))
    }

    /// Whether it is still the file at the path and nobody is removing it. Asked once a grant is recorded, as
    /// [`try_take`](Self::try_take) does.
    pub(crate) fn stands(&self, directory: &Directory, place: &Place) -> Outcome<bool> {
        Ok(match self.in_place(directory, place)? {
            Some(seen) if seen.is_being_removed() => self.outwait_removal(directory, place)?.is_some(),
            seen => seen.is_some(),
        })
    }

    fn content(&self, place: &Place) -> Outcome<Content> {
        let path = &place.file;
        let mut bytes = [0; TAKERS_PART];
        let length = read_full(&self.file, &mut bytes).map_err(Problem::system("reading", path))?;
        record::read(path, &bytes[..length], place.name.as_str())
    }

    /// A remover announced itself: once it had its turn, the file is removed, or is not going to be. One that died
    /// half-way is finished for; where that is forbidden to us, nobody removes it.
    fn outwait_removal(&self, directory: &Directory, place: &Place) -> Outcome<Option<Seen>> {
        let floor = directory.floor.lock()?;
        let seen = self.look(&place.file)?;
        if seen.is_being_removed() && remove(&floor, place, seen.identity.inode).is_err() {
            self.mark(&floor, &place.file, CLOSING, false)?;
        }
        self.in_place(directory, place)
    }

    /// Gives the lock up although other processes may have inherited the descriptor: closing it would not be enough.
    pub(crate) fn unlock(&self) {
        // Unlocking an open file does not fail.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }

    /// Makes an event for the waiter where a close makes none: another process has the descriptor.
    pub(crate) fn nudge(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW as _ };
        // Without it the waiter finds out by its backstop.
        let _ = rustix::fs::futimens(&self.file, &Timestamps { last_access: now, last_modification: now });
    }

    /// Whether somebody has the lock. The record alone does not tell: a killed holder leaves it behind.
    pub(crate) fn is_held(&self, path: &Path) -> Outcome<bool> {
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => {
                // For these microseconds takers see a shared lock, which they know to wait out.
                let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
                Ok(false)
            }
            Err(Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(Problem::system("looking at", path)(errno)),
        }
    }

    /// The page as it is.
    pub(crate) fn page(&self, path: &Path) -> Outcome<Vec<u8>> {
        let mut bytes = vec![0; PAGE];
        let length = read_full(&self.file, &mut bytes).map_err(Problem::system("reading", path))?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// The last holder as recorded, who has it now if [`is_held`](Self::is_held).
    pub(crate) fn recorded(&self, path: &Path) -> Outcome<Option<Holder>> {
        Ok(record::holder(&self.page(path)?))
    }

    /// The file as it is now, if it is still the one at `path`. One that has been looked at before is looked for there:
    /// it may have been moved while it lay open.
    fn in_place(&self, directory: &Directory, place: &Place) -> Outcome<Option<Seen>> {
        let path = &place.file;
        if let Some(identity) = self.identity.get() {
            let seen = match directory.handle() {
                Some(directory) => Seen::at(directory, place.file_name()),
                None => Seen::at(rustix::fs::CWD, path),
            };
            let seen = seen.map_err(Problem::system("examining", path))?;
            return Ok(seen.filter(|seen| seen.identity.inode == identity.inode));
        }
        self.not_removed(path)
    }

    /// The file as it is now, unless somebody removed it.
    pub(crate) fn not_removed(&self, path: &Path) -> Outcome<Option<Seen>> {
        let seen = self.look(path)?;
        Ok(seen.is_at(path)?.then_some(seen))
    }

    /// States whether there may be waiters.
    pub(crate) fn mark_waiters(&self, directory: &Directory, path: &Path, waiters: bool) -> Outcome<()> {
        if self.look(path)?.may_have_waiters() == waiters {
            return Ok(());
        }
        self.mark(&directory.floor.lock()?, path, QUEUE, waiters)
    }

    /// Takes the lock from whoever holds it by removing the file, if `still` says so of who is recorded *after* the
    /// removal was announced.
    pub(crate) fn take_away(
        &self,
        directory: &Directory,
        place: &Place,
        still: impl Fn() -> Outcome<bool>,
    ) -> Outcome<bool> {
        let path = &place.file;
        // One turn from the announcement to the removal: another remover must not take the announcement back.
        let floor = directory.floor.lock()?;
        self.mark(&floor, path, CLOSING, true)?;
        let taken = still().and_then(|taken| {
            if taken {
                remove(&floor, place, self.identity(path)?.inode)?;
            }
            Ok(taken)
        });
        if !matches!(taken, Ok(true)) {
            self.mark(&floor, path, CLOSING, false)?;
        }
        taken
    }

    pub(crate) fn look(&self, path: &Path) -> Outcome<Seen> {
        let seen = Seen::of(&self.file).map_err(Problem::system("examining", path))?;
        let _ = self.identity.set(seen.identity); // which does not change
        Ok(seen)
    }

    pub(crate) fn identity(&self, path: &Path) -> Outcome<Identity> {
        match self.identity.get() {
            Some(identity) => Ok(*identity),
            None => Ok(self.look(path)?.identity),
        }
    }

    /// Locks it, for a grant or to look who holds it beside each other; false when somebody has it alone.
    pub(crate) fn try_lock(&self, path: &Path) -> Outcome<bool> {
        for round in 0..200 {
            match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(Errno::WOULDBLOCK) if self.is_held(path)? => return Ok(false),
                // Somebody only looks whether it is held, or has just let go.
                Err(Errno::WOULDBLOCK | Errno::INTR) if round < 100 => std::thread::yield_now(),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::sleep(std::time::Duration::from_micros(200)),
                Err(errno) => return Err(Problem::system("locking", path)(errno)),
            }
        }
        Err(Problem::Stuck { path: path.to_owned(), what: "is being looked at by a process that does not finish" })
    }

    fn record_next(&self, directory: &Directory, path: &Path, last: Issued, taker: Taker<'_>) -> Outcome<Fence> {
        let (fence, range_end) = match last.next(&directory.boot) {
            Some(fence) => (fence, last.range_end),
            None => directory.floor.lock()?.new_range(last.range_end)?,
        };
        self.write_issued(path, &taker.issued(fence, range_end, directory), taker.claimant)?;
        Fence::new(fence).ok_or_else(|| Problem::Exhausted { path: path.to_owned() })
    }

    fn write_issued(&self, path: &Path, issued: &Issued, claimant: &[u8]) -> Outcome<()> {
        write_all(&self.file, &issued.write(claimant), ISSUED).map_err(Problem::system("writing", path))
    }

    /// Writes the whole page, with a first grant whose fence lies above everything given out so far and above `above`.
    fn begin(
        &self,
        directory: &Directory,
        place: &Place,
        above: u64,
        taker: Taker<'_>,
    ) -> Outcome<(Fence, Option<Seen>)> {
        let path = &place.file;
        let identity = self.identity(path)?;
        let floor = directory.floor.lock()?;
        let (fence, range_end) = floor.new_range(above)?;
        let issued = taker.issued(fence, range_end, directory);
        let page = record::new_page(place.name.as_str(), identity, &issued, taker.claimant);
        write_all(&self.file, &page, 0).map_err(|errno| {
            // Half a page would count as damage; an empty file is a new one.
            let _ = rustix::fs::ftruncate(&self.file, 0);
            Problem::system("writing", path)(errno)
        })?;
        // The waiters of a file that was removed still wait.
        self.mark(&floor, path, QUEUE, true)?;
        let fence = Fence::new(fence).ok_or_else(|| Problem::Exhausted { path: path.clone() })?;
        Ok((fence, self.in_place(directory, place)?))
    }

    /// Changes one mark. The lock on the floor keeps two from changing the length at once.
    fn mark(&self, _floor: &Locked<'_>, path: &Path, mark: u64, set: bool) -> Outcome<()> {
        let before = record::marks(self.look(path)?.length);
        let after = if set { before | mark } else { before & !mark };
        rustix::fs::ftruncate(&self.file, record::length(after)).map_err(Problem::system("marking", path))
    }
}

impl Taker<'_> {
    fn issued(&self, fence: u64, range_end: u64, directory: &Directory) -> Issued {
        let (since_unix_ms, owner, seats) = (self.since_unix_ms, *self.owner, self.seats);
        Issued { fence, range_end, since_unix_ms, boot: directory.boot, owner, seats }
    }
}

/// A link that somebody else put there is not followed, and a pipe does not make us wait.
const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK);

/// Removes the lock's file if it is still this one. Removers take turns by the floor, so that none removes the
/// file that came after the one it looked at.
fn remove(_turn: &Locked<'_>, place: &Place, inode: u64) -> Outcome<()> {
    if inode_at(&place.file)? != Some(inode) {
        return Ok(());
    }
    match rustix::fs::unlink(&place.file) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(Problem::system("removing", &place.file)(errno)),
    }
}

#[cfg(test)]
mod tests;

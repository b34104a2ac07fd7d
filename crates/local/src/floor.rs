//! The directory's floor: where every lock's file gets its ranges of fences from (F1, F4).
//!
//! A fence must not come a second time, also when a lock's file was removed and made anew, or when the machine
//! failed before the last grants reached the disk. So a lock's file never counts freely: it is given a *range* of
//! [`RANGE`] numbers by the one file `.floor`, and no two ranges overlap, whichever lock they are for. What a lock's
//! file lost is then never worse than a range given up.
//!
//! The floor itself keeps two numbers. The *ceiling* is on the disk (fsync) before any range below it is given out.
//! The *next* range is only written to the page cache, which outlives every process but not the kernel; beside it
//! stands the ceiling that is known to be on the disk. Both count while the boot id is the same. After a restart of the
//! machine the ceiling counts instead, and is raised before anything is given out. Thus one raising serves [`AHEAD`]
//! ranges, and a grant needs none.
//!
//! The ceiling stands in two slots with checksums. Only the one with the lower ceiling is ever written, and only once
//! both are known to be on the disk as they were read: whatever a failure of the machine leaves of that write, and
//! however many writers were killed half-way before, the other slot has every range below it that was given out.

use std::{
    fs,
    path::{Path, PathBuf},
};

use fencepost_core::{fence::Fence, owner::Owner};
use rustix::{
    fd::OwnedFd,
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};

use crate::{
    encode::LOCK_SUFFIX,
    problem::{Again, Outcome, Problem},
    record::{BootId, array_at, u64_at},
};

/// Fences in one range: after a failure of the machine at most this many are skipped.
pub(crate) const RANGE: u64 = 1 << 16;
/// Ranges below the ceiling that one fsync makes good for.
const AHEAD: u64 = 1 << 10;

const FILE: &str = ".floor";
const MAGIC: [u8; 8] = *b"FENCEFLR";
const VERSION: u8 = 1;
/// Where the two slots of the ceiling and the volatile [`Next`] stand, each in a disk sector of its own.
const SLOTS: [u64; 2] = [0, 512];
const NEXT: u64 = 1024;
const SLOT_BYTES: usize = 24;
const NEXT_BYTES: usize = 36;
const FILE_BYTES: usize = 1536;

/// The floor's file, for one directory.
#[derive(Debug)]
pub(crate) struct Floor {
    path: PathBuf,
    boot: BootId,
}

/// The floor, locked: only one process at a time gives out ranges or removes locks' files.
#[derive(Debug)]
pub(crate) struct Locked<'a> {
    floor: &'a Floor,
    file: OwnedFd,
}

impl Floor {
    /// Opens the floor of `directory`, and makes it when the directory is new. A floor that is missing among
    /// locks' files is refused: nobody knows any more which fences were given out.
    pub(crate) fn open(directory: &Path, boot: BootId, mode: Mode) -> Outcome<Self> {
        let floor = Self { path: directory.join(FILE), boot };
        if !floor.path.exists() {
            if has_locks(directory)? {
                return Err(floor.missing());
            }
            floor.create(directory, mode)?;
        }
        floor.file()?; // refuses a foreign or unreadable file now and not at the first claim
        Ok(floor)
    }

    /// Takes the floor, which others have for microseconds. [`Problem::Again`] when somebody has it for longer: nobody
    /// may wait for it on a thread that runs other tasks too.
    pub(crate) fn lock(&self) -> Outcome<Locked<'_>> {
        let file = self.file()?;
        for _ in 0..3 {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Locked { floor: self, file }),
                Err(Errno::WOULDBLOCK | Errno::INTR) => std::thread::yield_now(),
                Err(errno) => return Err(Problem::system("locking", &self.path)(errno)),
            }
        }
        Err(Problem::Again(Again::FloorTaken))
    }

    /// Raises the ceiling if it has been reached. [`Problem::Again`] as for [`lock`](Self::lock); once it has the
    /// floor it waits for the disk.
    pub(crate) fn raise(&self) -> Outcome<()> {
        self.lock()?.raise()
    }

    /// Somebody has had the floor for so long that there is no use in waiting.
    pub(crate) fn stuck(&self) -> Problem {
        Problem::Stuck { path: self.path.clone(), what: "has been locked for seconds by another process" }
    }

    fn file(&self) -> Outcome<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        rustix::fs::open(&self.path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => self.missing(),
            errno => Problem::system("opening", &self.path)(errno),
        })
    }

    /// Writes the file beside its place and links it there, so that nobody sees half of one. Who comes second
    /// uses the first one's.
    fn create(&self, directory: &Path, mode: Mode) -> Outcome<()> {
        // A name of its own: two processes that come at once must not write into one file.
        let unique = Owner::random().map_err(|_| Problem::system("naming", &self.path)(Errno::IO))?;
        let temporary = directory.join(format!("{FILE}.{unique}"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&temporary, flags, mode).map_err(Problem::system("creating", &temporary))?;
        let written = (|| {
            rustix::fs::fchmod(&file, mode)?;
            let mut bytes = vec![0; FILE_BYTES];
            for slot in SLOTS {
                bytes[slot as usize..slot as usize + SLOT_BYTES].copy_from_slice(&slot_bytes(0));
            }
            write_all(&file, &bytes, 0)?;
            rustix::fs::fsync(&file)?;
            match rustix::fs::link(&temporary, &self.path) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let directory = rustix::fs::open(directory, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::fs::fsync(directory)
        })();
        // Left behind it would be clutter, no more.
        let _ = rustix::fs::unlink(&temporary);
        written.map_err(Problem::system("writing", &self.path))
    }

    fn missing(&self) -> Problem {
        let repair = "restore it from a backup, or stop every user of the directory, make sure that no resource \
                      remembers a fence, and remove the directory";
        let found = "is missing although the directory has been used".to_owned();
        Problem::Corrupt { path: self.path.clone(), found, repair: repair.to_owned() }
    }
}

impl Locked<'_> {
    /// A new range, above every fence that was given out in this directory. Returns its first and last number.
    /// [`Problem::Again`] when the ceiling has to be raised first.
    ///
    /// `above` is the end of the caller's present range: a floor that lies below it was rewound, by a backup
    /// perhaps, and is refused.
    pub(crate) fn new_range(&self, above: u64) -> Outcome<(u64, u64)> {
        let next = self.counters()?.next;
        if next.range < above {
            return Err(self.behind());
        }
        let end = self.end_after(next)?;
        if end > next.ceiling {
            return Err(Problem::Again(Again::CeilingReached));
        }
        self.write(&Next { range: end, ..next }.bytes(&self.floor.boot), NEXT)?;
        Ok((next.range + 1, end))
    }

    fn raise(&self) -> Outcome<()> {
        let Counters { slots, mut next } = self.counters()?;
        let end = self.end_after(next)?;
        if end <= next.ceiling {
            return Ok(()); // another has done it
        }
        // As they were read, both slots are on the disk from here on. One may be above what its writer, who was killed,
        // came to say of it.
        self.sync()?;
        next.ceiling = slots.into_iter().flatten().fold(next.ceiling, u64::max);
        if end > next.ceiling {
            next.ceiling = end.saturating_add(RANGE * (AHEAD - 1)).min(Fence::MAX);
            self.replace_lower(slots, next.ceiling)?;
        }
        self.write(&next.bytes(&self.floor.boot), NEXT)
    }

    /// Puts the ceiling into the lower slot and onto the disk.
    fn replace_lower(&self, slots: [Option<u64>; 2], ceiling: u64) -> Outcome<()> {
        let (at, before) = if slots[0] <= slots[1] { (SLOTS[0], slots[0]) } else { (SLOTS[1], slots[1]) };
        self.write(&slot_bytes(ceiling), at)?;
        self.sync().inspect_err(|_| {
            // A disk that refused it once is not asked about it again by the kernel: what is not on the disk must not
            // be read by the next one either.
            let _ = self.write(&before.map_or([0; SLOT_BYTES], slot_bytes), at);
        })
    }

    fn counters(&self) -> Outcome<Counters> {
        let path = &self.floor.path;
        let mut bytes = [0; FILE_BYTES];
        let length = read_full(&self.file, &mut bytes).map_err(Problem::system("reading", path))?;
        if bytes[..8] == MAGIC && bytes[8] > VERSION {
            return Err(Problem::Newer { path: path.clone(), version: bytes[8].into() });
        }
        let slots = SLOTS.map(|slot| slot_ceiling(&bytes[slot as usize..][..SLOT_BYTES]));
        let Some(highest) = slots.into_iter().flatten().max().filter(|_| length == FILE_BYTES) else {
            return Err(self.corrupt("is cut short, or both copies of its counter have wrong checksums"));
        };
        let next = Next::read(&bytes[NEXT as usize..][..NEXT_BYTES], &self.floor.boot);
        let next = next.unwrap_or(Next { range: highest, ceiling: highest });
        if next.range > next.ceiling || next.ceiling > highest {
            return Err(self.behind());
        }
        Ok(Counters { slots, next })
    }

    fn end_after(&self, next: Next) -> Outcome<u64> {
        let end = next.range.checked_add(RANGE).filter(|end| *end <= Fence::MAX);
        end.ok_or_else(|| Problem::Exhausted { path: self.floor.path.clone() })
    }

    fn write(&self, bytes: &[u8], at: u64) -> Outcome<()> {
        write_all(&self.file, bytes, at).map_err(Problem::system("writing", &self.floor.path))
    }

    fn sync(&self) -> Outcome<()> {
        rustix::fs::fdatasync(&self.file).map_err(Problem::system("writing", &self.floor.path))
    }

    fn behind(&self) -> Problem {
        self.corrupt("is behind what was given out, as after a restored backup")
    }

    fn corrupt(&self, found: &str) -> Problem {
        let repair = "restore it from a backup that is not older than any lock's file, or stop every user of the \
                      directory, make sure that no resource remembers a fence, and remove the directory";
        Problem::Corrupt { path: self.floor.path.clone(), found: found.to_owned(), repair: repair.to_owned() }
    }
}

fn slot_bytes(ceiling: u64) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&MAGIC);
    slot[8] = VERSION;
    slot[12..20].copy_from_slice(&ceiling.to_le_bytes());
    let sum = crc32fast::hash(&slot[..20]);
    slot[20..].copy_from_slice(&sum.to_le_bytes());
    slot
}

fn slot_ceiling(slot: &[u8]) -> Option<u64> {
    let sound = slot[..8] == MAGIC && slot[8] == VERSION;
    let sum = u32::from_le_bytes(array_at(slot, 20));
    (sound && crc32fast::hash(&slot[..20]) == sum).then(|| u64_at(slot, 12))
}

/// What the floor's file says.
struct Counters {
    slots: [Option<u64>; 2],
    next: Next,
}

/// What is not on the disk.
#[derive(Clone, Copy)]
struct Next {
    /// The end of the last range that was given out.
    range: u64,
    /// The ceiling that is known to be on the disk.
    ceiling: u64,
}

impl Next {
    fn bytes(self, boot: &BootId) -> [u8; NEXT_BYTES] {
        let mut bytes = [0; NEXT_BYTES];
        bytes[..8].copy_from_slice(&self.range.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.ceiling.to_le_bytes());
        bytes[16..32].copy_from_slice(boot);
        let sum = crc32fast::hash(&bytes[..32]);
        bytes[32..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// `None` when it is of another boot.
    fn read(bytes: &[u8], boot: &BootId) -> Option<Self> {
        let sum = u32::from_le_bytes(array_at(bytes, 32));
        let sound = bytes[16..32] == *boot && crc32fast::hash(&bytes[..32]) == sum;
        sound.then(|| Self { range: u64_at(bytes, 0), ceiling: u64_at(bytes, 8) })
    }
}

fn has_locks(directory: &Path) -> Outcome<bool> {
    let listed = fs::read_dir(directory).and_then(|entries| {
        for entry in entries {
            if entry?.file_name().as_encoded_bytes().ends_with(LOCK_SUFFIX.as_bytes()) {
                return Ok(true);
            }
        }
        Ok(false)
    });
    listed.map_err(|error| Problem::system("listing", directory)(as_errno(&error)))
}

/// The number of a failure that the standard library reports.
pub(crate) fn as_errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Writes all of `bytes`; a short write means that the disk is full.
pub(crate) fn write_all(file: &OwnedFd, bytes: &[u8], at: u64) -> Result<(), Errno> {
    let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(file, bytes, at))?;
    if written == bytes.len() { Ok(()) } else { Err(Errno::NOSPC) }
}

/// Reads from the beginning until `bytes` is full or the file ends.
pub(crate) fn read_full(file: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Errno> {
    // A regular file is read in one go up to its end.
    rustix::io::retry_on_intr(|| rustix::io::pread(file, &mut *bytes, 0))
}

#[cfg(test)]
mod tests;

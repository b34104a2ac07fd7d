//! The directory's floor: where every lock's file gets its ranges of fences from (F1, F4).
//!
//! A fence must not come a second time, also when a lock's file was removed and made anew, or when the machine
//! failed before the last grants reached the disk. So a lock's file never counts freely: it is given a *range* of
//! [`RANGE`] numbers by the one file `.floor`, and no two ranges overlap, whichever lock they are for. What a lock's
//! file lost is then never worse than a range given up.
//!
//! The floor itself keeps two numbers. The *ceiling* is on the disk (fsync) before any range below it is given
//! out, and stands in two slots with checksums, so that one torn write leaves the other. The *next* range is only
//! written to the page cache, which outlives every process but not the kernel: it counts while the boot id is the
//! same, otherwise the ceiling does. Thus one fsync serves [`AHEAD`] ranges, and a grant needs none.

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
    problem::{Outcome, Problem},
    record::{BootId, array_at, u64_at},
};

/// Fences in one range: after a failure of the machine at most this many are skipped.
pub(crate) const RANGE: u64 = 1 << 16;
/// Ranges below the ceiling that one fsync makes good for.
const AHEAD: u64 = 1 << 10;

const FILE: &str = ".floor";
const MAGIC: [u8; 8] = *b"FENCEFLR";
const VERSION: u8 = 1;
/// Where the two slots of the ceiling and the volatile next range stand, each in a disk sector of its own.
const SLOTS: [u64; 2] = [0, 512];
const NEXT: u64 = 1024;
const SLOT_BYTES: usize = 24;
const NEXT_BYTES: usize = 32;
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
        floor.locked_file()?; // refuses a foreign or unreadable file now and not at the first claim
        Ok(floor)
    }

    /// Takes the floor, unless somebody else has it at this moment.
    fn try_lock(&self) -> Outcome<Option<Locked<'_>>> {
        let file = self.locked_file()?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Locked { floor: self, file })),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(errno) => Err(Problem::system("locking", &self.path)(errno)),
        }
    }

    /// Takes the floor, which others have for microseconds, or for one fsync.
    pub(crate) fn lock(&self) -> Outcome<Locked<'_>> {
        let mut pause = std::time::Duration::from_micros(20);
        for _ in 0..300 {
            if let Some(locked) = self.try_lock()? {
                return Ok(locked);
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(std::time::Duration::from_millis(10));
        }
        Err(Problem::Stuck { path: self.path.clone(), what: "has been locked for seconds by another process" })
    }

    fn locked_file(&self) -> Outcome<OwnedFd> {
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
    ///
    /// `above` is the end of the caller's present range: a floor that lies below it was rewound, by a backup
    /// perhaps, and is refused.
    pub(crate) fn new_range(&self, above: u64) -> Outcome<(u64, u64)> {
        let path = &self.floor.path;
        let mut bytes = [0; FILE_BYTES];
        let length = read_full(&self.file, &mut bytes).map_err(Problem::system("reading", path))?;
        if bytes[..8] == MAGIC && bytes[8] > VERSION {
            return Err(Problem::Newer { path: path.clone(), version: bytes[8].into() });
        }
        let ceilings = SLOTS.iter().filter_map(|slot| slot_ceiling(&bytes[*slot as usize..][..SLOT_BYTES]));
        let Some(mut ceiling) = ceilings.max().filter(|_| length == FILE_BYTES) else {
            return Err(self.corrupt("is cut short, or both copies of its counter have wrong checksums"));
        };
        let next = next_range(&bytes[NEXT as usize..][..NEXT_BYTES], &self.floor.boot).unwrap_or(ceiling);
        if next > ceiling || next < above {
            return Err(self.corrupt("is behind what was given out, as after a restored backup"));
        }
        let end = next.checked_add(RANGE).filter(|end| *end <= Fence::MAX);
        let end = end.ok_or_else(|| Problem::Exhausted { path: path.clone() })?;
        if end > ceiling {
            ceiling = end.saturating_add(RANGE * (AHEAD - 1)).min(Fence::MAX);
            self.raise(ceiling).map_err(Problem::system("writing", path))?;
        }
        write_all(&self.file, &next_bytes(end, &self.floor.boot), NEXT).map_err(Problem::system("writing", path))?;
        Ok((next + 1, end))
    }

    /// One slot is on the disk before the other is touched, so that a torn write never takes both.
    fn raise(&self, ceiling: u64) -> Result<(), Errno> {
        write_all(&self.file, &slot_bytes(ceiling), SLOTS[0])?;
        rustix::fs::fdatasync(&self.file)?;
        write_all(&self.file, &slot_bytes(ceiling), SLOTS[1])
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

fn next_bytes(next: u64, boot: &BootId) -> [u8; NEXT_BYTES] {
    let mut bytes = [0; NEXT_BYTES];
    bytes[..8].copy_from_slice(&next.to_le_bytes());
    bytes[8..24].copy_from_slice(boot);
    let sum = crc32fast::hash(&bytes[..24]);
    bytes[24..28].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn next_range(bytes: &[u8], boot: &BootId) -> Option<u64> {
    let sum = u32::from_le_bytes(array_at(bytes, 24));
    (bytes[8..24] == *boot && crc32fast::hash(&bytes[..24]) == sum).then(|| u64_at(bytes, 0))
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
mod tests {
    use std::os::unix::fs::FileExt;

    use fencepost_core::error::{ErrorKind, Operation};

    use super::*;

    fn floor(directory: &Path, boot: u8) -> Floor {
        Floor::open(directory, [boot; 16], Mode::RUSR | Mode::WUSR).unwrap()
    }

    fn next(floor: &Floor) -> u64 {
        floor.lock().unwrap().new_range(0).unwrap().0
    }

    fn damage(directory: &Path, at: u64) {
        let file = fs::File::options().write(true).open(directory.join(FILE)).unwrap();
        file.write_all_at(&[0xff; 4], at).unwrap();
    }

    #[test]
    fn f4_ranges_never_overlap_across_handles_and_restarts() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(next(&floor(directory.path(), 1)), 1);
        assert_eq!(next(&floor(directory.path(), 1)), 1 + RANGE);
        let after_restart = next(&floor(directory.path(), 2));
        assert_eq!(after_restart, 1 + RANGE * AHEAD, "what one boot wrote without fsync is not believed by another");
        assert_eq!(next(&floor(directory.path(), 2)), after_restart + RANGE);
    }

    #[test]
    fn f4_one_torn_slot_is_survived_and_two_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        next(&floor(directory.path(), 1));
        damage(directory.path(), 14);
        let raised = next(&floor(directory.path(), 2));
        assert_eq!(raised, 1 + RANGE * AHEAD, "the other slot has the same ceiling");
        for slot in SLOTS {
            damage(directory.path(), slot + 14);
        }
        let damaged = floor(directory.path(), 2);
        let error = damaged.lock().unwrap().new_range(0).unwrap_err().into_error(Operation::Claim, None);
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.advice().is_some());
    }

    #[test]
    fn f4_a_missing_or_rewound_floor_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let first = floor(directory.path(), 1);
        let problem = first.lock().unwrap().new_range(RANGE * 5).unwrap_err();
        assert!(matches!(problem, Problem::Corrupt { .. }), "{problem:?}");
        fs::write(directory.path().join("a.lock"), "").unwrap();
        fs::remove_file(directory.path().join(FILE)).unwrap();
        assert!(matches!(first.lock(), Err(Problem::Corrupt { .. })));
        let reopened = Floor::open(directory.path(), [1; 16], Mode::RUSR);
        assert!(matches!(reopened, Err(Problem::Corrupt { .. })));
    }

    #[test]
    fn f1_the_last_fence_fits_63_bits() {
        let directory = tempfile::tempdir().unwrap();
        let floor = floor(directory.path(), 1);
        let locked = floor.lock().unwrap();
        locked.raise(Fence::MAX).unwrap();
        assert!(matches!(locked.new_range(0), Err(Problem::Exhausted { .. })));
    }
}

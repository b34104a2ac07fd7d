//! A lock's file as the kernel describes it: which one it is, whether it is still in its place, and its marks.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
};

use rustix::{fs::AtFlags, io::Errno, path::Arg};

use crate::{
    problem::{Outcome, Problem},
    record::{self, CLOSING, Identity, QUEUE},
};

/// The number of the file at `path`, if there is one.
pub(crate) fn inode_at(path: &Path) -> Outcome<Option<u64>> {
    match rustix::fs::lstat(path) {
        Ok(stat) => Ok(Some(stat.st_ino)),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
        Err(errno) => Err(Problem::system("examining", path)(errno)),
    }
}

/// A file as the kernel describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(super) identity: Identity,
    links: u64,
    pub(super) length: u64,
}

impl Seen {
    /// An open file.
    pub(super) fn of(file: &OwnedFd) -> Result<Self, Errno> {
        #[cfg(target_os = "linux")]
        return Self::asked(file, "", AtFlags::EMPTY_PATH);
        #[cfg(not(target_os = "linux"))]
        return rustix::fs::fstat(file).map(Self::without_birth);
    }

    /// Whatever is at the path, which begins in `directory`.
    pub(super) fn at(directory: impl AsFd, path: impl Arg) -> Result<Option<Self>, Errno> {
        #[cfg(target_os = "linux")]
        let seen = Self::asked(directory, path, AtFlags::SYMLINK_NOFOLLOW);
        #[cfg(not(target_os = "linux"))]
        let seen = rustix::fs::statat(directory, path, AtFlags::SYMLINK_NOFOLLOW).map(Self::without_birth);
        match seen {
            Ok(seen) => Ok(Some(seen)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    #[cfg(target_os = "linux")]
    fn asked(from: impl AsFd, path: impl Arg, how: AtFlags) -> Result<Self, Errno> {
        use rustix::fs::StatxFlags;
        let wanted = StatxFlags::INO | StatxFlags::NLINK | StatxFlags::SIZE | StatxFlags::BTIME;
        let seen = rustix::fs::statx(from, path, how, wanted)?;
        let seconds = u64::try_from(seen.stx_btime.tv_sec).unwrap_or(0);
        let born = seconds.wrapping_mul(1_000_000_000).wrapping_add(seen.stx_btime.tv_nsec.into());
        let identity = Identity { inode: seen.stx_ino, born };
        Ok(Self { identity, links: seen.stx_nlink.into(), length: seen.stx_size })
    }

    #[cfg(not(target_os = "linux"))]
    fn without_birth(seen: rustix::fs::Stat) -> Self {
        let identity = Identity { inode: seen.st_ino, born: 0 };
        Self { identity, links: seen.st_nlink.into(), length: u64::try_from(seen.st_size).unwrap_or(0) }
    }

    /// Whether there may be waiters.
    pub(crate) fn may_have_waiters(self) -> bool {
        record::marks(self.length) & QUEUE != 0
    }

    pub(super) fn is_being_removed(self) -> bool {
        record::marks(self.length) & CLOSING != 0
    }

    /// Whether an open file is still the one at `path`. One link means that nobody removed it. (Somebody may have
    /// moved it; like a removal that comes a moment later, the holder is told of that by the watch.)
    pub(super) fn is_at(self, path: &Path) -> Outcome<bool> {
        match self.links {
            1 => Ok(true),
            0 => Ok(false),
            _ => Ok(inode_at(path)? == Some(self.identity.inode)),
        }
    }
}

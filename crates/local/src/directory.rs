//! The directory that the locks lie in: made, checked and refused when it cannot work.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use fencepost_core::{
    clock::{BootClock, Clock},
    error::{Error, ErrorKind, Operation},
    name::Namespace,
};
use rustix::{
    fd::OwnedFd,
    fs::{Access, Mode, OFlags},
    io::Errno,
};

use crate::{
    STORE,
    encode::encode,
    floor::{Floor, as_errno},
    problem::Problem,
    record::BootId,
};

/// A namespace's directory, ready for use.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    /// The directory itself: a file is found in it in half the time that its whole path takes.
    file: OwnedFd,
    /// Device and inode.
    identity: (u64, u64),
    /// When the directory was last seen at its path, in nanoseconds of the boot clock.
    seen_at: AtomicU64,
    /// The rights of files made in it.
    pub(crate) file_mode: Mode,
    /// The rights of directories made in it.
    pub(crate) directory_mode: u32,
    pub(crate) boot: BootId,
    pub(crate) floor: Floor,
}

impl Directory {
    /// Opens the directory of `namespace` below `base`, and makes both where they are missing.
    pub(crate) fn open(base: &Path, namespace: &Namespace, network: bool) -> Result<Self, Error> {
        make(base, 0o700)?;
        if !network {
            refuse_network(base)?;
        }
        let base_mode = mode_of(base)?;
        let path = base.join(encode(namespace.as_str()));
        make(&path, base_mode & 0o7777)?;
        writable(&path)?;
        let mode = mode_of(&path)?;
        let file_mode = file_mode(mode);
        let boot = boot_id()?;
        let open = |problem: Problem| problem.into_error(Operation::Open, None);
        let floor = Floor::open(&path, boot, file_mode).map_err(open)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let file = rustix::fs::open(&path, flags, Mode::empty());
        let file = file.map_err(|errno| open(Problem::system("opening", &path)(errno)))?;
        let found = rustix::fs::fstat(&file).map_err(|errno| open(Problem::system("examining", &path)(errno)))?;
        let identity = (found.st_dev, found.st_ino);
        let seen_at = AtomicU64::new(0);
        Ok(Self { path, file, identity, seen_at, file_mode, directory_mode: mode & 0o7777, boot, floor })
    }

    /// The directory, to look for a file in it; `None` when it is not the one at its path any more: then only the whole
    /// path tells. After a directory was replaced nothing is promised of its locks, so that it need not be noticed
    /// by the very next claim.
    pub(crate) fn handle(&self) -> Option<&OwnedFd> {
        let now = BootClock.now().as_nanos();
        if now.saturating_sub(self.seen_at.load(Ordering::Relaxed)) < SEEN_FOR_NANOS {
            return Some(&self.file);
        }
        let in_place = rustix::fs::stat(&self.path).is_ok_and(|found| (found.st_dev, found.st_ino) == self.identity);
        self.seen_at.store(if in_place { now } else { 0 }, Ordering::Relaxed);
        in_place.then_some(&self.file)
    }
}

const SEEN_FOR_NANOS: u64 = 20_000_000;

/// Who may write the directory may take its locks: a file gets the read and write bits that the directory's
/// writers need, and nobody else gets any.
fn file_mode(directory: u32) -> Mode {
    let group = if directory & 0o020 != 0 { 0o060 } else { 0 };
    let others = if directory & 0o002 != 0 { 0o006 } else { 0 };
    Mode::from_raw_mode(0o600 | group | others)
}

/// Makes `path` with `mode`, its missing parents with 0700. One that is there keeps the rights it has.
fn make(path: &Path, mode: u32) -> Result<(), Error> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(found) => {
            let kind = if found.file_type().is_socket() { "a socket" } else { "a file" };
            let said = format!("{} is {kind}, not a directory", path.display());
            let error = Error::new(ErrorKind::ForeignValue, Operation::Open, said).not_applied().in_store(STORE);
            return Err(error.advise("name a directory, which is made when it is missing"));
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("opening", path, &error)),
    }
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| failed("creating", path, &error))?;
    // The process's umask has no say in what a directory shared between users looks like inside.
    if mode != 0o700 {
        let rights = fs::set_permissions(path, fs::Permissions::from_mode(mode));
        rights.map_err(|error| failed("setting the rights of", path, &error))?;
    }
    Ok(())
}

fn mode_of(path: &Path) -> Result<u32, Error> {
    fs::metadata(path).map(|found| found.mode()).map_err(|error| failed("opening", path, &error))
}

fn writable(path: &Path) -> Result<(), Error> {
    let access = rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK | Access::EXEC_OK);
    access.map_err(|errno| Problem::system("writing to", path)(errno).into_error(Operation::Open, None))
}

fn failed(doing: &'static str, path: &Path, error: &std::io::Error) -> Error {
    Problem::system(doing, path)(as_errno(error)).into_error(Operation::Open, None)
}

#[cfg(target_os = "linux")]
fn boot_id() -> Result<BootId, Error> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| failed("reading", path, &error))?;
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    let mut boot = BootId::default();
    for (byte, pair) in boot.iter_mut().zip(digits.chunks(2)) {
        let pair = std::str::from_utf8(pair).unwrap_or_default();
        *byte = u8::from_str_radix(pair, 16)
            .map_err(|_| Problem::system("reading", path)(Errno::INVAL).into_error(Operation::Open, None))?;
    }
    Ok(boot)
}

/// Without an id of the boot every opening counts as one: its first grant of each lock takes a new range.
#[cfg(not(target_os = "linux"))]
fn boot_id() -> Result<BootId, Error> {
    let mut boot = BootId::default();
    boot.copy_from_slice(&fencepost_core::owner::Owner::random()?.as_bytes()[..16]);
    Ok(boot)
}

/// On a network file system a lock taken here may be unknown to other hosts, or lost with the connection, and the
/// page cache is not shared: neither exclusion nor the fence would hold.
#[cfg(target_os = "linux")]
fn refuse_network(path: &Path) -> Result<(), Error> {
    let found = rustix::fs::statfs(path)
        .map_err(|errno| Problem::system("examining", path)(errno).into_error(Operation::Open, None))?;
    match network_file_system(found.f_type as u64 & 0xffff_ffff) {
        None => Ok(()),
        Some(kind) => {
            let said = format!(
                "{} is on {kind}, where locks and the fence counter are not reliable between hosts",
                path.display()
            );
            let error = Error::new(ErrorKind::Misconfigured, Operation::Open, said).not_applied().in_store(STORE);
            Err(error.advise("use a directory of a local disk, or add `?network=yes` if only this host ever uses it"))
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn refuse_network(_path: &Path) -> Result<(), Error> {
    Ok(())
}

/// The name of a network file system by its magic number (statfs(2), linux/magic.h).
#[cfg(target_os = "linux")]
fn network_file_system(magic: u64) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b | 0xfe53_4d42 | 0xff53_4d42 => "SMB/CIFS",
        0x0102_1997 => "9p",
        0x6573_5546 => "FUSE, which may be remote",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x0116_1970 => "GFS2",
        0x0bd0_0bd0 => "Lustre",
        0x7461_636f => "OCFS2",
        0x7375_7245 => "Coda",
        0x564c => "NCP",
        0x1983_0326 => "BeeGFS",
        0x4750_4653 | 0x4750_4653_0000 => "GPFS",
        0xaad7_aaea => "Panasas",
        0x786f_4256 => "a shared folder of VirtualBox",
        0xbacb_acbc => "a shared folder of VMware",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_writers_of_a_directory_get_at_its_files() {
        assert_eq!(file_mode(0o40700).as_raw_mode(), 0o600);
        assert_eq!(file_mode(0o40755).as_raw_mode(), 0o600);
        assert_eq!(file_mode(0o42770).as_raw_mode(), 0o660);
        assert_eq!(file_mode(0o41777).as_raw_mode(), 0o666);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn c4_network_file_systems_are_known_by_their_magic() {
        for magic in [0x6969, 0xff53_4d42, 0x0102_1997, 0x6573_5546, 0x00c3_6400] {
            assert!(network_file_system(magic).is_some(), "{magic:x}");
        }
        for local in [0xef53_u64, 0x0102_1994, 0x5846_5342, 0x9123_683e, 0x794c_7630] {
            assert_eq!(network_file_system(local), None, "{local:x}");
        }
    }
}

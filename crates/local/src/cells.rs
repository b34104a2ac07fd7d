//! Cells: small values that change on condition of their version, each a file below `.cells`.
//!
//! A file is replaced as a whole, by a rename, so whoever reads it needs no lock. Changes of one cell go one after
//! another by the lock of one of [`STRIPES`] files, which never go away and also hold the last version that was given
//! out under them, so that none comes twice when a cell is removed. A change is on the disk before it is answered.

use std::{
    fs,
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use fencepost_core::{
    cells::{Cell, Cells, Change, Changed, Version},
    clock::{self, BootClock, Clock, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    name::LockName,
    owner::Owner,
    store::BoxFuture,
};
use rustix::{
    fs::{FlockOperation, OFlags},
    io::Errno,
};
use tokio::sync::Notify;

use crate::{
    STORE,
    directory::Directory,
    encode::encode,
    floor::as_errno,
    problem::{Outcome, Problem},
    record::BootId,
    store::DirectoryStore,
    watch::DirectoryWatch,
};

/// Cells that share a lock file are changed one after another.
const STRIPES: u8 = 64;
/// A change holds its lock for as long as the disk takes; a process that was stopped meanwhile, for longer.
const LOCKED_WITHIN: Duration = Duration::from_secs(5);
/// How often a cell is looked at where the kernel gives no watch.
const POLL: Duration = Duration::from_millis(100);
/// How often it is looked at all the same.
const BACKSTOP: Duration = Duration::from_secs(5);

/// Where one cell lies.
struct Place {
    name: LockName,
    file: PathBuf,
    /// What a directory's events call it.
    file_name: String,
    stripe: u8,
}

impl Place {
    fn of(cells: &Path, name: &LockName) -> Self {
        let encoded = encode(name.as_str());
        let stripe = encoded.bytes().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte)) % STRIPES;
        let file_name = format!("{encoded}.cell");
        Self { name: name.clone(), file: cells.join(&file_name), file_name, stripe }
    }

    /// The cell, unless it has expired.
    fn read(&self, boot: &BootId) -> Outcome<Option<Cell>> {
        let bytes = match fs::read(&self.file) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Problem::system("reading", &self.file)(as_errno(&error))),
        };
        match Written::parse(&bytes) {
            Some(written) if written.name == self.name.as_str() => Ok(written.cell(boot)),
            _ => {
                Err(Problem::Foreign { path: self.file.clone(), found: "holds something that is not this cell".into() })
            }
        }
    }
}

/// A cell as its file has it: a line of text, and the value after it.
struct Written<'a> {
    by: Owner,
    version: u64,
    expires: Option<Expiry>,
    name: &'a str,
    value: &'a [u8],
}

/// When a cell ends: on the clock of the boot it was written in, and by the wall clock after another boot.
#[derive(Clone, Copy)]
struct Expiry {
    boot: BootId,
    boot_ms: u64,
    unix_ms: u64,
}

impl Expiry {
    fn after(span: Duration, boot: BootId) -> Self {
        let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let (boot_ms, unix_ms) = (since_boot_ms().saturating_add(span), wall_unix_ms(&BootClock).saturating_add(span));
        Self { boot, boot_ms, unix_ms }
    }

    /// How long yet; `None` when it is over.
    fn left(self, boot: &BootId) -> Option<Duration> {
        let (end, now) =
            if self.boot == *boot { (self.boot_ms, since_boot_ms()) } else { (self.unix_ms, wall_unix_ms(&BootClock)) };
        end.checked_sub(now).filter(|left| *left > 0).map(Duration::from_millis)
    }
}

fn since_boot_ms() -> u64 {
    BootClock.now().as_nanos() / 1_000_000
}

impl<'a> Written<'a> {
    /// `fencepost-cell 1 BY VERSION BOOT BOOT_MS UNIX_MS NAME`, with `-` for what does not expire. A name holds no line
    /// break.
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let line = std::str::from_utf8(&bytes[..end]).ok()?.strip_prefix("fencepost-cell 1 ")?;
        let mut words = line.splitn(6, ' ');
        let (by, version) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (boot, boot_ms, unix_ms) = (words.next()?, words.next()?, words.next()?);
        let expires = match boot {
            "-" => None,
            hex => Some(Expiry { boot: boot_of(hex)?, boot_ms: boot_ms.parse().ok()?, unix_ms: unix_ms.parse().ok()? }),
        };
        Some(Self { by, version, expires, name: words.next()?, value: &bytes[end + 1..] })
    }

    fn bytes(&self) -> Vec<u8> {
        let expires = match self.expires {
            None => "- - -".to_owned(),
            Some(at) => format!("{} {} {}", hex(&at.boot), at.boot_ms, at.unix_ms),
        };
        let mut bytes = format!("fencepost-cell 1 {} {} {expires} {}\n", self.by, self.version, self.name).into_bytes();
        bytes.extend(self.value);
        bytes
    }

    fn cell(&self, boot: &BootId) -> Option<Cell> {
        let expires_in = match self.expires {
            None => None,
            Some(expiry) => Some(expiry.left(boot)?),
        };
        Some(Cell { value: self.value.into(), version: Version(self.version), by: self.by, expires_in })
    }
}

fn hex(boot: &BootId) -> String {
    boot.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn boot_of(text: &str) -> Option<BootId> {
    let mut boot = BootId::default();
    if text.len() != 2 * boot.len() || !text.is_ascii() {
        return None;
    }
    for (byte, pair) in boot.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(boot)
}

/// The lock that a change is made under.
struct Stripe {
    file: OwnedFd,
    path: PathBuf,
}

impl Stripe {
    /// Waits for the lock, for a short time.
    fn lock(cells: &Path, stripe: u8, directory: &Directory) -> Outcome<Self> {
        let path = cells.join(format!(".lock-{stripe:02}"));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(&path, flags, directory.file_mode).map_err(Problem::system("opening", &path))?;
        let until = BootClock.now().after(LOCKED_WITHIN);
        let mut pause = Duration::from_micros(50);
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { file, path }),
                Err(Errno::WOULDBLOCK | Errno::INTR) if BootClock.now() < until => {
                    thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(5));
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(Problem::Stuck { path, what: "is locked by a process that does not finish" });
                }
                Err(errno) => return Err(Problem::system("locking", &path)(errno)),
            }
        }
    }

    /// A version above every earlier one of this stripe. Should a failure of the machine lose the count, the wall clock
    /// stands in for it.
    fn next_version(&self, before: Option<u64>) -> Outcome<u64> {
        let mut last = [0; 8];
        let known = rustix::io::pread(&self.file, &mut last, 0).map_err(Problem::system("reading", &self.path))?;
        let last = if known == last.len() { u64::from_be_bytes(last) } else { 0 };
        let micros = wall_unix_ms(&BootClock).saturating_mul(1000);
        let next = micros.max(last.saturating_add(1)).max(before.unwrap_or(0).saturating_add(1));
        rustix::io::pwrite(&self.file, &next.to_be_bytes(), 0).map_err(Problem::system("writing", &self.path))?;
        Ok(next)
    }
}

fn change(directory: &Directory, change: &Change) -> Outcome<Changed> {
    let cells = made(directory)?;
    let place = Place::of(&cells, &change.key);
    let stripe = Stripe::lock(&cells, place.stripe, directory)?;
    let found = place.read(&directory.boot)?;
    if let Some(cell) = found.as_ref().filter(|cell| cell.by == change.by) {
        return Ok(Changed::Done(cell.version)); // a repeat of a change whose answer was lost
    }
    if !change.expected.matches(found.as_ref()) {
        return Ok(Changed::Conflict(found));
    }
    let before = found.map(|cell| cell.version.0);
    match &change.value {
        Some(value) => {
            let version = stripe.next_version(before)?;
            let expires = change.ttl.map(|ttl| Expiry::after(ttl.get(), directory.boot));
            let written = Written { by: change.by, version, expires, name: place.name.as_str(), value };
            replace(&cells, &place, &written.bytes(), directory)?;
            Ok(Changed::Done(Version(version)))
        }
        None => {
            fs::remove_file(&place.file).map_err(|error| Problem::system("removing", &place.file)(as_errno(&error)))?;
            synced(&cells)?;
            Ok(Changed::Done(Version(before.unwrap_or_default())))
        }
    }
}

/// Puts a whole new file in the place of the old one. Killed in the midst, it leaves the old one, and a file that the
/// next change of the stripe overwrites.
fn replace(cells: &Path, place: &Place, bytes: &[u8], directory: &Directory) -> Outcome<()> {
    let new = cells.join(format!(".new-{:02}", place.stripe));
    let failed = |doing| {
        let new = new.clone();
        move |error: std::io::Error| Problem::system(doing, &new)(as_errno(&error))
    };
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(directory.file_mode.as_raw_mode());
    options.custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let mut file = options.open(&new).map_err(failed("opening"))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed("writing"))?;
    fs::rename(&new, &place.file).map_err(failed("renaming"))?;
    synced(cells)
}

/// What was renamed or removed is so after a failure of the machine as well.
fn synced(cells: &Path) -> Outcome<()> {
    let opened = fs::File::open(cells).and_then(|directory| rustix::fs::fsync(directory.as_fd()).map_err(Into::into));
    opened.map_err(|error| Problem::Unsynced { path: cells.to_owned(), errno: as_errno(&error) })
}

/// The directory of the cells, made when it is missing.
fn made(directory: &Directory) -> Outcome<PathBuf> {
    let cells = directory.path.join(".cells");
    match fs::DirBuilder::new().mode(directory.directory_mode).create(&cells) {
        Ok(()) => {
            // The process's umask has no say in what a directory shared between users looks like inside.
            let rights = std::os::unix::fs::PermissionsExt::from_mode(directory.directory_mode);
            fs::set_permissions(&cells, rights)
                .map_err(|error| Problem::system("setting the rights of", &cells)(as_errno(&error)))?;
            Ok(cells)
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(cells),
        Err(error) => Err(Problem::system("creating", &cells)(as_errno(&error))),
    }
}

impl Cells for DirectoryStore {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        Box::pin(async move {
            let directory = &self.shared.directory;
            let place = Place::of(&directory.path.join(".cells"), key);
            place.read(&directory.boot).map_err(|problem| problem.into_error(Operation::Update, Some(key)))
        })
    }

    fn change<'a>(&'a self, wanted: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(async move {
            // On a thread that may wait for the disk. Should the caller go away, it is done all the same.
            let (shared, key, wanted) = (Arc::clone(&self.shared), wanted.key.clone(), wanted.clone());
            let changed = tokio::task::spawn_blocking(move || change(&shared.directory, &wanted)).await;
            match changed {
                Ok(outcome) => outcome.map_err(|problem| problem.into_error(Operation::Update, Some(&key))),
                Err(_) => {
                    let said = "the runtime ended before the change was made";
                    Err(Error::new(ErrorKind::Closed, Operation::Update, said).on_lock(&key).in_store(STORE))
                }
            }
        })
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let told = |problem: Problem| problem.into_error(Operation::Update, Some(key));
            let cells = made(&self.shared.directory).map_err(told)?;
            let place = Place::of(&cells, key);
            let (bell, file_name) = (Arc::new(Notify::new()), place.file_name.clone());
            let rung = Arc::clone(&bell);
            let watch = DirectoryWatch::new(&cells, move |what| {
                if what.is_none_or(|name| name == file_name.as_bytes()) {
                    rung.notify_one();
                }
            });
            let pause = if watch.is_some() { BACKSTOP } else { POLL };
            loop {
                let found = place.read(&self.shared.directory.boot).map_err(told)?;
                if found.as_ref().map(|cell| cell.version) != seen {
                    return Ok(());
                }
                let left = found.and_then(|cell| cell.expires_in);
                tokio::select! {
                    () = bell.notified() => {}
                    () = clock::sleep(&BootClock, left.map_or(pause, |left| left.min(pause))) => {}
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{cells::Expected, name::Namespace};

    use super::*;
    use crate::config::DirectoryConfig;

    const BOOT: BootId = [7; 16];

    fn written(expires: Option<Expiry>) -> Vec<u8> {
        let by = Owner::from_bytes([1; 20]);
        Written { by, version: 9, expires, name: "a b c", value: b"line\nline" }.bytes()
    }

    #[test]
    fn a_cells_file_reads_back_and_nothing_foreign_does() {
        for expires in [None, Some(Expiry::after(Duration::from_secs(60), BOOT))] {
            let bytes = written(expires);
            let read = Written::parse(&bytes).unwrap();
            assert_eq!((read.name, read.version, read.value), ("a b c", 9, &b"line\nline"[..]));
            let cell = read.cell(&BOOT).unwrap();
            assert_eq!(cell.expires_in.is_some(), expires.is_some());
        }
        let whole = written(None);
        let header = whole.iter().position(|byte| *byte == b'\n').unwrap();
        for length in 0..header {
            assert!(Written::parse(&whole[..length]).is_none(), "{length} bytes");
        }
        assert!(Written::parse(b"fencepost-cell 2 x\nvalue").is_none());
    }

    /// The clock of a boot starts anew; what was written before is judged by the wall clock.
    #[test]
    fn t2_a_cell_expires_also_after_a_restart_of_the_machine() {
        let wall = wall_unix_ms(&BootClock);
        let before = |unix_ms| Expiry { boot: [8; 16], boot_ms: u64::MAX, unix_ms };
        assert_eq!(before(wall.saturating_sub(1)).left(&BOOT), None);
        assert!(before(wall + 60_000).left(&BOOT).is_some_and(|left| left > Duration::from_secs(50)));
    }

    #[tokio::test]
    async fn c4_a_foreign_file_in_a_cells_place_is_left_alone() {
        let base = tempfile::tempdir().unwrap();
        let config = DirectoryConfig::new(base.path());
        let store = DirectoryStore::open(config, &Namespace::default(), BootClock::shared()).unwrap();
        let key = LockName::new("x").unwrap();
        let first = Change::write(key.clone(), Expected::Absent, *b"ours").unwrap();
        assert!(matches!(store.change(&first).await, Ok(Changed::Done(_))));
        let file = Place::of(&store.shared.directory.path.join(".cells"), &key).file;
        fs::write(&file, "somebody else's").unwrap();
        let next = Change::write(key.clone(), Expected::Absent, *b"ours again").unwrap();
        for refused in [store.read(&key).await.map(drop), store.change(&next).await.map(drop)] {
            assert_eq!(refused.unwrap_err().kind(), ErrorKind::ForeignValue);
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "somebody else's");
    }
}

//! Cells: small values that change on condition of their version, each a file below `.cells`.
//!
//! A file is replaced as a whole, by a rename, so whoever reads it needs no lock. Changes of one cell go one after
//! another by the lock of one of [`STRIPES`] files, which never go away and also hold the last version that was given
//! out under them, so that none comes twice when a cell is removed. A change is on the disk before it is answered.

mod file;

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
    backoff::jitter,
    cells::{Cell, Cells, Change, Changed, Version},
    clock::{self, BootClock, Clock, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    name::LockName,
    store::BoxFuture,
};
use file::{Expiry, Written};
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
/// What has expired is removed with one change in so many, by looking through the whole directory.
const SWEEP_ONE_IN: f64 = 64.0;
const SUFFIX: &str = ".cell";
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
        let file_name = format!("{encoded}{SUFFIX}");
        Self { name: name.clone(), file: cells.join(&file_name), file_name, stripe: stripe_of(encoded.as_bytes()) }
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

fn stripe_of(encoded: &[u8]) -> u8 {
    encoded.iter().fold(0_u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)) % STRIPES
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
            if jitter() < 1.0 / SWEEP_ONE_IN {
                sweep(&cells, place.stripe, &stripe, directory);
            }
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

/// Removes the cells of one stripe that have expired: nobody else would, and names can be used once each. What goes
/// wrong leaves clutter, and the next sweep meets it.
fn sweep(cells: &Path, number: u8, _locked: &Stripe, directory: &Directory) {
    let Ok(entries) = fs::read_dir(cells) else { return };
    for entry in entries.flatten() {
        let ours = |encoded: &[u8]| stripe_of(encoded) == number;
        if !entry.file_name().as_encoded_bytes().strip_suffix(SUFFIX.as_bytes()).is_some_and(ours) {
            continue;
        }
        let Ok(bytes) = fs::read(entry.path()) else { continue };
        if Written::parse(&bytes).is_some_and(|written| written.cell(&directory.boot).is_none()) {
            let _ = fs::remove_file(entry.path());
        }
    }
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
    use fencepost_core::{cells::Expected, limits::Ttl, name::Namespace};

    use super::*;
    use crate::config::DirectoryConfig;

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

    #[tokio::test]
    async fn what_has_expired_is_swept_away_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let config = DirectoryConfig::new(base.path());
        let store = DirectoryStore::open(config, &Namespace::default(), BootClock::shared()).unwrap();
        let cells = store.shared.directory.path.join(".cells");
        let (brief, lasting) = (LockName::new("brief").unwrap(), LockName::new("lasting").unwrap());
        let change = Change::write(brief.clone(), Expected::Absent, *b"1").unwrap();
        store.change(&change.expiring(Ttl::new(Ttl::MIN).unwrap())).await.unwrap();
        store.change(&Change::write(lasting.clone(), Expected::Absent, *b"2").unwrap()).await.unwrap();
        fs::write(cells.join("foreign.cell"), "somebody else's").unwrap();
        while store.read(&brief).await.unwrap().is_some() {
            clock::sleep(&BootClock, Ttl::MIN).await;
        }
        for number in 0..STRIPES {
            let stripe = Stripe::lock(&cells, number, &store.shared.directory).unwrap();
            sweep(&cells, number, &stripe, &store.shared.directory);
        }
        assert!(!Place::of(&cells, &brief).file.exists(), "it has expired");
        assert!(store.read(&lasting).await.unwrap().is_some());
        assert!(cells.join("foreign.cell").exists());
    }
}

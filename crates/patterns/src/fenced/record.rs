//! The newest fence that a resource on a disk has seen, in a file of its own.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use fencepost_core::fence::Fence;

use super::Refused;
use crate::alone;

/// The number takes one of two places in turn, each with a checksum and in a sector of its own: a power failure during a
/// write damages that one, and the other still has the number before.
const PLACES: [u64; 2] = [0, 4096];
/// `{fence:020} {checksum:08x}\n`
const LENGTH: usize = 30;

/// The record, locked for this step.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
    seen: Option<Fence>,
    /// Where the next number goes.
    next: usize,
}

impl Record {
    /// Opens the record at `path`, or makes it, and locks it until it is dropped.
    pub(super) fn lock(path: &Path) -> io::Result<Self> {
        let file = alone::opened(path)?;
        alone::wait_for(&file)?;
        Self::of(file, path)
    }

    /// The same at once; `None` while another has it.
    #[cfg(feature = "http")]
    pub(super) fn lock_if_free(path: &Path) -> io::Result<Option<Self>> {
        let file = alone::opened(path)?;
        if alone::had(&file)? { Self::of(file, path).map(Some) } else { Ok(None) }
    }

    fn of(file: File, path: &Path) -> io::Result<Self> {
        let numbers = [read(&file, PLACES[0])?, read(&file, PLACES[1])?];
        let seen = numbers.into_iter().flatten().max();
        if seen.is_none() {
            // Whoever made it may not have come to this.
            sync_parent(path)?;
        }
        if seen.is_none() && file.metadata()?.len() > 0 {
            let said = format!(
                "{}: the record of the newest fence is damaged; write the newest fence that was ever granted into it, as \
                 20 digits, a space and the CRC-32 of those digits as 8 hexadecimal digits",
                path.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, said));
        }
        let next = usize::from(seen.is_some() && numbers[0] == seen);
        Ok(Self { file, seen, next })
    }

    /// Compares, and remembers a newer fence on the disk before it answers.
    pub(super) fn advance(&mut self, fence: Fence) -> Result<(), Refused<io::Error>> {
        match self.seen {
            Some(seen) if seen > fence => return Err(Refused::Stale { seen }),
            // Whoever wrote it may have died before it was on the disk.
            Some(seen) if seen == fence => return Ok(self.file.sync_data()?),
            _ => {}
        }
        self.file.write_all_at(line(fence).as_bytes(), PLACES[self.next])?;
        self.file.sync_data()?;
        (self.seen, self.next) = (Some(fence), 1 - self.next);
        Ok(())
    }
}

fn read(file: &File, place: u64) -> io::Result<Option<Fence>> {
    let mut bytes = [0; LENGTH];
    match file.read_exact_at(&mut bytes, place) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    let fence = std::str::from_utf8(&bytes[..20]).ok().and_then(|digits| digits.parse().ok()).and_then(Fence::new);
    Ok(fence.filter(|fence| line(*fence).as_bytes() == bytes))
}

fn line(fence: Fence) -> String {
    let digits = format!("{:020}", fence.get());
    format!("{digits} {:08x}\n", crc32fast::hash(digits.as_bytes()))
}

/// Replaces the file at `path` in one step: a reader sees the old content or the new one, also after a power failure. Its mode
/// stays. Only under a record's lock, since the new content grows in a file beside it.
pub(super) fn replace(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let before = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        before => Some(before?.permissions()),
    };
    let beside = beside(path, "new");
    // What a process left that died here may be open to others.
    remove(&beside)?;
    // Nobody reads on its way what he may not read at its place.
    let at_first = if before.is_some() { 0o600 } else { 0o666 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(at_first).open(&beside)?;
    for part in parts {
        io::Write::write_all(&mut file, part)?;
    }
    if let Some(mode) = before {
        file.set_permissions(mode)?;
    }
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    sync_parent(path)
}

/// Removes the file at `path`; whether there was one.
pub(super) fn remove(path: &Path) -> io::Result<bool> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        removed => removed.and_then(|()| sync_parent(path)).map(|()| true),
    }
}

/// What the file at `path` holds.
pub(super) fn content(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        content => content.map(Some),
    }
}

/// `.NAME.WHAT` in the same directory.
pub(super) fn beside(path: &Path, what: &str) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(".");
    name.push(what);
    path.with_file_name(name)
}

fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(parent)?.sync_all()
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    fn fence(number: u64) -> Fence {
        Fence::new(number).unwrap()
    }

    fn seen(path: &Path) -> io::Result<Option<Fence>> {
        Record::lock(path).map(|record| record.seen)
    }

    #[test]
    fn f1_a_torn_write_leaves_the_number_before_and_two_are_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        for number in [7, 8, 9] {
            Record::lock(&path).unwrap().advance(fence(number)).unwrap();
        }
        assert_eq!(seen(&path).unwrap(), Some(fence(9)));
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"00000000000000000099", PLACES[0]).unwrap(); // where the 9 is
        assert_eq!(seen(&path).unwrap(), Some(fence(8)));
        file.write_all_at(b"x", PLACES[1]).unwrap();
        assert_eq!(seen(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        // As the message says.
        file.write_all_at(line(fence(9)).as_bytes(), 0).unwrap();
        assert_eq!(seen(&path).unwrap(), Some(fence(9)));
    }

    #[test]
    fn content_that_is_replaced_is_never_open_to_more_people_than_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secret");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let usual = directory.path().join("usual");
        File::create(&usual).unwrap();
        replace(&path, &[b"first"]).unwrap();
        assert_eq!(mode(&path), mode(&usual));
        for kept in [0o600, 0o640, 0o444] {
            std::fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            // What a process left that died, and others may read still.
            let left = File::create(beside(&path, "new")).unwrap();
            replace(&path, &[b"secret"]).unwrap();
            assert_eq!((mode(&path), left.metadata().unwrap().len()), (kept, 0));
        }
    }

    #[test]
    fn c1_a_step_that_finds_another_in_its_midst_waits_and_then_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let held = Record::lock(&path).unwrap();
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || Record::lock(&path).map(drop)
        });
        assert!(!waiting.is_finished());
        drop(held);
        waiting.join().unwrap().unwrap();
    }
}

//! A disk that can be full: a small one in memory, mounted where nobody else sees it.

use std::{
    fs::File,
    io::{ErrorKind, Write},
    path::Path,
};

use rustix::mount::{UnmountFlags, unmount};
use tempfile::TempDir;

use crate::namespaces::Namespaces;

/// What lies there to leave no room.
const FILLING: &str = "filling";

/// A directory on a disk of its own. Both are gone when it is dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// An empty one of so many bytes.
    ///
    /// # Errors
    /// In words, when it cannot be made.
    pub fn new(within: Namespaces, bytes: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir().map_err(|error| format!("no directory for a small disk: {error}"))?;
        within.mount_small_disk(directory.path(), bytes)?;
        Ok(Self(directory))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves no room for another byte, and looks whether that is so.
    ///
    /// # Errors
    /// In words, when it does not get full.
    pub fn fill(&self) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("the small disk cannot be filled: {error}");
        let mut filling = File::options().create(true).append(true).open(self.path().join(FILLING)).map_err(failed)?;
        // In ever smaller pieces, so that nothing is left between them.
        for size in [1 << 20, 1 << 12, 1] {
            let piece = vec![0x78; size];
            while match filling.write(&piece) {
                Ok(written) => written > 0,
                Err(error) if error.kind() == ErrorKind::StorageFull => false,
                Err(error) => return Err(failed(error)),
            } {}
        }
        self.is_full().then_some(()).ok_or_else(|| "the small disk takes more all the same".to_owned())
    }

    /// Whether it takes not one byte more.
    pub fn is_full(&self) -> bool {
        let probe = self.path().join("probe");
        let full = File::create(&probe).and_then(|mut file| file.write_all(b"x"));
        let _ = std::fs::remove_file(probe);
        full.is_err_and(|error| error.kind() == ErrorKind::StorageFull)
    }

    /// Makes room again.
    ///
    /// # Errors
    /// In words, when that is not possible.
    pub fn clear(&self) -> Result<(), String> {
        std::fs::remove_file(self.path().join(FILLING))
            .map_err(|error| format!("the small disk cannot be cleared: {error}"))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Also one that is in use yet: it goes away with whoever uses it.
        let _ = unmount(self.path(), UnmountFlags::DETACH);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_gets_full_and_has_room_again_and_nobody_else_sees_it() {
        let path = std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                let within = Namespaces::enter().map_err(|why| eprintln!("SKIPPED, no namespaces here: {why}")).ok()?;
                let disk = SmallDisk::new(within, 1 << 20).expect("a small disk");
                assert!(!disk.is_full());
                disk.fill().expect("it gets full");
                assert!(disk.is_full());
                std::fs::write(disk.path().join("more"), "x").expect_err("it is full");
                disk.clear().expect("room");
                std::fs::write(disk.path().join("more"), "x").expect("there is room");
                Some((disk.path().to_owned(), disk))
            });
            inside.join().expect("no panic")
        });
        let Some((path, _disk)) = path else { return };
        assert_eq!(std::fs::read_dir(path).expect("the directory below").count(), 0, "it is mounted for us alone");
    }
}

use std::{fs, sync::Barrier, thread};

use fencepost_core::name::{LockName, Namespace};
use tempfile::TempDir;

use crate::problem::Again;

use super::*;

struct Scene {
    _base: TempDir,
    directory: Directory,
    place: Place,
}

impl Scene {
    fn new() -> Self {
        let base = tempfile::tempdir().unwrap();
        let directory = Directory::open(base.path(), &Namespace::default(), false).unwrap();
        let place = Place::of(&directory.path, &LockName::new("x").unwrap());
        Self { _base: base, directory, place }
    }

    fn open(&self) -> LockFile {
        LockFile::open(&self.directory, &self.place).unwrap()
    }

    /// Takes the lock, which is free, and says under which fence.
    fn take(&self, lock: &LockFile) -> u64 {
        match self.try_take(lock) {
            Tried::Taken { fence, .. } => fence.get(),
            other => panic!("{other:?}"),
        }
    }

    fn try_take(&self, lock: &LockFile) -> Tried {
        let owner = Owner::random().unwrap();
        self.persist(|| {
            let taker = Taker { owner: &owner, claimant: b"{}", since_unix_ms: 0, seats: Seats::None };
            lock.try_take(&self.directory, &self.place, taker)
        })
    }

    /// As the store does it, on a thread that may wait.
    fn persist<T>(&self, mut step: impl FnMut() -> Outcome<T>) -> T {
        loop {
            match step() {
                Err(Problem::Again(Again::CeilingReached)) => {
                    let _ = self.directory.floor.raise();
                }
                Err(Problem::Again(Again::FloorTaken)) => thread::yield_now(),
                outcome => return outcome.unwrap(),
            }
        }
    }

    fn length(&self) -> u64 {
        fs::metadata(&self.place.file).unwrap().len()
    }
}

#[test]
fn a_refused_break_leaves_no_mark() {
    let scene = Scene::new();
    let (held, breaker) = (scene.open(), scene.open());
    scene.take(&held);
    let before = scene.length();
    let refused = scene.persist(|| breaker.take_away(&scene.directory, &scene.place, || Ok(false)));
    assert!(!refused);
    assert_eq!(scene.length(), before, "the announcement was taken back");
    // The next taker meets nothing that he would have to wait out.
    held.unlock();
    let next = scene.open();
    scene.take(&next);
    assert!(next.not_removed(&scene.place.file).unwrap().is_some());
}

/// A removed file's number is given to the next file. A copy of the old content that comes to lie in it says the right
/// number and another birth.
#[test]
fn f4_a_copy_in_a_file_of_the_same_number_is_told_by_its_birth() {
    let scene = Scene::new();
    let lock = scene.open();
    let first = scene.take(&lock);
    let identity = lock.look(&scene.place.file).unwrap().identity;
    let copied = Issued {
        fence: first,
        range_end: first + 1000,
        since_unix_ms: 0,
        boot: scene.directory.boot,
        owner: Owner::random().unwrap(),
        seats: Seats::None,
    };
    let elsewhere = Identity { born: identity.born ^ 1, ..identity };
    fs::write(&scene.place.file, record::new_page("x", elsewhere, &copied, b"{}")).unwrap();
    lock.unlock();
    let lock = scene.open();
    let next = scene.take(&lock);
    assert!(next > copied.range_end, "{next} comes from a range that another file was given");
    lock.unlock();
    assert_eq!(scene.take(&scene.open()), next + 1, "and the file is its own from then on");
}

/// Both saw the same holder. The slower one must not remove the file that came after.
#[test]
fn two_removers_at_once_take_the_lock_from_one_holder_only() {
    let scene = Scene::new();
    for round in 0..200 {
        let held = scene.open();
        let fence = Fence::new(scene.take(&held));
        let start = Barrier::new(3);
        thread::scope(|threads| {
            let removers: Vec<_> = (0..2)
                .map(|_| {
                    threads.spawn(|| {
                        let lock = LockFile::open_existing(&scene.place).unwrap().unwrap();
                        start.wait();
                        let recorded = || lock.recorded(&scene.place.file);
                        let still = || Ok(recorded()?.and_then(|holder| holder.fence) == fence);
                        scene.persist(|| lock.take_away(&scene.directory, &scene.place, still))
                    })
                })
                .collect();
            start.wait();
            let next = loop {
                let lock = scene.open();
                if let Tried::Taken { fence: next, .. } = scene.try_take(&lock) {
                    assert!(Some(next) > fence);
                    break lock;
                }
            };
            let broken: Vec<bool> = removers.into_iter().map(|remover| remover.join().unwrap()).collect();
            assert!(broken.contains(&true), "round {round}");
            assert!(
                next.not_removed(&scene.place.file).unwrap().is_some(),
                "round {round}: the next holder was robbed"
            );
        });
    }
}

//! A resource that checks fences: one number in a file.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use fencepost::{Acquired, Attempt, Correctness, Fence, Lease, Locks};
use rustix::fs::{FlockOperation, flock};

/// Short, so that the lock of a killed holder comes free while the test still runs.
const TTL: Duration = Duration::from_secs(3);

/// A number that holders add to. Every step is atomic, by a lock on the file that belongs to the resource alone.
#[derive(Clone, Debug)]
pub struct Ledger(PathBuf);

/// The fence was older than one the resource had seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The newest that the resource has seen.
    pub seen: u64,
}

impl Ledger {
    /// The ledger in `path`, an existing file.
    pub fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Makes the resource see a new holder's fence, and reads the number after that.
    ///
    /// # Errors
    /// [`Refused`] when it has seen a newer one.
    pub fn advance(&self, fence: Fence) -> Result<u64, Refused> {
        self.step(fence, None)
    }

    /// Writes the number.
    ///
    /// # Errors
    /// [`Refused`] when it has seen a newer fence; nothing was written.
    pub fn write(&self, fence: Fence, value: u64) -> Result<u64, Refused> {
        self.step(fence, Some(value))
    }

    /// The number.
    pub fn read(&self) -> u64 {
        read(&mut self.open()).1
    }

    fn step(&self, fence: Fence, value: Option<u64>) -> Result<u64, Refused> {
        let mut file = self.open();
        let (seen, old) = read(&mut file);
        if fence.get() < seen {
            return Err(Refused { seen });
        }
        let value = value.unwrap_or(old);
        file.rewind().expect("a ledger file");
        write!(file, "{:020} {value:020}", fence.get()).expect("a ledger file");
        Ok(value)
    }

    fn open(&self) -> File {
        let file = OpenOptions::new().read(true).write(true).open(&self.0).expect("a ledger file");
        flock(&file, FlockOperation::LockExclusive).expect("a lock on the ledger file");
        file
    }
}

fn read(file: &mut File) -> (u64, u64) {
    let mut text = String::new();
    file.read_to_string(&mut text).expect("a ledger file");
    let mut numbers = text.split_whitespace().map(|number| number.parse().expect("a number"));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Adds one `count` times under the lock `name`; answers how many writes were refused and done again.
///
/// # Panics
/// When the lock cannot be had.
pub async fn increment(locks: &Locks<Correctness>, name: &str, count: u64, ledger: &Ledger) -> u64 {
    let (mut done, mut refused) = (0, 0);
    while done < count {
        let lease = taken(locks, name).await;
        let Ok(value) = ledger.advance(lease.fence()) else {
            refused += 1;
            continue;
        };
        tokio::time::sleep(Duration::from_millis(done % 5)).await; // the work, in which the lock may be lost
        match ledger.write(lease.fence(), value + 1) {
            Ok(_) => done += 1,
            Err(_) => refused += 1,
        }
    }
    refused
}

/// Takes the lock `count` times and appends each fence to `log` while it holds.
///
/// # Panics
/// When the lock cannot be had.
pub async fn log_fences(locks: &Locks<Correctness>, name: &str, count: u64, log: &Path) {
    let mut log = OpenOptions::new().append(true).open(log).expect("a log");
    for _ in 0..count {
        let mut lease = taken(locks, name).await;
        let line = format!("{}\n", lease.fence());
        log.write_all(line.as_bytes()).expect("a log"); // one call, which appends in one piece
        lease.release().await.expect("an answer");
    }
}

/// How many fences a log holds.
///
/// # Panics
/// When one is not higher than the one before.
pub fn assert_rising(log: &Path) -> usize {
    let text = std::fs::read_to_string(log).expect("a log");
    let fences: Vec<u64> = text.lines().map(|line| line.parse().expect("a fence")).collect();
    for pair in fences.windows(2) {
        assert!(pair[0] < pair[1], "fence {} was granted after {}", pair[1], pair[0]);
    }
    fences.len()
}

async fn taken(locks: &Locks<Correctness>, name: &str) -> Lease<Correctness> {
    match locks.lock(name).ttl(TTL).acquire().await {
        Ok(Acquired(lease)) => lease,
        Ok(Attempt::Busy(busy)) => panic!("busy without a limit: {busy:?}"),
        Err(error) => panic!("{error}"),
    }
}

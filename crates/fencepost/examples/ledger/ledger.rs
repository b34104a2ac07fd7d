//! The resource: a number in a file, which refuses whoever is late.
//!
//! Every step checks and writes at once, under a lock of the ledger's own that is held for microseconds. The file is
//! replaced whole, so that a process killed in the middle leaves the old one.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use fencepost::Fence;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// What the ledger keeps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Page {
    /// The newest fence it has seen.
    pub(crate) fence: u64,
    /// The number that everybody adds to.
    pub(crate) balance: u64,
    /// How many writes of each worker were accepted. The ledger counts them by itself, so that no write of anybody's
    /// can overwrite the count.
    pub(crate) written: Vec<u64>,
    /// How many steps were refused.
    pub(crate) refused: u64,
}

/// The ledger has seen a newer fence.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused;

#[derive(Clone, Debug)]
pub(crate) struct Ledger {
    directory: PathBuf,
}

impl Ledger {
    pub(crate) fn create(directory: &Path, workers: u8) -> io::Result<Self> {
        fs::create_dir(directory)?;
        let ledger = Self::at(directory);
        ledger.store(&Page { written: vec![0; usize::from(workers)], ..Page::default() })?;
        Ok(ledger)
    }

    pub(crate) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Reads without any claim to be the holder.
    pub(crate) fn page(&self) -> io::Result<Page> {
        serde_json::from_slice(&fs::read(self.file())?).map_err(io::Error::other)
    }

    /// A new holder's first step: makes the ledger refuse every earlier one, and only then reads.
    pub(crate) fn advance(&self, fence: Fence) -> io::Result<Result<u64, Refused>> {
        self.step(Some(fence), |page| page.balance)
    }

    /// Replaces the balance. With a fence it is refused when the ledger has seen a newer one; without a fence the ledger
    /// has nothing to judge by.
    pub(crate) fn write(&self, fence: Option<Fence>, worker: u8, balance: u64) -> io::Result<Result<(), Refused>> {
        self.step(fence, |page| {
            page.balance = balance;
            page.written[usize::from(worker)] += 1;
        })
    }

    /// Checks the fence and carries `change` out as one step.
    fn step<T>(&self, fence: Option<Fence>, change: impl FnOnce(&mut Page) -> T) -> io::Result<Result<T, Refused>> {
        let guard = File::options().create(true).append(true).open(self.directory.join("guard"))?;
        flock(&guard, FlockOperation::LockExclusive)?;
        let mut page = self.page()?;
        if fence.is_some_and(|fence| fence.get() < page.fence) {
            page.refused += 1;
            self.store(&page)?;
            return Ok(Err(Refused));
        }
        page.fence = fence.map_or(page.fence, Fence::get);
        let answer = change(&mut page);
        self.store(&page)?;
        Ok(Ok(answer))
    }

    fn store(&self, page: &Page) -> io::Result<()> {
        let fresh = self.directory.join("ledger.new");
        fs::write(&fresh, serde_json::to_vec(page).map_err(io::Error::other)?)?;
        fs::rename(fresh, self.file())
    }

    fn file(&self) -> PathBuf {
        self.directory.join("ledger.json")
    }
}

//! Rates in a directory of one host: one small file for each.

use std::{
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use fencepost_core::clock::{BootClock, Clock};

use super::{Decision, Rate};
use crate::alone;

/// Tells one start of the machine from another; its clock begins anew with each. Only Linux has it.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Rates by key, in a directory. Calls block for a moment: each locks, reads and writes one file, which need not reach the disk.
#[derive(Clone, Debug)]
pub struct Rates(PathBuf);

impl Rates {
    /// The rates in this directory, which is made where it is missing.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        std::fs::create_dir_all(&directory)?;
        Ok(Self(directory))
    }

    /// Lets `count` through under this key, all or none. Keys are up to 200 bytes long once encoded for a file name.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] for a key that is empty or too long, [`io::ErrorKind::TimedOut`] when another process was stopped
    /// in its midst, those of the system. Nothing was counted.
    pub fn ask(&self, key: &str, rate: Rate, count: u32) -> io::Result<Decision> {
        let path = self.0.join(alone::file_name(key)?);
        match rate.never(count) {
            Some(never) => Ok(never),
            None => step(&path, rate, count),
        }
    }
}

fn step(path: &Path, rate: Rate, count: u32) -> io::Result<Decision> {
    let boot = std::fs::read_to_string(BOOT_ID)?;
    let mut file = alone::opened(path)?;
    alone::wait_for(&file)?;
    let mut text = String::new();
    file.read_to_string(&mut text)?;
    // After a restart, and in a file that is no rate, nothing is remembered.
    let remembered = text.split_once(' ').filter(|(of, _)| *of == boot.trim()).and_then(|(_, due)| due.parse().ok());
    let now = (BootClock.now().as_nanos() / 1000) as i64; // 292,000 years
    // No further ahead than the burst allows: it may have been larger when that was written.
    let due: i64 = remembered.unwrap_or(0).clamp(now, now + rate.ahead_micros());
    let after = due + rate.interval_micros() * i64::from(count);
    let left = rate.ahead_micros() - (after - now);
    if left < 0 {
        return Ok(rate.decide(false, -left));
    }
    // In one write, of one length: a process that is killed leaves the old text or the new one.
    file.rewind()?;
    file.write_all(format!("{} {after:020}", boot.trim()).as_bytes())?;
    Ok(rate.decide(true, left))
}

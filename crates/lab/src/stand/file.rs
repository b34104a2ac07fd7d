//! A directory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use fencepost_servers::SmallDisk;
use tempfile::TempDir;

use super::{Ground, ServerFault, Stand, break_by_force, clear, fill, holders, not_possible, shows_room};
use crate::scenario::Stop;

/// Room for a few locks.
const SMALL: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Directory {
    home: TempDir,
    disk: Option<Arc<SmallDisk>>,
}

/// Where a copy of the locks is.
const COPY: &str = "copy";

impl Directory {
    pub(super) fn start(ground: &Ground) -> Result<Arc<dyn Stand>, Stop> {
        Ok(Arc::new(Self { home: tempfile::tempdir()?, disk: ground.disk(SMALL)? }))
    }

    fn locks(&self) -> PathBuf {
        self.disk.as_ref().map_or(self.home.path(), |disk| disk.path()).join("locks")
    }
}

impl Stand for Directory {
    fn url(&self) -> String {
        format!("file:{}", self.locks().display())
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(match fault {
            ServerFault::RestartEmpty => Some(format!("the directory is there: {}", self.locks().exists())),
            ServerFault::Fill | ServerFault::Clear => shows_room(self.disk.as_ref()),
            ServerFault::Break(lock) => Some(holders(&self.url(), lock)?),
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::RestartEmpty => Ok(fs::remove_dir_all(self.locks())?),
            ServerFault::Fill => fill(self.disk.as_ref()),
            ServerFault::Clear => clear(self.disk.as_ref()),
            // A backup of what was never used is a backup of nothing.
            ServerFault::Snapshot => {
                fs::create_dir_all(self.locks())?;
                copy(&self.locks(), &self.home.path().join(COPY))
            }
            ServerFault::Restore => {
                fs::remove_dir_all(self.locks())?;
                copy(&self.home.path().join(COPY), &self.locks())
            }
            ServerFault::Break(lock) => break_by_force(&self.url(), lock),
            other => Err(not_possible(other, "a directory")),
        }
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), Stop> {
    let copied = Command::new("cp").arg("-a").args([from, to]).status()?;
    if copied.success() { Ok(()) } else { Err(Stop::NotInstalled("the directory could not be copied".into())) }
}

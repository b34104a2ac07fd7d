//! A directory.

use std::{path::PathBuf, sync::Arc};

use fencepost_servers::SmallDisk;
use tempfile::TempDir;

use super::{Ground, ServerFault, Stand, break_by_force, clear, fill, not_possible};
use crate::scenario::Stop;

/// Room for a few locks.
const SMALL: u64 = 1 << 20;

#[derive(Debug)]
pub(super) struct Directory {
    home: TempDir,
    disk: Option<Arc<SmallDisk>>,
}

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

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::RestartEmpty => Ok(std::fs::remove_dir_all(self.locks())?),
            ServerFault::Fill => fill(self.disk.as_ref()),
            ServerFault::Clear => clear(self.disk.as_ref()),
            ServerFault::Break(lock) => break_by_force(&self.url(), lock),
            other => Err(not_possible(other, "a directory")),
        }
    }
}

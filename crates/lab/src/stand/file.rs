//! A directory.

use std::sync::Arc;

use tempfile::TempDir;

use super::{ServerFault, Stand, break_by_force, not_possible};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Directory(TempDir);

impl Directory {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        Ok(Arc::new(Self(tempfile::tempdir()?)))
    }
}

impl Stand for Directory {
    fn url(&self) -> String {
        format!("file:{}", self.0.path().join("locks").display())
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::RestartEmpty => Ok(std::fs::remove_dir_all(self.0.path().join("locks"))?),
            ServerFault::Break(lock) => break_by_force(&self.url(), lock),
            other => Err(not_possible(other, "a directory")),
        }
    }
}

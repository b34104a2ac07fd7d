//! A directory.

use std::sync::Arc;

use fencepost::{LockName, Namespace, claim::Forced, clock::BootClock, registry};
use tempfile::TempDir;

use super::{ServerFault, Stand, not_possible};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Directory(TempDir);

impl Directory {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        Ok(Arc::new(Self(tempfile::tempdir()?)))
    }

    fn break_by_force(&self, lock: &str) -> Result<(), Stop> {
        let failed = |error: &dyn std::fmt::Display| Stop::Failed(error.to_string());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let store = registry::open_store(&self.url(), Namespace::default(), BootClock::shared()).await;
            let store = store.map_err(|error| failed(&error))?;
            let lock = LockName::new(lock).map_err(|error| failed(&error))?;
            match store.force(&lock, None).await.map_err(|error| failed(&error))? {
                Forced::Broken(_) => Ok(()),
                other => Err(Stop::Failed(format!("the lock could not be broken: {other:?}"))),
            }
        })
    }
}

impl Stand for Directory {
    fn url(&self) -> String {
        format!("file:{}", self.0.path().join("locks").display())
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::RestartEmpty => Ok(std::fs::remove_dir_all(self.0.path().join("locks"))?),
            ServerFault::Break(lock) => self.break_by_force(lock),
            other => Err(not_possible(other, "a directory")),
        }
    }
}

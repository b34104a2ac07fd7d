//! Three ZooKeeper servers.

use std::sync::Arc;

use fencepost_servers::{ZooKeeperEnsemble, ZooKeeperServer};
use tokio::runtime::Handle;

use super::{ServerFault, Stand, not_possible, numbered, zookeeper};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Servers(ZooKeeperEnsemble);

impl Servers {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        zookeeper::is_installed()?;
        Ok(Arc::new(Self(Handle::current().block_on(ZooKeeperEnsemble::start(3)))))
    }
}

impl Stand for Servers {
    fn url(&self) -> String {
        self.0.url()
    }

    fn logs(&self) -> Vec<(String, String)> {
        numbered("zookeeper", self.0.servers().iter().map(ZooKeeperServer::log))
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::CrashMaster => {
                self.0.servers()[Handle::current().block_on(self.0.leader())].kill();
                Handle::current().block_on(self.0.leader());
                Ok(())
            }
            other => Err(not_possible(other, "three ZooKeeper servers")),
        }
    }
}

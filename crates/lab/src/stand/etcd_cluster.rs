//! Three etcd members.

use std::sync::Arc;

use fencepost_servers::EtcdCluster;

use super::{ServerFault, Stand, needs, not_possible};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Members(EtcdCluster);

impl Members {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("etcd", "etcd-server")?;
        Ok(Arc::new(Self(EtcdCluster::start(3))))
    }
}

impl Stand for Members {
    fn url(&self) -> String {
        self.0.url()
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("etcd".to_owned(), self.0.log())]
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::CrashMaster => {
                self.0.kill(self.0.wait_for_leader());
                self.0.wait_for_leader();
                Ok(())
            }
            other => Err(not_possible(other, "three etcd members")),
        }
    }
}

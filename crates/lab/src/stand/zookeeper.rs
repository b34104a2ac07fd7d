//! One ZooKeeper server.

use std::{net::SocketAddr, path::Path, sync::Arc};

use fencepost_servers::ZooKeeperServer;

use super::{ServerFault, Stand, needs, not_possible};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Server(ZooKeeperServer);

impl Server {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("java", "default-jre-headless")?;
        if !Path::new("/usr/share/java/zookeeper.jar").exists() {
            return Err(Stop::Missing("ZooKeeper is not installed: install the package zookeeper".into()));
        }
        Ok(Arc::new(Self(ZooKeeperServer::start())))
    }
}

impl Stand for Server {
    fn url(&self) -> String {
        self.0.url()
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.0.address())
    }

    fn url_through(&self, relay: SocketAddr) -> Option<String> {
        Some(format!("zookeeper://{relay}"))
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Freeze => self.0.freeze(),
            ServerFault::Thaw => self.0.thaw(),
            ServerFault::Restart => {
                self.0.kill();
                self.0.launch();
            }
            other => return Err(not_possible(other, "a ZooKeeper server")),
        }
        Ok(())
    }
}

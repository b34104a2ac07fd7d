//! One ZooKeeper server.

use std::{net::SocketAddr, path::Path, sync::Arc};

use fencepost_servers::ZooKeeperServer;

use super::{ServerFault, Stand, needs, not_possible};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Server(ZooKeeperServer);

impl Server {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        is_installed()?;
        Ok(Arc::new(Self(ZooKeeperServer::start())))
    }
}

pub(super) fn is_installed() -> Result<(), Stop> {
    needs("java", "default-jre-headless")?;
    match Path::new("/usr/share/java/zookeeper.jar").exists() {
        true => Ok(()),
        false => Err(Stop::Missing("ZooKeeper is not installed: install the package zookeeper".into())),
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

    fn logs(&self) -> Vec<(String, String)> {
        vec![("zookeeper".to_owned(), self.0.log())]
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

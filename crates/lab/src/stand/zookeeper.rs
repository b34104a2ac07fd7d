//! One ZooKeeper server.

use std::{net::SocketAddr, path::Path, sync::Arc};

use fencepost_servers::{Lan, WallClock, ZooKeeperServer};

use super::{ON_A_HOST, ServerFault, Stand, jump, needs, not_possible, place};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Server {
    server: ZooKeeperServer,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
}

impl Server {
    pub(super) fn start(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        is_installed()?;
        if lan.is_some() {
            let (server, clock) = (ZooKeeperServer::start_in(&place(lan)?), Err(ON_A_HOST.to_owned()));
            return Ok(Arc::new(Self { server, clock }));
        }
        let clock = WallClock::new().map(Arc::new);
        let server = clock.as_ref().map_or_else(|_| ZooKeeperServer::start(), ZooKeeperServer::start_on);
        Ok(Arc::new(Self { server, clock }))
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
        self.server.url()
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.server.address())
    }

    fn url_through(&self, relay: SocketAddr) -> Option<String> {
        Some(format!("zookeeper://{relay}"))
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("zookeeper".to_owned(), self.server.log())]
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Freeze => self.server.freeze(),
            ServerFault::Thaw => self.server.thaw(),
            ServerFault::Restart => {
                self.server.kill();
                self.server.launch();
            }
            ServerFault::JumpClock => return jump(&self.clock, self.server.pid()),
            other => return Err(not_possible(other, "a ZooKeeper server")),
        }
        Ok(())
    }
}

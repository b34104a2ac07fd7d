//! One ZooKeeper server.

use std::{net::SocketAddr, path::Path, sync::Arc};

use fencepost_servers::{SmallDisk, WallClock, ZooKeeperServer};

use super::{Ground, NO_CLOCK, ServerFault, Stand, clear, fill, jump, needs, not_possible, place};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Server {
    server: ZooKeeperServer,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
    /// What its data are on, where that is no ordinary disk.
    disk: Option<Arc<SmallDisk>>,
}

/// Room for a snapshot and a few logs.
const SMALL: u64 = 4 << 20;

impl Server {
    pub(super) fn start(ground: &Ground) -> Result<Arc<dyn Stand>, Stop> {
        is_installed()?;
        let elsewhere = |server, disk| Self { server, disk, clock: Err(NO_CLOCK.to_owned()) };
        if let Some(disk) = ground.disk(SMALL)? {
            return Ok(Arc::new(elsewhere(ZooKeeperServer::start_on_disk(&disk), Some(disk))));
        }
        if let Some(lan) = &ground.lan {
            return Ok(Arc::new(elsewhere(ZooKeeperServer::start_in(&place(Some(lan))?), None)));
        }
        let clock = WallClock::new().map(Arc::new);
        let server = clock.as_ref().map_or_else(|_| ZooKeeperServer::start(), ZooKeeperServer::start_on);
        Ok(Arc::new(Self { server, clock, disk: None }))
    }
}

impl Server {
    /// Writes until the room is used up that the server has put by for its log.
    fn use_up_the_log(&self) -> Result<(), Stop> {
        let admin = self.server.admin();
        admin.create("/filling", b"").map_err(|refused| Stop::NotInstalled(format!("{refused:?}")))?;
        match (0..500).all(|_| admin.takes("/filling", 10_000)) {
            true => Err(Stop::NotInstalled("it takes 5 MB and is not full".to_owned())),
            false => Ok(()),
        }
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
            ServerFault::Fill => {
                fill(self.disk.as_ref())?;
                return self.use_up_the_log();
            }
            // It has ended itself.
            ServerFault::Clear => {
                clear(self.disk.as_ref())?;
                self.server.kill();
                self.server.launch();
            }
            // It tells nobody the time.
            ServerFault::JumpClock | ServerFault::SetClockBack => {
                return jump(&self.clock, self.server.pid(), fault, || None);
            }
            other => return Err(not_possible(other, "a ZooKeeper server")),
        }
        Ok(())
    }
}

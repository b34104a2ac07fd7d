//! One ZooKeeper server.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
};

use fencepost_servers::{SmallDisk, WallClock, ZooKeeperServer};
use tempfile::TempDir;

use super::{
    Ground, NO_CLOCK, ServerFault, Stand, Way, clear, fill, jump, needs, no_snapshot, not_possible, place, shows_room,
};
use crate::{fault::state, scenario::Stop};

#[derive(Debug)]
pub(super) struct Server {
    server: ZooKeeperServer,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
    /// What its data are on, where that is no ordinary disk.
    disk: Option<Arc<SmallDisk>>,
    snapshot: OnceLock<TempDir>,
}

/// Room for a snapshot and a few logs.
const SMALL: u64 = 4 << 20;

impl Server {
    pub(super) fn start(ground: &Ground) -> Result<Arc<dyn Stand>, Stop> {
        is_installed()?;
        let with = |server, clock, disk| Arc::new(Self { server, clock, disk, snapshot: OnceLock::new() });
        let no_clock = || Err(NO_CLOCK.to_owned());
        if let Some(disk) = ground.disk(SMALL)? {
            return Ok(with(ZooKeeperServer::start_on_disk(&disk), no_clock(), Some(disk)));
        }
        if let Some(lan) = &ground.lan {
            return Ok(with(ZooKeeperServer::start_in(&place(Some(lan))?), no_clock(), None));
        }
        let clock = WallClock::new().map(Arc::new);
        let server = clock.as_ref().map_or_else(|_| ZooKeeperServer::start(), ZooKeeperServer::start_on);
        Ok(with(server, clock, None))
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

    fn way(&self) -> Result<Way, Stop> {
        Way::to_one(&self.url(), self.server.address())
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("zookeeper".to_owned(), self.server.log())]
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(match fault {
            ServerFault::Freeze | ServerFault::Thaw => Some(state(self.server.pid()).to_owned()),
            ServerFault::Restart => Some(format!("it is process {:?}", self.server.pid())),
            ServerFault::Fill | ServerFault::Clear => shows_room(self.disk.as_ref()),
            ServerFault::JumpClock | ServerFault::SetClockBack => {
                self.clock.as_ref().ok().map(|clock| format!("its clock is {:?} ns apart", clock.apart()))
            }
            _ => None,
        })
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
            ServerFault::RestartEmpty => {
                self.server.kill();
                self.server.forget();
                self.server.launch();
            }
            ServerFault::Snapshot => {
                let copy = self.server.snapshot()?;
                self.snapshot.get_or_init(|| copy);
            }
            ServerFault::Restore => {
                let snapshot = self.snapshot.get().ok_or_else(no_snapshot)?;
                self.server.kill();
                self.server.restore(snapshot.path())?;
                self.server.launch();
            }
            other => return Err(not_possible(other, "a ZooKeeper server")),
        }
        Ok(())
    }
}

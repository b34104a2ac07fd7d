//! One Redis server.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use fencepost_servers::{Lan, RedisServer, Reply, WallClock};
use tempfile::TempDir;

use super::{NO_CLOCK, ServerFault, Stand, jump, needs, not_possible, place};
use crate::{fault::signal, scenario::Stop};

#[derive(Debug)]
pub(super) struct Server {
    server: RedisServer,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
    snapshot: OnceLock<TempDir>,
}

impl Server {
    pub(super) fn start(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        if lan.is_some() {
            let (server, clock) = (RedisServer::start_in(&place(lan)?), Err(NO_CLOCK.to_owned()));
            return Ok(Arc::new(Self { server, clock, snapshot: OnceLock::new() }));
        }
        let clock = WallClock::new().map(Arc::new);
        let server = clock.as_ref().map_or_else(|_| RedisServer::start(), RedisServer::start_on);
        Ok(Arc::new(Self { server, clock, snapshot: OnceLock::new() }))
    }
}

impl Server {
    fn limit_memory(&self, bytes: &str) -> Result<(), Stop> {
        match self.server.try_command(&["CONFIG", "SET", "maxmemory", bytes])? {
            Reply::Refused(why) => Err(Stop::NotInstalled(why)),
            _ => Ok(()),
        }
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
        Some(format!("redis://{relay}"))
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("redis".to_owned(), self.server.log())]
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        let pid = self.server.pid();
        match fault {
            ServerFault::Freeze => signal(pid, rustix::process::Signal::STOP),
            ServerFault::Thaw => signal(pid, rustix::process::Signal::CONT),
            ServerFault::Restart => {
                self.server.kill();
                self.server.launch();
                Ok(())
            }
            ServerFault::RestartEmpty => {
                self.server.kill();
                self.server.forget();
                self.server.launch();
                Ok(())
            }
            ServerFault::Snapshot => {
                let copy = self.server.snapshot()?;
                self.snapshot.get_or_init(|| copy);
                Ok(())
            }
            ServerFault::Restore => {
                let snapshot = self.snapshot.get();
                self.server.kill();
                self.server
                    .restore(snapshot.ok_or_else(|| Stop::NotInstalled("there is no snapshot".into()))?.path())?;
                self.server.launch();
                Ok(())
            }
            ServerFault::Fill => self.limit_memory("1"),
            ServerFault::Clear => self.limit_memory("0"),
            ServerFault::JumpClock | ServerFault::SetClockBack => {
                jump(&self.clock, pid, fault, || self.server.seconds())
            }
            other => Err(not_possible(other, "a Redis server")),
        }
    }
}

//! One Redis server.

use std::{net::SocketAddr, slice, sync::Arc};

use fencepost_servers::{Lan, RedisServer, Reply, WallClock};

use super::{
    NO_CLOCK, ServerFault, Stand, Way, jump, needs, not_possible, place,
    redis_errands::{Copies, restart},
    time_of,
};
use crate::{
    fault::{signal, state},
    scenario::Stop,
};

#[derive(Debug)]
pub(super) struct Server {
    server: RedisServer,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
    copies: Copies,
}

impl Server {
    pub(super) fn start(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        if lan.is_some() {
            let (server, clock) = (RedisServer::start_in(&place(lan)?), Err(NO_CLOCK.to_owned()));
            return Ok(Arc::new(Self { server, clock, copies: Copies::default() }));
        }
        let clock = WallClock::new().map(Arc::new);
        let server = clock.as_ref().map_or_else(|_| RedisServer::start(), RedisServer::start_on);
        Ok(Arc::new(Self { server, clock, copies: Copies::default() }))
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

    fn way(&self) -> Result<Way, Stop> {
        Way::to_one(&self.url(), self.server.address())
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("redis".to_owned(), self.server.log())]
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        let says = |words: &[&str]| Ok::<_, Stop>(Some(format!("{words:?}: {:?}", self.server.try_command(words)?)));
        match fault {
            ServerFault::Freeze | ServerFault::Thaw => Ok(Some(state(self.server.pid()).to_owned())),
            ServerFault::Restart | ServerFault::Restore => Ok(Some(format!("it is process {:?}", self.server.pid()))),
            ServerFault::RestartEmpty => says(&["DBSIZE"]),
            ServerFault::Fill | ServerFault::Clear => says(&["CONFIG", "GET", "maxmemory"]),
            ServerFault::JumpClock | ServerFault::SetClockBack => Ok(time_of(self.server.seconds())),
            _ => Ok(None),
        }
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        let pid = self.server.pid();
        match fault {
            ServerFault::Freeze => signal(pid, rustix::process::Signal::STOP),
            ServerFault::Thaw => signal(pid, rustix::process::Signal::CONT),
            ServerFault::Restart | ServerFault::RestartEmpty => {
                restart(&self.server, fault == ServerFault::Restart);
                Ok(())
            }
            ServerFault::Snapshot => self.copies.take(slice::from_ref(&self.server)),
            ServerFault::Restore => self.copies.put_back(slice::from_ref(&self.server)),
            ServerFault::Fill => self.limit_memory("1"),
            ServerFault::Clear => self.limit_memory("0"),
            ServerFault::JumpClock | ServerFault::SetClockBack => {
                jump(&self.clock, pid, fault, || self.server.seconds())
            }
            other => Err(not_possible(other, "a Redis server")),
        }
    }
}

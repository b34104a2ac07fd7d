//! Five independent Redis servers. The middle one can be made to forget, or to jump.

use std::{
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread,
};

use fencepost_servers::{Network, RedisServer, WallClock};
use rustix::process::Signal;
use tokio::runtime::Handle;

use super::{
    ServerFault, Side, Stand, UNGUARDED, Way, jump, needs, not_possible, numbered,
    redis_errands::{Copies, restart},
    time_of,
};
use crate::{fault::signal, scenario::Stop};

/// The one that both sides of a partition reach.
const MIDDLE: usize = 2;

#[derive(Debug)]
pub(super) struct Servers {
    servers: Vec<RedisServer>,
    clock: Arc<WallClock>,
    copies: Copies,
}

impl Servers {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        let clock = Arc::new(WallClock::new().map_err(Stop::Missing)?);
        let starting: Vec<_> = (0..5)
            .map(|number| {
                let clock = clock.clone();
                let start = move || if number == MIDDLE { RedisServer::start_on(&clock) } else { RedisServer::start() };
                thread::spawn(start)
            })
            .collect();
        let started = starting.into_iter().map(|server| server.join());
        let servers = started.collect::<Result<_, _>>().map_err(|_| Stop::Failed("a server did not start".into()))?;
        Ok(Arc::new(Self { servers, clock, copies: Copies::default() }))
    }

    fn each(&self, does: impl Fn(&RedisServer) -> Result<(), Stop>) -> Result<(), Stop> {
        self.servers.iter().try_for_each(does)
    }

    /// The limit for one node is wide, since the machine may be busy. The servers keep what they wrote, so that one that
    /// restarted need not sit out a TTL.
    fn url_of(addresses: &[SocketAddr]) -> String {
        let hosts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        format!("redlock://{}?node_timeout=2s{UNGUARDED}", hosts.join(","))
    }
}

impl Stand for Servers {
    fn url(&self) -> String {
        Self::url_of(&self.servers.iter().map(RedisServer::address).collect::<Vec<_>>())
    }

    fn way(&self) -> Result<Way, Stop> {
        let addresses: Vec<_> = self.servers.iter().map(RedisServer::address).collect();
        let network = Handle::current().block_on(Network::before_all(&addresses))?;
        Ok(Way { url: Self::url_of(&network.addresses), network, _sign: None })
    }

    fn url_from(&self, side: Side) -> Result<String, Stop> {
        // Nobody listens there any more when the client looks.
        let nowhere = [TcpListener::bind(("127.0.0.1", 0))?, TcpListener::bind(("127.0.0.1", 0))?];
        let nowhere = [nowhere[0].local_addr()?, nowhere[1].local_addr()?];
        let reaches = |number: usize| match side {
            Side::Left => number <= MIDDLE,
            Side::Right => number >= MIDDLE,
        };
        let addresses = self.servers.iter().enumerate();
        let seen = |(number, server): (usize, &RedisServer)| {
            if reaches(number) { server.address() } else { nowhere[number % 2] }
        };
        Ok(Self::url_of(&addresses.map(seen).collect::<Vec<_>>()))
    }

    fn logs(&self) -> Vec<(String, String)> {
        numbered("redis", self.servers.iter().map(RedisServer::log))
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(match fault {
            ServerFault::RestartEmpty => Some(format!("keys: {:?}", self.servers[MIDDLE].try_command(&["DBSIZE"])?)),
            ServerFault::JumpClock => time_of(self.servers[MIDDLE].seconds()),
            ServerFault::CrashMaster => Some(format!("it is process {:?}", self.servers[0].pid())),
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Freeze => self.each(|server| signal(server.pid(), Signal::STOP)),
            ServerFault::Thaw => self.each(|server| signal(server.pid(), Signal::CONT)),
            ServerFault::Restart | ServerFault::RestartEmpty => {
                restart(&self.servers[MIDDLE], fault == ServerFault::Restart);
                Ok(())
            }
            ServerFault::Snapshot => self.copies.take(&self.servers),
            ServerFault::Restore => self.copies.put_back(&self.servers),
            // There is no leader: any of them will do.
            ServerFault::CrashMaster => {
                self.servers[0].kill();
                Ok(())
            }
            ServerFault::JumpClock => {
                let middle = &self.servers[MIDDLE];
                jump(&Ok(self.clock.clone()), middle.pid(), fault, || middle.seconds())
            }
            other => Err(not_possible(other, "the servers of a Redlock")),
        }
    }
}

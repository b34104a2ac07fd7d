//! A Redis master with two replicas, watched by three sentinels.

use std::sync::{Arc, OnceLock};

use fencepost_servers::{Network, RedisServer, Reply, SentinelSet, sentinel_beside};
use rustix::process::Signal;
use tokio::runtime::Handle;

use super::{
    ServerFault, Side, Stand, Way, needs, not_possible, numbered,
    redis_errands::{Copies, forgets_its_master, restart, said, takes_nothing},
};
use crate::{fault::signal, scenario::Stop};

#[derive(Debug)]
pub(super) struct Set {
    set: SentinelSet,
    copies: Copies,
    /// Leads to the first master past the network before it.
    on_the_left: OnceLock<(RedisServer, String)>,
}

impl Set {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        let set = Handle::current().block_on(SentinelSet::start_apart());
        Ok(Arc::new(Self { set, copies: Copies::default(), on_the_left: OnceLock::new() }))
    }

    /// Does something to the master, and waits until every sentinel names another.
    fn replace_master(&self, by: impl FnOnce(&RedisServer) -> Result<(), Stop>) -> Result<(), Stop> {
        let master = self.set.master();
        by(master)?;
        self.set.await_other_master(self.set.known_at(master));
        Ok(())
    }

    /// The sentinels stand still as well, and depose nobody meanwhile.
    fn all(&self, sent: Signal) -> Result<(), Stop> {
        self.set.sentinels().iter().chain(self.set.servers()).try_for_each(|server| signal(server.pid(), sent))
    }

    /// The replicas take no writes: what their master sends them lies in front of them.
    fn hold_replication(&self) -> Result<(), Stop> {
        self.set.replicas().try_for_each(takes_nothing)
    }

    /// One replica takes no writes, and is the one to be promoted; the other goes on answering for both.
    fn hold_the_heir(&self) -> Result<(), Stop> {
        let mut replicas = self.set.replicas();
        let (Some(heir), Some(other)) = (replicas.next(), replicas.next()) else {
            return Err(Stop::NotInstalled("there are not two replicas".into()));
        };
        said(heir, &["CONFIG", "SET", "replica-priority", "1"])?;
        said(other, &["CONFIG", "SET", "replica-priority", "0"])?; // never to be promoted
        takes_nothing(heir)
    }

    /// The master is gone before the replicas go on, and what lay in front of them is gone with it.
    fn crash_master(&self) -> Result<(), Stop> {
        let replicas: Vec<&RedisServer> = self.set.replicas().collect();
        self.replace_master(|master| {
            master.kill();
            replicas.into_iter().try_for_each(forgets_its_master)
        })
    }
}

impl Stand for Set {
    fn url(&self) -> String {
        self.set.url()
    }

    fn url_of_one(&self) -> String {
        self.set.master().url()
    }

    fn way(&self) -> Result<Way, Stop> {
        let network = Handle::current().block_on(Network::before(self.set.master().address()))?;
        let (sign, url) = sentinel_beside(network.address);
        Ok(Way { network, url, _sign: Some(sign) })
    }

    /// On the left the first master is all there is.
    fn url_from(&self, side: Side) -> Result<String, Stop> {
        Ok(match side {
            Side::Left => self.on_the_left.get_or_init(|| sentinel_beside(self.set.master().address())).1.clone(),
            Side::Right => self.set.url(),
        })
    }

    fn logs(&self) -> Vec<(String, String)> {
        let mut logs = numbered("redis", self.set.servers().iter().map(RedisServer::log));
        logs.extend(numbered("sentinel", self.set.sentinels().iter().map(RedisServer::log)));
        logs
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(match fault {
            ServerFault::HoldReplication | ServerFault::HoldTheHeir => {
                let heir =
                    self.set.replicas().next().ok_or_else(|| Stop::NotInstalled("there is no replica".into()))?;
                Some(format!("the replica takes what its master sends: {}", takes(heir, self.set.master())?))
            }
            ServerFault::CrashMaster
            | ServerFault::FreezeLeader
            | ServerFault::CutOffLeader
            | ServerFault::FailOver => Some(format!("the master is {}", self.set.master().address())),
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::HoldReplication => self.hold_replication(),
            ServerFault::HoldTheHeir => self.hold_the_heir(),
            ServerFault::CrashMaster => self.crash_master(),
            ServerFault::FreezeLeader => self.replace_master(|master| signal(master.pid(), Signal::STOP)),
            ServerFault::CutOffLeader => self.replace_master(|master| {
                self.set.cut_off(master);
                Ok(())
            }),
            ServerFault::Freeze => self.all(Signal::STOP),
            ServerFault::Thaw => self.all(Signal::CONT),
            // Sooner than the sentinels notice it.
            ServerFault::Restart | ServerFault::RestartEmpty => {
                restart(self.set.master(), fault == ServerFault::Restart);
                Ok(())
            }
            ServerFault::Snapshot => self.copies.take(self.set.servers()),
            ServerFault::Restore => {
                self.copies.put_back(self.set.servers())?;
                self.set.settle();
                Ok(())
            }
            ServerFault::FailOver => {
                self.set.fail_over();
                Ok(())
            }
            other => Err(not_possible(other, "a Sentinel set")),
        }
    }
}

/// Whether something that a master sends, and that changes nothing, is taken by its replica.
fn takes(replica: &RedisServer, master: &RedisServer) -> Result<bool, Stop> {
    let taken = || {
        let Reply::Text(info) = replica.try_command(&["INFO", "replication"])? else { return Ok(None) };
        Ok::<_, Stop>(info.lines().find_map(|line| line.strip_prefix("slave_repl_offset:")).map(str::to_owned))
    };
    let before = taken()?;
    master.try_command(&["PUBLISH", "fencepost-lab", "x"])?;
    for _ in 0..30 {
        if taken()? != before {
            return Ok(true);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    Ok(false)
}

//! A Redis Cluster: three masters with a replica each.

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
};

use fencepost_servers::{ClusterSet, Network, RedisServer};
use rustix::process::Signal;
use tokio::runtime::Handle;

use super::{
    ServerFault, Stand, Way, needs, not_possible, numbered,
    redis_errands::{Copies, forgets_its_master, restart, takes_nothing},
};
use crate::{fault::signal, scenario::Stop, stage::LOCK};

#[derive(Debug)]
pub(super) struct Cluster {
    set: ClusterSet,
    copies: Copies,
}

impl Cluster {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        let set = ClusterSet::start();
        // So that who comes by a network of his own goes on by it.
        set.tell_ports_only();
        Ok(Arc::new(Self { set, copies: Copies::default() }))
    }

    /// The slot of the lock of every scenario, whose name needs no encoding.
    fn slot(&self) -> u16 {
        self.set.slot_of(LOCK)
    }

    /// Does something to the lock's master, and waits until there is another.
    fn replace_master(&self, by: impl FnOnce(&RedisServer) -> Result<(), Stop>) -> Result<(), Stop> {
        let slot = self.slot();
        let master = self.set.master_of(slot);
        by(master)?;
        self.set.await_other_master(slot, master.address());
        Ok(())
    }

    fn all(&self, sent: Signal) -> Result<(), Stop> {
        self.set.nodes().iter().try_for_each(|node| signal(node.pid(), sent))
    }
}

impl Stand for Cluster {
    /// A client finds out that a master stands still when that has not answered for so long. The usual two seconds are longer
    /// than anybody waits here.
    fn url(&self) -> String {
        format!("{}?timeout=1s", self.set.url())
    }

    /// Nodes tell their ports and not their host: each way has a host of its own.
    fn way(&self) -> Result<Way, Stop> {
        static NUMBER: AtomicU16 = AtomicU16::new(0);
        let [high, low] = NUMBER.fetch_add(1, Relaxed).to_be_bytes();
        let host = IpAddr::from(Ipv4Addr::new(127, 78, high, low));
        let addresses: Vec<_> = self.set.nodes().iter().map(RedisServer::address).collect();
        let network = Handle::current().block_on(Network::before_all_at(host, &addresses))?;
        let places: Vec<_> = network.addresses.iter().map(ToString::to_string).collect();
        Ok(Way { url: format!("redis+cluster://{}", places.join(",")), network, _sign: None })
    }

    fn logs(&self) -> Vec<(String, String)> {
        numbered("redis", self.set.nodes().iter().map(RedisServer::log))
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::HoldReplication => takes_nothing(self.set.replica_of(self.slot())),
            ServerFault::CrashMaster => {
                let replica = self.set.replica_of(self.slot());
                self.replace_master(|master| {
                    master.kill();
                    forgets_its_master(replica)
                })
            }
            ServerFault::FreezeLeader => self.replace_master(|master| signal(master.pid(), Signal::STOP)),
            ServerFault::FailOver => {
                self.set.fail_over(self.slot());
                Ok(())
            }
            ServerFault::Freeze => self.all(Signal::STOP),
            ServerFault::Thaw => self.all(Signal::CONT),
            // Sooner than the others notice it.
            ServerFault::Restart | ServerFault::RestartEmpty => {
                restart(self.set.master_of(self.slot()), fault == ServerFault::Restart);
                // It says that the cluster is down until it has heard of a majority.
                self.set.settle();
                Ok(())
            }
            ServerFault::Snapshot => self.copies.take(self.set.nodes()),
            ServerFault::Restore => {
                self.copies.put_back(self.set.nodes())?;
                self.set.settle();
                Ok(())
            }
            other => Err(not_possible(other, "a Redis Cluster")),
        }
    }
}

//! Three ZooKeeper servers.

use std::sync::{Arc, OnceLock};

use fencepost_servers::{Lan, Place, ZooKeeperEnsemble, ZooKeeperServer};
use tokio::runtime::Handle;

use super::{ServerFault, Side, Stand, move_away, not_possible, numbered, places, split, zookeeper};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Servers {
    ensemble: ZooKeeperEnsemble,
    /// Who led when the sides of a partition were told.
    on_the_left: OnceLock<usize>,
    /// What joins them, and where each is, where the kernel can cut it.
    lan: Option<(Lan, Vec<Place>)>,
}

impl Servers {
    pub(super) fn start(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        zookeeper::is_installed()?;
        let lan = lan.map(|lan| Ok::<_, Stop>((lan.clone(), places(lan)?))).transpose()?;
        let ensemble = match &lan {
            Some((_, places)) => Handle::current().block_on(ZooKeeperEnsemble::start_in(places)),
            None => Handle::current().block_on(ZooKeeperEnsemble::start(3)),
        };
        Ok(Arc::new(Self { ensemble, on_the_left: OnceLock::new(), lan }))
    }

    fn cut_off(&self, leader: usize) -> Result<(), Stop> {
        match &self.lan {
            Some((lan, places)) => {
                let other = (leader + 1) % self.ensemble.servers().len();
                split(lan, &places[leader], self.ensemble.election_address(other), || self.wait_for_other_than(leader))
            }
            None => {
                self.ensemble.cut_off(leader);
                self.wait_for_other_than(leader)
            }
        }
    }

    fn leader(&self) -> usize {
        Handle::current().block_on(self.ensemble.leader())
    }

    /// One that leads and is not this one, who may still think that it does. The others may elect him once more, several times
    /// even, and wait five seconds for him each time.
    fn wait_for_other_than(&self, old: usize) -> Result<(), Stop> {
        for _ in 0..2000 {
            let others = (0..).zip(self.ensemble.servers()).filter(|(number, _)| *number != old);
            if others.into_iter().any(|(_, server)| server.mode().as_deref() == Some("leader")) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        Err(Stop::NotInstalled("the others have elected no leader".into()))
    }
}

impl Stand for Servers {
    fn url(&self) -> String {
        self.ensemble.url()
    }

    /// On the left the server that led at first is all there is.
    fn url_from(&self, side: Side) -> Result<String, Stop> {
        let leader = *self.on_the_left.get_or_init(|| self.leader());
        self.lan.as_ref().map_or(Ok(()), |(_, places)| move_away(&places[leader]))?;
        let servers = (0..).zip(self.ensemble.servers());
        let on_it = servers.filter(|(number, _)| (*number == leader) == (side == Side::Left));
        let hosts: Vec<_> = on_it.map(|(_, server)| server.address().to_string()).collect();
        Ok(format!("zookeeper://{}", hosts.join(",")))
    }

    fn logs(&self) -> Vec<(String, String)> {
        numbered("zookeeper", self.ensemble.servers().iter().map(ZooKeeperServer::log))
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        let of_the_leader =
            matches!(fault, ServerFault::CrashMaster | ServerFault::FreezeLeader | ServerFault::CutOffLeader);
        let modes = || self.ensemble.servers().iter().map(ZooKeeperServer::mode).collect::<Vec<_>>();
        Ok(of_the_leader.then(|| format!("modes: {:?}", modes())))
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        let leader = self.leader();
        match fault {
            ServerFault::CrashMaster => self.ensemble.servers()[leader].kill(),
            ServerFault::FreezeLeader => self.ensemble.servers()[leader].freeze(),
            ServerFault::CutOffLeader => return self.cut_off(leader),
            ServerFault::RestartEmpty => {
                let other = &self.ensemble.servers()[(leader + 1) % self.ensemble.servers().len()];
                other.kill();
                other.forget();
                other.launch();
                return Ok(());
            }
            other => return Err(not_possible(other, "three ZooKeeper servers")),
        }
        self.wait_for_other_than(leader)
    }
}

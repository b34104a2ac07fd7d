//! Three etcd members.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use fencepost_servers::{EtcdCluster, Lan, Place, SlowDisk};
use tokio::runtime::Handle;

use super::{ServerFault, Side, Stand, move_away, needs, not_possible, places, split};
use crate::scenario::Stop;

/// Longer than the members wait for their leader.
const DELAY: Duration = Duration::from_millis(2500);

#[derive(Debug)]
pub(super) struct Members {
    cluster: EtcdCluster,
    /// Who led when the sides of a partition were told.
    on_the_left: OnceLock<usize>,
    slowed: Mutex<Option<SlowDisk>>,
    /// What joins them, and where each is, where the kernel can cut it.
    lan: Option<(Lan, Vec<Place>)>,
}

impl Members {
    pub(super) fn start(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        needs("etcd", "etcd-server")?;
        let lan = lan.map(|lan| Ok::<_, Stop>((lan.clone(), places(lan)?))).transpose()?;
        let cluster = match &lan {
            Some((_, places)) => EtcdCluster::start_in(places, &[]),
            None => Handle::current().block_on(EtcdCluster::start_apart(3)),
        };
        Ok(Arc::new(Self { cluster, on_the_left: OnceLock::new(), slowed: Mutex::default(), lan }))
    }

    fn cut_off(&self, leader: usize) -> Result<(), Stop> {
        match &self.lan {
            Some((lan, places)) => {
                let other = (leader + 1) % self.cluster.size();
                split(lan, &places[leader], self.cluster.peer_address(other), || self.wait_for_other_than(leader))
            }
            None => {
                self.cluster.cut_off(leader);
                self.wait_for_other_than(leader)
            }
        }
    }

    /// One that leads and is not this one, who may still think that it does.
    fn wait_for_other_than(&self, old: usize) -> Result<(), Stop> {
        for _ in 0..1000 {
            if (0..self.cluster.size()).any(|member| member != old && self.cluster.leads(member)) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(Stop::NotInstalled("the others have elected no leader".into()))
    }
}

impl Stand for Members {
    fn url(&self) -> String {
        self.cluster.url()
    }

    /// On the left the member that led at first is all there is.
    fn url_from(&self, side: Side) -> Result<String, Stop> {
        let leader = *self.on_the_left.get_or_init(|| self.cluster.wait_for_leader());
        self.lan.as_ref().map_or(Ok(()), |(_, places)| move_away(&places[leader]))?;
        let on_it = |member: &usize| (*member == leader) == (side == Side::Left);
        let hosts: Vec<_> =
            (0..self.cluster.size()).filter(on_it).map(|member| self.cluster.address(member).to_string()).collect();
        Ok(format!("etcd://{}", hosts.join(",")))
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("etcd".to_owned(), self.cluster.log())]
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        let leaders: Vec<_> = (0..self.cluster.size()).filter(|member| self.cluster.leads(*member)).collect();
        Ok(match fault {
            ServerFault::SlowDisk => Some(format!(
                "traced: {:?}",
                leaders.iter().map(|led| SlowDisk::is_of(self.cluster.pid(*led))).collect::<Vec<_>>()
            )),
            ServerFault::CrashMaster | ServerFault::FreezeLeader | ServerFault::CutOffLeader => {
                Some(format!("leaders: {leaders:?}"))
            }
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        let leader = self.cluster.wait_for_leader();
        match fault {
            ServerFault::CrashMaster => self.cluster.kill(leader),
            ServerFault::FreezeLeader => self.cluster.pause(leader),
            ServerFault::CutOffLeader => return self.cut_off(leader),
            ServerFault::RestartEmpty => {
                let other = (leader + 1) % self.cluster.size();
                self.cluster.kill(other);
                self.cluster.forget(other);
                self.cluster.launch(other);
                return Ok(());
            }
            ServerFault::SlowDisk => {
                let slowed = SlowDisk::of(self.cluster.pid(leader), DELAY).map_err(Stop::NotInstalled)?;
                *self.slowed.lock().unwrap_or_else(PoisonError::into_inner) = Some(slowed);
                return Ok(());
            }
            other => return Err(not_possible(other, "three etcd members")),
        }
        self.wait_for_other_than(leader)
    }
}

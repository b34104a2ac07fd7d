//! One etcd member.

use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use fencepost_servers::{EtcdCluster, Lan, WallClock};
use rustix::process::Signal;

use super::{NO_CLOCK, ServerFault, Stand, Way, jump, needs, no_snapshot, not_possible, place, time_of};
use crate::{
    fault::{signal, state},
    scenario::Stop,
};

/// Small, so that it is soon full.
const QUOTA: &str = "--quota-backend-bytes=4194304";

#[derive(Debug)]
pub(super) struct Member {
    cluster: EtcdCluster,
    /// Why it has none of its own, where that is so.
    clock: Result<Arc<WallClock>, String>,
    snapshot: OnceLock<PathBuf>,
}

impl Member {
    pub(super) fn start(lan: Option<&Lan>) -> Result<Arc<dyn Stand>, Stop> {
        needs("etcd", "etcd-server")?;
        needs("etcdctl", "etcd-client")?;
        let clock = match lan {
            Some(_) => Err(NO_CLOCK.to_owned()),
            None => WallClock::new().map(Arc::new),
        };
        let cluster = match &clock {
            Ok(clock) => EtcdCluster::start_on(clock, &[QUOTA]),
            Err(_) => EtcdCluster::start_in(&[place(lan)?], &[QUOTA]),
        };
        Ok(Arc::new(Self { cluster, clock, snapshot: OnceLock::new() }))
    }
}

impl Stand for Member {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.cluster.address(0))
    }

    fn way(&self) -> Result<Way, Stop> {
        Way::to_one(&self.url(), self.cluster.address(0))
    }

    fn logs(&self) -> Vec<(String, String)> {
        vec![("etcd".to_owned(), self.cluster.log())]
    }

    fn shows(&self, fault: ServerFault) -> Result<Option<String>, Stop> {
        Ok(match fault {
            ServerFault::Freeze | ServerFault::Thaw => Some(state(self.cluster.pid(0)).to_owned()),
            ServerFault::Restart | ServerFault::Restore => Some(format!("it is process {:?}", self.cluster.pid(0))),
            ServerFault::Fill | ServerFault::Clear => {
                Some(format!("alarms: {}", self.cluster.etcdctl(&["alarm", "list"])))
            }
            ServerFault::JumpClock | ServerFault::SetClockBack => time_of(self.cluster.second_of_day(0)),
            _ => None,
        })
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Freeze => signal(self.cluster.pid(0), Signal::STOP),
            ServerFault::Thaw => signal(self.cluster.pid(0), Signal::CONT),
            ServerFault::Restart | ServerFault::RestartEmpty => {
                self.cluster.kill(0);
                if fault == ServerFault::RestartEmpty {
                    self.cluster.forget(0);
                }
                self.cluster.launch(0);
                self.cluster.wait_for(0);
                Ok(())
            }
            ServerFault::JumpClock | ServerFault::SetClockBack => {
                jump(&self.clock, self.cluster.pid(0), fault, || self.cluster.second_of_day(0))
            }
            ServerFault::Fill => self.cluster.fill().map_err(Stop::NotInstalled),
            ServerFault::Clear => {
                self.cluster.clear();
                Ok(())
            }
            ServerFault::Snapshot => {
                self.snapshot.get_or_init(|| self.cluster.snapshot());
                Ok(())
            }
            ServerFault::Restore => {
                let snapshot = self.snapshot.get().ok_or_else(no_snapshot)?;
                self.cluster.restore(snapshot);
                Ok(())
            }
            other => Err(not_possible(other, "an etcd member")),
        }
    }
}

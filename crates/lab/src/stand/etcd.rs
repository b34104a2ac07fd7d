//! One etcd member.

use std::{net::SocketAddr, sync::Arc};

use fencepost_servers::EtcdCluster;
use rustix::process::Signal;

use super::{ServerFault, Stand, needs, not_possible};
use crate::{fault::signal, scenario::Stop};

#[derive(Debug)]
pub(super) struct Member(EtcdCluster);

impl Member {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("etcd", "etcd-server")?;
        Ok(Arc::new(Self(EtcdCluster::start(1))))
    }
}

impl Stand for Member {
    fn url(&self) -> String {
        self.0.url()
    }

    fn address(&self) -> Option<SocketAddr> {
        Some(self.0.address(0))
    }

    fn url_through(&self, relay: SocketAddr) -> Option<String> {
        Some(self.url().replace(&self.0.address(0).to_string(), &relay.to_string()))
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::Freeze => signal(self.0.pid(0), Signal::STOP),
            ServerFault::Thaw => signal(self.0.pid(0), Signal::CONT),
            ServerFault::Restart => {
                self.0.kill(0);
                self.0.launch(0);
                self.0.wait_for(0);
                Ok(())
            }
            other => Err(not_possible(other, "an etcd member")),
        }
    }
}

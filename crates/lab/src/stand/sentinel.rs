//! A Redis master with two replicas, watched by three sentinels.

use std::sync::Arc;

use fencepost_servers::{RedisServer, Reply, SentinelSet};

use super::{ServerFault, Stand, needs, not_possible, numbered};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Set(SentinelSet);

impl Set {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        Ok(Arc::new(Self(SentinelSet::start())))
    }

    /// The replicas take no writes: what their master sends them lies in front of them.
    fn hold_replication(&self) -> Result<(), Stop> {
        self.0.replicas().try_for_each(|replica| said(replica, &["CLIENT", "PAUSE", "60000", "WRITE"]))
    }

    /// One replica takes no writes, and is the one to be promoted; the other goes on answering for both.
    fn hold_the_heir(&self) -> Result<(), Stop> {
        let mut replicas = self.0.replicas();
        let (Some(heir), Some(other)) = (replicas.next(), replicas.next()) else {
            return Err(Stop::NotInstalled("there are not two replicas".into()));
        };
        said(heir, &["CONFIG", "SET", "replica-priority", "1"])?;
        said(other, &["CONFIG", "SET", "replica-priority", "0"])?; // never to be promoted
        said(heir, &["CLIENT", "PAUSE", "60000", "WRITE"])
    }

    /// The master is gone before the replicas go on, and what lay in front of them is gone with it.
    fn crash_master(&self) -> Result<(), Stop> {
        let master = self.0.master();
        let replicas: Vec<&RedisServer> = self.0.replicas().collect();
        let address = master.address();
        master.kill();
        replicas.into_iter().try_for_each(|replica| said(replica, &["CLIENT", "UNPAUSE"]))?;
        self.0.await_other_master(address);
        Ok(())
    }
}

fn said(server: &RedisServer, words: &[&str]) -> Result<(), Stop> {
    match server.try_command(words)? {
        Reply::Refused(why) => Err(Stop::NotInstalled(why)),
        _ => Ok(()),
    }
}

impl Stand for Set {
    fn url(&self) -> String {
        self.0.url()
    }

    fn url_of_one(&self) -> String {
        self.0.master().url()
    }

    fn logs(&self) -> Vec<(String, String)> {
        let mut logs = numbered("redis", self.0.servers().iter().map(RedisServer::log));
        logs.extend(numbered("sentinel", self.0.sentinels().iter().map(RedisServer::log)));
        logs
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        match fault {
            ServerFault::HoldReplication => self.hold_replication(),
            ServerFault::HoldTheHeir => self.hold_the_heir(),
            ServerFault::CrashMaster => self.crash_master(),
            ServerFault::FreezeLeader => {
                let master = self.0.master();
                let address = master.address();
                master.freeze();
                self.0.await_other_master(address);
                Ok(())
            }
            ServerFault::FailOver => {
                self.0.fail_over();
                Ok(())
            }
            other => Err(not_possible(other, "a Sentinel set")),
        }
    }
}

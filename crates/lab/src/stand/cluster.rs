//! A Redis Cluster: three masters with a replica each.

use std::sync::Arc;

use fencepost_servers::{ClusterSet, RedisServer};

use super::{ServerFault, Stand, needs, not_possible, numbered};
use crate::scenario::Stop;

#[derive(Debug)]
pub(super) struct Cluster(ClusterSet);

impl Cluster {
    pub(super) fn start() -> Result<Arc<dyn Stand>, Stop> {
        needs("redis-server", "redis-server")?;
        Ok(Arc::new(Self(ClusterSet::start())))
    }
}

impl Stand for Cluster {
    fn url(&self) -> String {
        self.0.url()
    }

    fn logs(&self) -> Vec<(String, String)> {
        numbered("redis", self.0.nodes().iter().map(RedisServer::log))
    }

    fn inflict(&self, fault: ServerFault) -> Result<(), Stop> {
        Err(not_possible(fault, "a Redis Cluster"))
    }
}

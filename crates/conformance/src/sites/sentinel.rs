use fencepost_core::{capabilities::Capabilities, store::BoxFuture};
use fencepost_servers::{Network, RedisServer, SentinelSet, sentinel_naming};

use super::redis::{clients_of, keys_of, tamper_with};
use crate::site::{Server, Site, Tampering, Verdict};

/// A master, two replicas and three sentinels of its own; and a sentinel that leads through a network.
#[derive(Debug)]
pub struct SentinelSite {
    /// The servers.
    pub set: SentinelSet,
    network: Network,
    /// Names the network as the master.
    _leading_through_it: RedisServer,
    disturbed_url: String,
}

/// Fresh servers.
pub async fn sentinel() -> SentinelSite {
    let set = SentinelSet::start();
    let network = Network::before(set.master().address()).await.expect("a free port");
    let (leading, disturbed_url) = sentinel_naming(network.address);
    SentinelSite { set, network, _leading_through_it: leading, disturbed_url }
}

impl Site for SentinelSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("redis+sentinel")
    }

    fn url(&self) -> String {
        self.set.url()
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move { tamper_with(self.set.master(), &self.namespace(), how) })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move { keys_of(self.set.master(), "*") })
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        Ok(self.disturbed_url.clone())
    }

    fn server(&self) -> Verdict<&dyn Server> {
        Ok(self)
    }

    fn forbidden_url(&self) -> Verdict<String> {
        Ok(self.set.url().replacen("://", "://mallory:wrong-password@", 1))
    }
}

/// All three servers: one alone would be replaced, which the tests of the store see to.
impl Server for SentinelSite {
    fn kill(&self) {
        self.set.servers().iter().for_each(RedisServer::kill);
    }

    fn start(&self) {
        self.set.servers().iter().for_each(RedisServer::launch);
    }

    fn connections(&self) -> usize {
        clients_of(self.set.master())
    }
}

use std::{
    net::{IpAddr, Ipv4Addr},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU16, Ordering},
    },
    thread,
};

use fencepost_core::{capabilities::Capabilities, name::LockName, name::Namespace, store::BoxFuture};
use fencepost_servers::{ClusterSet, Network, RedisServer};

use super::redis::{clients_of, keys_of, tamper_with};
use crate::site::{Server, Site, Tampering, Verdict};

/// A namespace of its own in a cluster of six nodes, which the sites of one test process share: a cluster takes two
/// seconds to come together. It ends with the last of them. Before it lies a network of the site's own.
#[derive(Debug)]
pub struct ClusterSite {
    shared: Arc<ClusterSet>,
    /// For what nodes are killed in.
    own: OnceLock<ClusterSet>,
    namespace: Namespace,
    network: Network,
}

/// A fresh namespace.
pub async fn cluster() -> ClusterSite {
    static SHARED: Mutex<Weak<ClusterSet>> = Mutex::new(Weak::new());
    let shared = {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let set = shared.upgrade().unwrap_or_else(|| {
            let set = ClusterSet::start();
            set.tell_ports_only();
            Arc::new(set)
        });
        *shared = Arc::downgrade(&set);
        set
    };
    within(shared).await
}

/// A cluster of the site's own, for what masters are replaced in.
pub async fn cluster_of_its_own() -> ClusterSite {
    within(Arc::new(ClusterSet::start())).await
}

async fn within(shared: Arc<ClusterSet>) -> ClusterSite {
    static NUMBER: AtomicU16 = AtomicU16::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    // Nodes tell their ports and not their host, so that who comes by this one goes on by it.
    let [high, low] = number.to_be_bytes();
    let host = IpAddr::from(Ipv4Addr::new(127, 77, high, low));
    let addresses: Vec<_> = shared.nodes().iter().map(RedisServer::address).collect();
    let network = Network::before_all_at(host, &addresses).await.expect("the ports of the nodes, at another host");
    let namespace = Namespace::new(format!("site{number}")).expect("a valid namespace");
    ClusterSite { shared, own: OnceLock::new(), namespace, network }
}

impl ClusterSite {
    /// The cluster.
    pub fn set(&self) -> &ClusterSet {
        self.own.get().unwrap_or(&self.shared)
    }

    fn master_of(&self, name: &LockName) -> &RedisServer {
        // The rules that ask use names that need no encoding.
        self.set().master_of(self.set().slot_of(name.as_str()))
    }
}

impl Site for ClusterSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("redis+cluster")
    }

    fn url(&self) -> String {
        self.set().url()
    }

    fn namespace(&self) -> Namespace {
        self.namespace.clone()
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match how {
                Tampering::Delete(name)
                | Tampering::PlantForeign(name)
                | Tampering::PlantWrongType(name)
                | Tampering::MakePermanent(name) => tamper_with(self.master_of(name), &self.namespace, how),
                Tampering::CutMessages => {
                    // The site's clients may have theirs at any node, and others have none there.
                    let cut = |node: &RedisServer| drop(node.command(&["CLIENT", "KILL", "TYPE", "pubsub"]));
                    self.set().nodes().iter().for_each(cut);
                    Ok(())
                }
                Tampering::FlushScripts | Tampering::CorruptFence(_) => {
                    self.set().masters().try_for_each(|master| tamper_with(master, &self.namespace, how))
                }
            }
        })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        let pattern = format!("{}:*", self.namespace);
        Box::pin(async move { self.set().masters().flat_map(|master| keys_of(master, &pattern)).collect() })
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        let places: Vec<_> = self.network.addresses.iter().map(ToString::to_string).collect();
        Ok(format!("redis+cluster://{}", places.join(",")))
    }

    /// Whoever asks for it means to kill it: from then on the site is in a cluster of its own. Rules ask before they open
    /// anything.
    fn server(&self) -> Verdict<&dyn Server> {
        self.own.get_or_init(ClusterSet::start);
        Ok(self)
    }

    fn forbidden_url(&self) -> Verdict<String> {
        Ok(self.set().url().replacen("://", "://mallory:wrong-password@", 1))
    }
}

/// All six nodes: one master alone would be replaced, which the tests of the store see to.
impl Server for ClusterSite {
    fn kill(&self) {
        self.set().nodes().iter().for_each(RedisServer::kill);
    }

    fn start(&self) {
        thread::scope(|scope| self.set().nodes().iter().for_each(|node| drop(scope.spawn(|| node.launch()))));
        self.set().settle();
    }

    /// What a master serves, on the average.
    fn connections(&self) -> usize {
        let each: Vec<_> = self.set().masters().map(clients_of).collect();
        each.iter().sum::<usize>().div_ceil(each.len().max(1))
    }
}

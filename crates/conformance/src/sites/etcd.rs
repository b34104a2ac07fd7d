use fencepost_core::{capabilities::Capabilities, name::LockName, store::BoxFuture};
use fencepost_servers::{EtcdCluster, Network};

use crate::site::{DoesNotApply, Server, Site, Tampering, Verdict};

/// An etcd of its own, and a network in front of its first member for those who ask for one.
#[derive(Debug)]
pub struct EtcdSite {
    /// The cluster.
    pub cluster: EtcdCluster,
    network: Network,
}

/// A fresh server.
pub async fn etcd() -> EtcdSite {
    before(EtcdCluster::start(1)).await
}

/// A fresh cluster of three members.
pub async fn etcd_trio() -> EtcdSite {
    before(EtcdCluster::start(3)).await
}

async fn before(cluster: EtcdCluster) -> EtcdSite {
    let network = Network::before(cluster.address(0)).await.expect("a free port");
    EtcdSite { cluster, network }
}

impl EtcdSite {
    /// What a lock's claims begin with; the rules that ask use names that need no encoding.
    fn prefix(&self, name: &LockName) -> String {
        format!("{}/locks/{name}/", self.namespace())
    }

    /// The key of the oldest claim, which holds.
    fn holder(&self, name: &LockName) -> Option<String> {
        let oldest = ["get", "--prefix", &self.prefix(name), "--keys-only", "--sort-by", "CREATE", "--limit", "1"];
        self.cluster.etcdctl(&oldest).lines().find(|line| !line.is_empty()).map(str::to_owned)
    }
}

impl Site for EtcdSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("etcd")
    }

    fn url(&self) -> String {
        self.cluster.url()
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            match how {
                Tampering::Delete(name) => {
                    let key = self.holder(name).expect("somebody holds it");
                    assert_eq!(self.cluster.etcdctl(&["del", &key]).trim(), "1");
                }
                Tampering::PlantForeign(name) => {
                    let nobodys = || format!("{}{}", self.prefix(name), "0".repeat(40));
                    let key = self.holder(name).unwrap_or_else(nobodys);
                    self.cluster.etcdctl(&["put", &key, "somebody else's"]);
                }
                // A write without the lease takes the key off it.
                Tampering::MakePermanent(name) => {
                    let key = self.holder(name).expect("somebody holds it");
                    let value = self.cluster.etcdctl(&["get", &key, "--print-value-only"]);
                    self.cluster.etcdctl(&["put", &key, value.trim()]);
                }
                Tampering::PlantWrongType(_) => return Err(DoesNotApply("keys have one type of content")),
                Tampering::CorruptFence(_) => return Err(DoesNotApply("the fence is the store's own revision")),
                Tampering::FlushScripts => return Err(DoesNotApply("the store knows no scripts")),
                Tampering::CutMessages => {
                    return Err(DoesNotApply("watches share the connection with everything else"));
                }
            }
            Ok(())
        })
    }

    /// Every key there is but the sessions' barriers, which end with their sessions.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let keys = self.cluster.etcdctl(&["get", "--prefix", "", "--keys-only"]);
            let barriers = format!("{}/sessions/", self.namespace());
            let left = keys.lines().filter(|line| !line.is_empty() && !line.starts_with(&barriers));
            left.map(str::to_owned).collect()
        })
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        Ok(format!("etcd://{}", self.network.address))
    }

    fn server(&self) -> Verdict<&dyn Server> {
        Ok(self)
    }

    fn forbidden_url(&self) -> Verdict<String> {
        let steps: [&[&str]; 4] = [
            &["user", "add", "root:secret"],
            &["user", "grant-role", "root", "root"],
            &["user", "add", "mallory:wrong-password"],
            &["auth", "enable"],
        ];
        for step in steps {
            self.cluster.etcdctl(step);
        }
        Ok(format!("etcd://mallory:wrong-password@{}", self.cluster.address(0)))
    }
}

impl Server for EtcdSite {
    fn kill(&self) {
        self.cluster.kill(0);
    }

    fn start(&self) {
        self.cluster.launch(0);
        self.cluster.wait_for(0);
    }

    /// Connections of its clients, by the kernel's account: those that are established to its port.
    fn connections(&self) -> usize {
        let port = format!(":{:04X}", self.cluster.address(0).port());
        let kernel = std::fs::read_to_string("/proc/net/tcp").expect("the kernel's list of connections");
        let established = kernel.lines().filter(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields.get(1).is_some_and(|local| local.ends_with(&port)) && fields.get(3) == Some(&"01")
        });
        established.count()
    }
}

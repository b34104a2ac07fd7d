use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
};

use fencepost_core::{capabilities::Capabilities, name::LockName, store::BoxFuture};
use fencepost_servers::{Admin, Network, ZooKeeperEnsemble, ZooKeeperServer};

use crate::site::{DoesNotApply, Server, Site, Tampering, Verdict};

/// A chroot of its own in a server that the sites of this process share, and a network in front of it. A rule that ends
/// the server, and asks for it first, gets one of its own.
#[derive(Debug)]
pub struct ZooKeeperSite {
    shared: Arc<ZooKeeperServer>,
    own: OnceLock<ZooKeeperServer>,
    in_use: AtomicBool,
    chroot: String,
    admin: Admin,
    network: Network,
}

/// A fresh chroot.
pub async fn zookeeper() -> ZooKeeperSite {
    static SITES: AtomicU32 = AtomicU32::new(0);
    let shared = ZooKeeperServer::shared();
    let admin = shared.admin();
    let chroot = format!("/site-{}", SITES.fetch_add(1, Relaxed));
    admin.create(&chroot, b"").expect("a fresh chroot");
    let network = Network::before(shared.address()).await.expect("a free port");
    ZooKeeperSite { shared, own: OnceLock::new(), in_use: AtomicBool::new(false), chroot, admin, network }
}

impl ZooKeeperSite {
    /// The container of a lock; the rules that ask use names that need no encoding.
    fn lock(&self, name: &LockName) -> String {
        format!("{}/{}/{name}", self.chroot, self.namespace())
    }

    /// The node of the lock's holder, which is the oldest.
    fn holder(&self, name: &LockName) -> Option<String> {
        let mut nodes = self.admin.children(&self.lock(name));
        nodes.sort_by_key(|node| node.rsplit('-').next().unwrap_or_default().to_owned());
        nodes.first().map(|node| format!("{}/{node}", self.lock(name)))
    }

    /// Makes room for something else where a lock belongs.
    fn clear(&self, name: &LockName) {
        let _ = self.admin.create(&format!("{}/{}", self.chroot, self.namespace()), b"");
        self.admin.delete_all(&self.lock(name));
    }
}

impl Site for ZooKeeperSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("zookeeper")
    }

    fn url(&self) -> String {
        match self.own.get() {
            Some(own) => own.url(),
            None => {
                self.in_use.store(true, Relaxed);
                format!("{}{}", self.shared.url(), self.chroot)
            }
        }
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            self.admin.sync();
            match how {
                Tampering::Delete(name) => {
                    let holder = self.holder(name).unwrap_or_else(|| self.lock(name));
                    self.admin.delete(&holder).expect("something to delete");
                }
                Tampering::PlantForeign(name) => {
                    self.clear(name);
                    self.admin.create_ephemeral(&self.lock(name), b"somebody else's").expect("a node");
                }
                Tampering::PlantWrongType(name) => {
                    self.clear(name);
                    self.admin.create(&self.lock(name), b"").expect("a node");
                    let lasting = format!("{}/{}-x-0000000000", self.lock(name), "0".repeat(40));
                    self.admin.create(&lasting, b"somebody else's").expect("a node that no session's end removes");
                }
                Tampering::MakePermanent(_) => return Err(DoesNotApply("a node cannot be taken off its session")),
                Tampering::CorruptFence(_) => {
                    return Err(DoesNotApply("the fence is the server's own transaction number"));
                }
                Tampering::FlushScripts => return Err(DoesNotApply("the store knows no scripts")),
                Tampering::CutMessages => {
                    return Err(DoesNotApply("watches share the connection with everything else"));
                }
            }
            Ok(())
        })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(nodes_below(&self.admin, &self.chroot))
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        Ok(format!("zookeeper://{}{}", self.network.address, self.chroot))
    }

    fn server(&self) -> Verdict<&dyn Server> {
        if self.in_use.load(Relaxed) {
            return Err(DoesNotApply("others use the server at the same time"));
        }
        Ok(self.own.get_or_init(ZooKeeperServer::start))
    }

    fn forbidden_url(&self) -> Verdict<String> {
        self.admin.log_in("alice:secret");
        let private = format!("{}/private", self.chroot);
        self.admin.create_private(&private).expect("a private chroot");
        Ok(format!("zookeeper://mallory:wrong-password@{}{private}", self.shared.address()))
    }
}

/// Three servers that agree, and can be cut off from each other.
#[derive(Debug)]
pub struct ZooKeeperTrio {
    /// The servers.
    pub ensemble: ZooKeeperEnsemble,
}

/// A fresh ensemble of three.
pub async fn zookeeper_trio() -> ZooKeeperTrio {
    ZooKeeperTrio { ensemble: ZooKeeperEnsemble::start(3).await }
}

impl Site for ZooKeeperTrio {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("zookeeper")
    }

    fn url(&self) -> String {
        self.ensemble.url()
    }

    fn tamper<'a>(&'a self, _: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(std::future::ready(Err(DoesNotApply("one server alone is enough for that"))))
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async { nodes_below(&self.ensemble.servers()[self.ensemble.leader().await].admin(), "").await })
    }
}

/// Every node below a lock. Containers stay until the servers remove them.
async fn nodes_below(admin: &Admin, chroot: &str) -> Vec<String> {
    admin.sync();
    let mut left = Vec::new();
    for namespace in admin.children(chroot).into_iter().filter(|child| child != "zookeeper") {
        for lock in admin.children(&format!("{chroot}/{namespace}")) {
            let (nodes, containers): (Vec<_>, _) =
                admin.children(&format!("{chroot}/{namespace}/{lock}")).into_iter().partition(|node| node != "slots");
            left.extend(nodes.into_iter().map(|node| format!("{namespace}/{lock}/{node}")));
            for slots in containers {
                let held = admin.children(&format!("{chroot}/{namespace}/{lock}/{slots}"));
                left.extend(held.into_iter().map(|slot| format!("{namespace}/{lock}/{slots}/{slot}")));
            }
        }
    }
    left
}

impl Server for ZooKeeperServer {
    fn kill(&self) {
        ZooKeeperServer::kill(self);
    }

    fn start(&self) {
        self.launch();
    }

    fn connections(&self) -> usize {
        let answer = self.command("srvr").expect("the server answers");
        let count = answer.lines().find_map(|line| line.strip_prefix("Connections: ")).expect("a count");
        count.parse::<usize>().expect("a number").saturating_sub(1)
    }
}

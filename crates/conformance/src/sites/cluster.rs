use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicU32, Ordering},
};

use fencepost_core::{capabilities::Capabilities, name::LockName, name::Namespace, store::BoxFuture};
use fencepost_servers::{ClusterSet, RedisServer};

use super::redis::{keys_of, tamper_with};
use crate::site::{Site, Tampering, Verdict};

/// A namespace of its own in a cluster of six nodes, which the sites of one test process share: a cluster takes two
/// seconds to come together. It ends with the last of them.
#[derive(Debug)]
pub struct ClusterSite {
    /// The nodes.
    pub set: Arc<ClusterSet>,
    namespace: Namespace,
}

/// A fresh namespace.
pub async fn cluster() -> ClusterSite {
    static SHARED: Mutex<Weak<ClusterSet>> = Mutex::new(Weak::new());
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    let set = shared.upgrade().unwrap_or_else(|| Arc::new(ClusterSet::start()));
    *shared = Arc::downgrade(&set);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    ClusterSite { set, namespace: Namespace::new(format!("site{number}")).expect("a valid namespace") }
}

/// A cluster of the site's own, for what masters are replaced in.
pub async fn cluster_of_its_own() -> ClusterSite {
    ClusterSite {
        set: Arc::new(ClusterSet::start()),
        namespace: Namespace::new("conformance").expect("a valid namespace"),
    }
}

impl ClusterSite {
    fn master_of(&self, name: &LockName) -> &RedisServer {
        // The rules that ask use names that need no encoding.
        self.set.master_of(self.set.slot_of(name.as_str()))
    }
}

impl Site for ClusterSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("redis+cluster")
    }

    fn url(&self) -> String {
        self.set.url()
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
                    self.set.nodes().iter().for_each(cut);
                    Ok(())
                }
                Tampering::FlushScripts | Tampering::CorruptFence(_) => {
                    self.set.masters().try_for_each(|master| tamper_with(master, &self.namespace, how))
                }
            }
        })
    }

    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        let pattern = format!("{}:*", self.namespace);
        Box::pin(async move { self.set.masters().flat_map(|master| keys_of(master, &pattern)).collect() })
    }

    fn forbidden_url(&self) -> Verdict<String> {
        Ok(self.set.url().replacen("://", "://mallory:wrong-password@", 1))
    }
}

//! The bare requests below a lock, for benchmarks: what Fencepost's own cost is measured against.

use std::sync::Arc;

use fencepost_core::{
    clock::BootClock,
    error::{Error, Operation},
    limits::Ttl,
};

use crate::{
    config::{Access, ZooKeeperConfig},
    failure::Failure,
    servers::Servers,
    session::Session,
    wire::{Children, Code, Created, Lifetime, Request},
};

/// A session of its own, over the same kind of connection as the store's.
#[derive(Clone, Debug)]
pub struct BareZooKeeper {
    session: Arc<Session>,
    chroot: String,
    access: Access,
}

impl BareZooKeeper {
    /// Opens a session of the default TTL.
    ///
    /// # Errors
    /// As for [`ZooKeeperStore::open`](crate::ZooKeeperStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is made by it.
    pub async fn connect(config: &ZooKeeperConfig) -> Result<Self, Error> {
        let servers = Servers::new(config)?;
        let session = Session::open(servers, Ttl::DEFAULT, config.timeout, BootClock::shared()).await;
        let session = Arc::new(session.map_err(|failure| failure.error(Operation::Open, None))?);
        Ok(Self { session, chroot: config.chroot.clone(), access: config.access })
    }

    /// Makes a container, where there is none.
    ///
    /// # Errors
    /// What the servers refused, or that they did not answer.
    ///
    /// # Cancel safety
    /// The container may be made.
    pub async fn make_container(&self, path: &str) -> Result<(), Error> {
        let create = Request::create(&self.path(path), &[], self.access, Lifetime::Container);
        match self.session.ask::<Created>(create).await {
            Ok(_) => Ok(()),
            Err(failure) if failure.is(Code::NODE_EXISTS) => Ok(()),
            Err(failure) => Err(claimed(failure)),
        }
    }

    /// Makes an ephemeral sequential node below `container` and lists what is there, in one go, as a claim does. Answers the
    /// node's whole path.
    ///
    /// # Errors
    /// What the servers refused, or that they did not answer.
    ///
    /// # Cancel safety
    /// The node may be made; it goes with the session.
    pub async fn create(&self, container: &str, name: &str, data: &[u8]) -> Result<String, Error> {
        let container = self.path(container);
        let node = format!("{container}/{name}");
        let create = Request::create(&node, data, self.access, Lifetime::EphemeralSequential);
        let both = self.session.ask_both::<Created, Children>(create, Request::children(&container, false)).await;
        let (created, listed) = both.map_err(claimed)?;
        listed.map_err(claimed)?;
        created.map(|created| created.path).map_err(claimed)
    }

    /// Removes the node that [`create`](BareZooKeeper::create) answered.
    ///
    /// # Errors
    /// What the servers refused, or that they did not answer.
    ///
    /// # Cancel safety
    /// The node may be removed.
    pub async fn delete(&self, whole_path: &str) -> Result<(), Error> {
        self.session.ask(Request::delete(whole_path)).await.map_err(claimed)
    }

    /// One write that changes nothing.
    ///
    /// # Errors
    /// That the servers did not answer.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn round_trip(&self) -> Result<(), Error> {
        self.session.ask(Request::empty_transaction()).await.map_err(claimed)
    }

    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.chroot)
    }
}

fn claimed(failure: Failure) -> Error {
    failure.error(Operation::Claim, None)
}

//! The store against real ZooKeeper servers. The rules that hold for every store are in the conformance suite; here is
//! what is ZooKeeper's own.
#![allow(clippy::unwrap_used)] // a panic is how a test fails, in its helpers too

mod curator;
mod ensemble;
mod moments;
mod numbers;
mod opening;
mod queue;
mod restoring;
mod sessions;
mod tap;
mod tls;
mod together;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    claim::{Claim, Claimant, Claimed, Grant, Holding, LossReason, Patience},
    clock::{BootClock, Clock},
    error::Error,
    limits::Ttl,
    name::{LockName, Namespace},
    owner::Owner,
    store::{LossReporter, Store},
    url::StoreUrl,
};
use fencepost_servers::{Admin, Network, ZooKeeperServer};
use fencepost_zookeeper::{ZooKeeperConfig, ZooKeeperStore};
use tokio::sync::mpsc::UnboundedReceiver;

/// Longer than any hand-over on a loaded machine.
const SOON: Duration = Duration::from_secs(5);
const LONG: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// A chroot of its own in a shared server.
struct Place {
    server: Arc<ZooKeeperServer>,
    admin: Admin,
    chroot: String,
}

impl Place {
    fn new() -> Self {
        static PLACES: AtomicU32 = AtomicU32::new(0);
        let server = ZooKeeperServer::shared();
        let (admin, chroot) = (server.admin(), format!("/place-{}", PLACES.fetch_add(1, Relaxed)));
        admin.create(&chroot, b"").unwrap();
        Self { server, admin, chroot }
    }

    fn url(&self) -> String {
        format!("{}{}", self.server.url(), self.chroot)
    }

    /// With time to connect for the server on a machine that has a lot else to do.
    async fn store(&self) -> ZooKeeperStore {
        open(&format!("{}?connect_timeout=20s", self.url())).await.unwrap()
    }

    async fn network(&self) -> (Network, String) {
        let network = Network::before(self.server.address()).await.unwrap();
        let url = format!("zookeeper://{}{}", network.address, self.chroot);
        (network, url)
    }

    /// The container of a lock whose name needs no encoding.
    fn lock(&self, name: &str) -> String {
        format!("{}/tests/{name}", self.chroot)
    }

    fn nodes(&self, name: &str) -> Vec<String> {
        self.admin.sync();
        self.admin.children(&self.lock(name))
    }
}

async fn open(url: &str) -> Result<ZooKeeperStore, Error> {
    open_on(url, BootClock::shared()).await
}

async fn open_on(url: &str, clock: Arc<dyn Clock>) -> Result<ZooKeeperStore, Error> {
    let config = ZooKeeperConfig::from_url(StoreUrl::parse(url).unwrap())?;
    ZooKeeperStore::open_with_clock(&config, &Namespace::new("tests").unwrap(), clock).await
}

fn losses(store: &ZooKeeperStore) -> UnboundedReceiver<(Owner, LossReason)> {
    let (reporter, losses) = LossReporter::channel();
    store.report_losses(reporter);
    losses
}

fn claim(lock: &str, ttl: Duration) -> Arc<Claim> {
    claim_of(lock, ttl, Owner::random().unwrap())
}

fn claim_of(lock: &str, ttl: Duration, owner: Owner) -> Arc<Claim> {
    let holding = Holding::exclusive(name(lock), owner);
    Arc::new(Claim { holding, ttl: Ttl::new(ttl).unwrap(), claimant: Arc::new(Claimant::here()) })
}

async fn granted(store: &ZooKeeperStore, claim: &Claim) -> Grant {
    match store.claim(claim, Patience::Once).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("{:?} must be free: {other:?}", claim.name()),
    }
}

async fn queued(store: &ZooKeeperStore, claim: &Claim) {
    let answer = store.claim(claim, Patience::Queue).await;
    assert!(matches!(answer, Ok(Claimed::Queued(_))), "{:?} must be held: {answer:?}", claim.name());
}

/// Requests that a server whose figures are nobody else's has received.
async fn received(server: &ZooKeeperServer) -> f64 {
    let mut figure = None;
    eventually(SOON * 4, "the server tells", async || {
        figure = server.figure("zk_packets_received");
        figure.is_some()
    })
    .await;
    figure.unwrap()
}

async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("within {limit:?}: {what}"))
}

async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = BootClock.now().after(limit);
    while !condition().await {
        assert!(BootClock.now() < until, "within {limit:?}: {what}");
        tokio::time::sleep(ms(10)).await;
    }
}

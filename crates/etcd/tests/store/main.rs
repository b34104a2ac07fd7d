//! The store against a real etcd. The rules that hold for every store are in the conformance suite; here is what is
//! etcd's own.
#![allow(clippy::unwrap_used)] // a panic is how a test fails, in its helpers too

mod beside;
mod faults;
mod guarded;
mod holding;
mod opening;
mod queue;
mod recipe;
mod tls;
mod unclear;

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimant, Claimed, Grant, Holding, LossReason, Patience, Release, Renewal},
    clock::{BootClock, Clock, sleep},
    error::Error,
    limits::Ttl,
    name::{LockName, Namespace},
    owner::Owner,
    store::{LossReporter, Store},
    url::StoreUrl,
};
use fencepost_etcd::{EtcdConfig, EtcdStore};
use fencepost_servers::EtcdCluster;
use tokio::{sync::mpsc, task::JoinHandle};

/// Longer than any hand-over on a loaded machine.
const SOON: Duration = Duration::from_secs(5);
/// The TTL of a lease that must not end by itself.
const TTL: Duration = Duration::from_secs(30);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

async fn open(url: &str) -> Result<Arc<EtcdStore>, Error> {
    let config = EtcdConfig::from_url(StoreUrl::parse(url)?)?;
    Ok(Arc::new(EtcdStore::open(&config, &Namespace::default()).await?))
}

/// A client of its own, as another process would have.
async fn client(cluster: &EtcdCluster) -> Arc<EtcdStore> {
    open(&cluster.url()).await.unwrap()
}

fn losses(store: &EtcdStore) -> mpsc::UnboundedReceiver<(Owner, LossReason)> {
    let (reporter, losses) = LossReporter::channel();
    store.report_losses(reporter);
    losses
}

fn claim(lock: &str, ttl: Duration) -> Arc<Claim> {
    Arc::new(Claim {
        holding: Holding::exclusive(name(lock), Owner::random().unwrap()),
        ttl: Ttl::new(ttl).unwrap(),
        claimant: Arc::new(Claimant::here()),
    })
}

async fn granted(store: &EtcdStore, claim: &Claim) -> Grant {
    match store.claim(claim, Patience::Once).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("{} should be free: {other:?}", claim.name()),
    }
}

async fn take(store: &EtcdStore, lock: &str, ttl: Duration) -> Arc<Claim> {
    let claim = claim(lock, ttl);
    granted(store, &claim).await;
    claim
}

/// Queues and answers once there is a place; the task ends with the grant.
async fn queue(store: &Arc<EtcdStore>, claim: &Arc<Claim>) -> JoinHandle<Result<Grant, Error>> {
    let claimed = store.claim(claim, Patience::Queue).await.unwrap();
    assert!(matches!(claimed, Claimed::Queued(_)), "{claimed:?}");
    let (store, claim) = (store.clone(), claim.clone());
    tokio::spawn(async move { store.turn(&claim).await })
}

async fn renew(store: &EtcdStore, claim: &Arc<Claim>) -> Result<Renewal, Error> {
    store.renew(std::slice::from_ref(claim)).await.pop().unwrap()
}

async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

async fn release(store: &EtcdStore, claim: &Claim) -> Release {
    store.release(&claim.holding).await.unwrap()
}

async fn eventually(limit: Duration, what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let until = BootClock.now().after(limit);
    while !happened().await {
        assert!(BootClock.now() < until, "not within {limit:?}: {what}");
        sleep(&BootClock, ms(20)).await;
    }
}

/// The keys below a prefix, oldest first.
fn keys(cluster: &EtcdCluster, prefix: &str) -> Vec<String> {
    let listed = cluster.etcdctl(&["get", "--prefix", prefix, "--keys-only", "--sort-by", "CREATE"]);
    listed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The leases there are, in hexadecimal digits.
fn sessions(cluster: &EtcdCluster) -> Vec<String> {
    let listed = cluster.etcdctl(&["lease", "list"]);
    listed.lines().skip(1).filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

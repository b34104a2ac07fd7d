//! The store against real PostgreSQL servers. The rules that hold for every store are in the conformance suite; here is
//! what is PostgreSQL's own.
#![allow(clippy::unwrap_used)] // a panic is how a test fails, in its helpers too

mod cells;
mod connections;
mod failover;
mod faults;
mod fenced;
mod holding;
mod opening;
mod planted;
mod pooler;
mod rows;
mod session;
mod several;
mod through_sqlx;
mod tls;
mod transactions;

use std::{future::Future, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimant, Claimed, Grant, Holding, Mode, Patience, Renewal, Want},
    clock::{BootClock, Clock, Moment},
    error::Error,
    limits::Ttl,
    name::{LockName, Namespace},
    owner::Owner,
    store::Store,
    url::StoreUrl,
};
use fencepost_postgres::{PostgresConfig, PostgresStore};
use fencepost_servers::PostgresServer;

/// Longer than any hand-over on a loaded machine.
const SOON: Duration = Duration::from_secs(5);
const TTL: Duration = Duration::from_secs(60);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn now() -> Moment {
    BootClock.now()
}

fn config(url: &str) -> PostgresConfig {
    PostgresConfig::from_url(StoreUrl::parse(url).unwrap()).unwrap()
}

/// A server whose database `postgres` has the tables.
async fn migrated(settings: &[&str]) -> PostgresServer {
    let server = PostgresServer::start_with(settings);
    fencepost_postgres::migrate(&config(&server.url("postgres"))).await.unwrap();
    server
}

async fn open(url: &str) -> Result<Arc<PostgresStore>, Error> {
    Ok(Arc::new(PostgresStore::open(&config(url), &Namespace::default()).await?))
}

async fn client(server: &PostgresServer) -> Arc<PostgresStore> {
    open(&server.url("postgres")).await.unwrap()
}

fn claim(lock: &str, ttl: Duration) -> Arc<Claim> {
    claim_as(lock, ttl, Mode::Exclusive)
}

fn claim_as(lock: &str, ttl: Duration, mode: Mode) -> Arc<Claim> {
    claim_of(&[lock], ttl, mode)
}

/// Of several locks at once.
fn claim_of(locks: &[&str], ttl: Duration, mode: Mode) -> Arc<Claim> {
    let wants = locks.iter().map(|lock| Want { name: name(lock), mode }).collect();
    let holding = Holding::several(wants, Owner::random().unwrap()).unwrap();
    Arc::new(Claim { holding, ttl: Ttl::new(ttl).unwrap(), claimant: Arc::new(Claimant::here()) })
}

async fn granted(store: &PostgresStore, claim: &Claim) -> Grant {
    match store.claim(claim, Patience::Once).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("{:?} must be free: {other:?}", claim.name()),
    }
}

async fn queued(store: &PostgresStore, claim: &Claim) {
    let answer = store.claim(claim, Patience::Queue).await.unwrap();
    assert!(matches!(answer, Claimed::Queued(_)), "{:?} must be held: {answer:?}", claim.name());
}

async fn renewed(store: &PostgresStore, claim: &Arc<Claim>) -> Result<Renewal, Error> {
    store.renew(std::slice::from_ref(claim)).await.remove(0)
}

async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.unwrap_or_else(|_| panic!("within {limit:?}: {what}"))
}

/// Waits for a condition that nothing announces.
async fn eventually(limit: Duration, what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let until = now().after(limit);
    while !condition().await {
        assert!(now() < until, "within {limit:?}: {what}");
        tokio::time::sleep(ms(10)).await;
    }
}

//! The store against a real Redis server. The rules that hold for every store are in the conformance suite; here is
//! what is Redis's own.
#![allow(clippy::unwrap_used)] // a panic is how a test fails, in its helpers too

mod cluster;
mod documented_rights;
mod faults;
mod floor;
mod holding;
mod opening;
mod queue;
mod redlock;
mod rights;
mod scriptless;
mod sentinel;
mod tls;
mod warnings;

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimant, Claimed, Grant, Holding, Patience, Release},
    clock::{BootClock, Clock, sleep},
    error::{Error, ErrorKind},
    limits::Ttl,
    name::{LockName, Namespace},
    owner::Owner,
    store::Store,
    url::StoreUrl,
};
use fencepost_redis::{RedisConfig, RedisStore};
use fencepost_servers::{RedisServer, Reply};

/// Longer than any hand-over on a loaded machine.
const SOON: Duration = Duration::from_secs(5);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

/// What an administrator does to a server.
trait Administered {
    /// Sends a command and answers what the server said, as lines of text.
    fn cli(&self, words: &[&str]) -> String;
}

impl Administered for RedisServer {
    fn cli(&self, words: &[&str]) -> String {
        fn lines(reply: Reply) -> String {
            match reply {
                Reply::Nil => String::new(),
                Reply::Number(number) => number.to_string(),
                Reply::Text(text) | Reply::Refused(text) => text,
                Reply::List(replies) => replies.into_iter().map(lines).collect::<Vec<_>>().join("\n"),
            }
        }
        lines(self.command(words))
    }
}

async fn open(url: &str) -> Result<Arc<RedisStore>, Error> {
    let config = RedisConfig::from_url(StoreUrl::parse(url)?)?;
    Ok(Arc::new(RedisStore::open(&config, &Namespace::default()).await?))
}

/// A client of its own, as another process would have.
async fn client(server: &RedisServer) -> Arc<RedisStore> {
    open(&server.url()).await.unwrap()
}

fn claim(lock: &str, ttl: Duration) -> Arc<Claim> {
    Arc::new(Claim {
        holding: Holding::exclusive(name(lock), Owner::random().unwrap()),
        ttl: Ttl::new(ttl).unwrap(),
        claimant: Arc::new(Claimant::here()),
    })
}

async fn take(store: &RedisStore, lock: &str, ttl: Duration) -> Arc<Claim> {
    let claim = claim(lock, ttl);
    match store.claim(&claim, Patience::Once).await.unwrap() {
        Claimed::Granted(_) => claim,
        other => panic!("{lock} should be free: {other:?}"),
    }
}

/// Queues and answers once there is a place; the task ends with the grant.
async fn queue(store: &Arc<RedisStore>, claim: &Arc<Claim>) -> tokio::task::JoinHandle<Result<Grant, Error>> {
    let claimed = store.claim(claim, Patience::Queue).await.unwrap();
    assert!(matches!(claimed, Claimed::Queued(_)), "{claimed:?}");
    let (store, claim) = (store.clone(), claim.clone());
    tokio::spawn(async move { store.turn(&claim).await })
}

async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| panic!("not within {limit:?}: {what}"))
}

async fn release(store: &RedisStore, claim: &Claim) -> Release {
    store.release(&claim.holding).await.unwrap()
}

/// The waiter may be anywhere in its asking when its store is closed. The lock `x` is held by another.
async fn closing_reaches_a_waiter(open: impl AsyncFn() -> Arc<dyn Store>) {
    for round in 0..100 {
        let (store, claim) = (open().await, claim("x", Duration::from_secs(30)));
        let claimed = store.claim(&claim, Patience::Queue).await.unwrap();
        assert!(matches!(claimed, Claimed::Queued(_)), "{claimed:?}");
        let waiting = store.clone();
        let turn = tokio::spawn(async move { waiting.turn(&claim).await });
        sleep(&BootClock, Duration::from_micros(40 * round)).await;
        store.close().await;
        let error = within(ms(900), "the waiter is told, and not as late as of an outage", turn).await;
        let error = error.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

async fn eventually(limit: Duration, what: &str, mut happened: impl FnMut() -> bool) {
    let until = BootClock.now().after(limit);
    while !happened() {
        assert!(BootClock.now() < until, "not within {limit:?}: {what}");
        sleep(&BootClock, ms(20)).await;
    }
}

async fn eventually_async(limit: Duration, what: &str, mut happened: impl AsyncFnMut() -> bool) {
    let until = BootClock.now().after(limit);
    while !happened().await {
        assert!(BootClock.now() < until, "not within {limit:?}: {what}");
        tokio::time::sleep(ms(20)).await;
    }
}

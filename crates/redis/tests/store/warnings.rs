//! What is said in the log, to people who would otherwise never hear of it.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fencepost_core::{
    claim::{Patience, Release, Renewal},
    error::{Applied, ErrorKind},
    store::Store,
};
use fencepost_servers::{ClusterSet, RedisServer, SentinelSet, sentinel_naming};
use tracing_subscriber::fmt::MakeWriter;

use super::{
    Administered, SOON, claim, client, cluster, eventually, eventually_async, open, queue, redlock, release, sentinel,
    take, within,
};

const TTL: Duration = Duration::from_secs(30);

/// The log of this thread, and so of everything that runs on a runtime of one thread.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    /// How many lines warn with these words.
    fn warnings(&self, words: &str) -> usize {
        let text = String::from_utf8(self.bytes().clone()).unwrap();
        text.lines().filter(|line| line.contains("WARN") && line.contains(words)).count()
    }
}

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_warned_of() {
    const EVICTS: &str = "this Redis evicts keys when its memory is full";
    let server = RedisServer::start();
    for (memory, policy, warnings) in
        [("0", "allkeys-lru", 0), ("100mb", "noeviction", 0), ("100mb", "allkeys-lru", 1), ("100mb", "volatile-ttl", 1)]
    {
        server.cli(&["CONFIG", "SET", "maxmemory", memory, "maxmemory-policy", policy]);
        let (log, _guard) = Log::begin();
        let store = client(&server).await;
        assert_eq!(log.warnings(EVICTS), warnings, "{memory} {policy}");
        take(&store, &format!("{memory} {policy}"), TTL).await;
        assert_eq!(log.warnings(EVICTS), warnings, "said once, when it is opened");
    }
}

#[tokio::test]
async fn forbidden_messages_are_said_once_for_each_client() {
    let (log, _guard) = Log::begin();
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "resetchannels", "+@all"]);
    let store = open(&format!("redis://locks:s3cret@{}", server.address())).await.unwrap();
    let (mine, first) = (take(&store, "x", TTL).await, claim("x", TTL));
    let second = claim("x", TTL);
    let turns = [queue(&store, &first).await, queue(&store, &second).await];
    assert_eq!(release(&store, &mine).await, Release::Released);
    let [turn, next] = turns;
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    assert_eq!(release(&store, &first).await, Release::Released);
    within(SOON, "the next turn", next).await.unwrap().unwrap();
    assert_eq!(log.warnings("Redis forbids messages to this user"), 1);
    assert_eq!(log.warnings("s3cret"), 0);
}

#[tokio::test]
async fn an_expiry_taken_off_by_hand_is_put_back_and_said() {
    const PERSISTED: &str = "had lost its expiry";
    let (log, _guard) = Log::begin();
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    server.cli(&["PERSIST", "fencepost:{x}"]);
    for _ in 0..2 {
        let renewed = store.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
        assert_eq!(log.warnings(PERSISTED), 1, "the second renewal finds it as it should be");
    }
    assert_ne!(server.cli(&["PTTL", "fencepost:{x}"]), "-1");
}

/// Whoever wants to bound what a master grants that was cut off must hear where that is not so.
#[tokio::test]
async fn a_master_that_grants_without_its_replicas_is_warned_of() {
    const UNBOUNDED: &str = "min-replicas-to-write is not set";
    let set = SentinelSet::start();
    let (log, _guard) = Log::begin();
    take(&sentinel::open(&set.url()).await.unwrap(), "x", TTL).await;
    assert_eq!(log.warnings(UNBOUNDED), 1);
    let bounded = ["CONFIG", "SET", "min-replicas-to-write", "1", "min-replicas-max-lag", "2"];
    set.servers().iter().for_each(|server| assert_eq!(server.cli(&bounded), "OK"));
    take(&sentinel::open(&set.url()).await.unwrap(), "y", TTL).await;
    assert_eq!(log.warnings(UNBOUNDED), 1, "it is set now");
    // And what it does: no grant without a replica.
    set.sentinels().iter().for_each(RedisServer::kill);
    set.servers().iter().filter(|server| server.cli(&["ROLE"]).starts_with("slave")).for_each(RedisServer::kill);
    let store = open(&set.servers()[0].url()).await.unwrap();
    let mut refused = None;
    eventually_async(SOON * 2, "the master misses its replicas", async || {
        refused = store.claim(&claim("z", TTL), Patience::Once).await.err();
        refused.is_some()
    })
    .await;
    let error = refused.unwrap();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert!(error.to_string().contains("NOREPLICAS") || error.to_string().contains("replicas"), "{error}");
}

#[tokio::test]
async fn sentinels_that_are_away_or_disagree_are_named() {
    let set = SentinelSet::start();
    let stranger = RedisServer::start();
    let (other, _) = sentinel_naming(stranger.address());
    let (log, _guard) = Log::begin();
    let three = set.url();
    let four = three.replacen("://", &format!("://{},", other.address()), 1);
    take(&sentinel::open(&three).await.unwrap(), "x", TTL).await;
    assert_eq!((log.warnings("cannot be heard"), log.warnings("disagree")), (0, 0));
    // All must be heard for that: three who agree are not kept waiting by the fourth.
    set.sentinels()[2].freeze();
    let store = sentinel::open(&four).await.unwrap();
    assert_eq!(log.warnings("the sentinels disagree"), 1);
    assert_eq!(log.warnings(&format!("{} says {}", other.address(), stranger.address())), 1);
    drop(store);
    set.sentinels()[2].thaw();

    set.sentinels()[0].kill();
    let _minority = sentinel::open(&three).await.unwrap();
    let away = format!("nothing listens at {}", set.sentinels()[0].address());
    eventually(SOON, "a single one is named too", || log.warnings(&away) == 1).await;
    assert_eq!(log.warnings("sentinels tell who the master is"), 0, "two of three are enough");
    set.sentinels()[1].kill();
    let _majority = sentinel::open(&three).await.unwrap();
    assert_eq!(log.warnings("only 1 of 3 sentinels tell who the master is"), 1);
    assert!(log.warnings(&format!("nothing listens at {}", set.sentinels()[1].address())) >= 1);
}

#[tokio::test]
async fn masters_of_a_cluster_that_are_away_are_named() {
    const AWAY: &str = "a master of the cluster cannot be reached";
    let set = ClusterSet::start();
    let (log, _guard) = Log::begin();
    drop(cluster::open(&set.url()).await.unwrap());
    assert_eq!(log.warnings(AWAY), 0);
    let (frozen, asked) = (set.nodes()[0].address(), set.nodes()[4].address());
    set.nodes()[0].freeze();
    let store = within(SOON, "a silent one holds nothing up", cluster::open(&format!("redis+cluster://{asked}"))).await;
    drop(store.unwrap());
    let named = log.warnings(AWAY) == 1 && log.warnings(&frozen.to_string()) >= 1;
    // A second is enough for its replica to take over, on a machine that lets us look later than that.
    let replaced = set.masters().any(|master| master.address() == set.nodes()[3].address());
    set.nodes()[0].thaw();
    assert!(named || replaced, "{log:?}");
}

#[tokio::test]
async fn a_number_of_redlock_servers_that_makes_little_sense_and_a_minority_that_is_away_are_warned_of() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let url = |count: usize| {
        let hosts: Vec<_> = servers[..count].iter().map(|server| server.address().to_string()).collect();
        format!("redlock://{}?{}", hosts.join(","), redlock::HEALTHY)
    };
    let (log, _guard) = Log::begin();
    drop(redlock::open(&url(3)).await.unwrap());
    assert_eq!(log.warnings(""), 0);
    drop(redlock::open(&url(1)).await.unwrap());
    assert_eq!(log.warnings("one store is no majority of anything"), 1);
    drop(redlock::open(&url(2)).await.unwrap());
    assert_eq!(log.warnings("of two stores none may fail"), 1);
    servers[1].kill();
    drop(redlock::open(&url(3)).await.unwrap());
    assert_eq!(log.warnings("1 of 3 Redlock servers cannot be reached"), 1);
    assert_eq!(log.warnings(&format!("nothing listens at {}", servers[1].address())), 1);
}

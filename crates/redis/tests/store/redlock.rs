//! A majority of real servers: minorities and majorities that are away, silent, empty or twice the same, lost rounds,
//! and what a restart without data does. What holds for every store is in the conformance suite.

mod missing;
mod waiting;

use std::{sync::Arc, thread, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimed, Patience, Release, Renewal},
    clock::{BootClock, Clock},
    error::{Error, ErrorKind},
    name::Namespace,
    store::Store,
    url::StoreUrl,
};
use fencepost_redis::redlock::{RedlockConfig, RedlockStore};
use fencepost_servers::{RedisServer, Reply};
use tokio::task::JoinSet;

use super::{Administered, SOON, claim, closing_reaches_a_waiter, eventually, eventually_async, ms, within};

/// A TTL that outlasts the test.
const LONG: Duration = Duration::from_secs(60);

fn servers(count: usize) -> Vec<RedisServer> {
    let starting: Vec<_> = (0..count).map(|_| thread::spawn(RedisServer::start)).collect();
    starting.into_iter().map(|server| server.join().unwrap()).collect()
}

fn url(servers: &[RedisServer], options: &str) -> String {
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    format!("redlock://{}?{options}", hosts.join(","))
}

pub(super) async fn open(url: &str) -> Result<Arc<RedlockStore>, Error> {
    let config = RedlockConfig::from_url(StoreUrl::parse(url)?)?;
    Ok(Arc::new(RedlockStore::open(&config, &Namespace::default()).await?))
}

/// A limit that a healthy server keeps on a machine that is busy with other tests. These servers keep their data.
pub(super) const HEALTHY: &str = "node_timeout=1s&restart_guard=0";

async fn client(servers: &[RedisServer]) -> Arc<RedlockStore> {
    open(&url(servers, HEALTHY)).await.unwrap()
}

async fn once(store: &RedlockStore, claim: &Claim) -> Result<Claimed, Error> {
    store.claim(claim, Patience::Once).await
}

fn is_granted(claimed: &Result<Claimed, Error>) -> bool {
    matches!(claimed, Ok(Claimed::Granted(_)))
}

async fn renewed(store: &RedlockStore, claim: &Arc<Claim>) -> Result<Renewal, Error> {
    store.renew(std::slice::from_ref(claim)).await.remove(0)
}

fn is_renewed(renewal: &Result<Renewal, Error>) -> bool {
    matches!(renewal, Ok(Renewal::Renewed { .. }))
}

fn keys(servers: &[RedisServer]) -> Vec<String> {
    servers.iter().map(|server| server.cli(&["KEYS", "*"])).filter(|keys| !keys.is_empty()).collect()
}

/// Source: redisson 1636; redsync 140.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_minority_that_says_nothing_costs_no_time() {
    let servers = servers(5);
    let store = client(&servers).await;
    servers[1].freeze();
    servers[4].freeze();
    let begun = BootClock.now();
    for _ in 0..5 {
        let claim = claim("x", LONG);
        assert!(is_granted(&once(&store, &claim).await));
        assert_eq!(store.release(&claim.holding).await.unwrap(), Release::Released);
    }
    assert!(
        BootClock.now().since(begun) < ms(1_000),
        "the quorum's answer is enough: {:?}",
        BootClock.now().since(begun)
    );
    servers[1].thaw();
    servers[4].thaw();
    eventually(SOON, "what they were sent while they stood still is given back", || keys(&servers).is_empty()).await;
}

/// Source: distributed-lock-rs (keys left).
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_lost_round_leaves_nothing_on_servers_that_were_slow() {
    let servers = servers(5);
    let store = open(&url(&servers, "node_timeout=200ms&restart_guard=0")).await.unwrap();
    servers[..3].iter().for_each(RedisServer::freeze);
    let claim = claim("x", LONG);
    let error = within(SOON, "each server's limit", once(&store, &claim)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    eventually(SOON, "nothing stays on those that answered", || keys(&servers[3..]).is_empty()).await;
    // They run now what they were sent.
    servers[..3].iter().for_each(RedisServer::thaw);
    eventually(SOON, "nor on those that were slow, long before the TTL", || keys(&servers).is_empty()).await;
    std::thread::sleep(ms(300));
    assert_eq!(keys(&servers), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_majority_that_is_away_is_named() {
    let servers = servers(5);
    servers[..2].iter().for_each(RedisServer::kill);
    let store = client(&servers).await;
    let held = claim("held", LONG);
    assert!(is_granted(&once(&store, &held).await), "a minority may be away from the start");
    servers[2].kill();
    let refused = claim("x", LONG);
    let error = within(SOON, "no endless wait", once(&store, &refused)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    for server in &servers[..3] {
        assert!(error.to_string().contains(&server.address().to_string()), "{error}");
    }
    let error = within(SOON, "no endless wait", open(&url(&servers, HEALTHY))).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains("3 of 5"), "{error}");
    servers[..3].iter().for_each(RedisServer::launch);
    eventually_async(SOON, "they are found again", async || is_granted(&once(&store, &refused).await)).await;
    // One of the three may be in the pause after a vain try to connect.
    let renewed = async || matches!(store.renew(std::slice::from_ref(&held)).await[..], [Ok(Renewal::Renewed { .. })]);
    eventually_async(SOON, "three of five have kept it", renewed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_server_twice_a_replica_a_node_of_a_cluster_and_a_wrong_password_are_refused() {
    let servers = servers(3);
    let addresses: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let port = servers[0].address().port();
    let refused = |url: String| async move { within(SOON, "at once", open(&url)).await.unwrap_err() };
    let twice = refused(format!("redlock://{},{},localhost:{port}", addresses[0], addresses[1])).await;
    assert!(twice.kind() == ErrorKind::Misconfigured && twice.to_string().contains("are one server"), "{twice}");
    let login = refused(format!("redlock://@{},@{},me:wrong@{}", addresses[0], addresses[1], addresses[2])).await;
    assert_eq!(login.kind(), ErrorKind::PermissionDenied, "{login}");
    assert!(login.to_string().contains(&addresses[2]) && !login.to_string().contains("wrong@"), "{login}");
    let (host, port) = (servers[0].address().ip().to_string(), port.to_string());
    servers[1].cli(&["REPLICAOF", &host, &port]);
    let replica = refused(url(&servers, "")).await;
    assert!(replica.kind() == ErrorKind::Misconfigured && replica.to_string().contains("replica"), "{replica}");
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let node_of_a_cluster = refused(format!("redlock://{},{},{}", addresses[0], addresses[2], node.address())).await;
    assert_eq!(node_of_a_cluster.kind(), ErrorKind::Misconfigured);
    let said = node_of_a_cluster.to_string();
    assert!(said.contains(&node.address().to_string()) && said.contains("node of a Redis Cluster"), "{said}");
}

/// A repeat is safe, so that a majority that is silent for longer than its limit is no reason yet to tell of an unknown outcome.
#[tokio::test(flavor = "multi_thread")]
async fn o3_a_release_outlasts_a_moment_of_silence() {
    let servers = servers(5);
    let store = open(&url(&servers, "node_timeout=1s&restart_guard=0")).await.unwrap();
    let held = claim("x", LONG);
    assert!(is_granted(&once(&store, &held).await));
    eventually(SOON, "it is everywhere", || keys(&servers).len() == 5).await;
    servers[..3].iter().for_each(RedisServer::freeze);
    let releasing = {
        let (store, held) = (store.clone(), held.clone());
        tokio::spawn(async move { store.release(&held.holding).await })
    };
    tokio::time::sleep(ms(1_500)).await;
    servers[..3].iter().for_each(RedisServer::thaw);
    let released = within(SOON, "a release has a limit of its own", releasing).await.unwrap();
    assert_eq!(released.unwrap(), Release::Released);
    eventually(SOON, "nothing is left", || keys(&servers).is_empty()).await;
}

/// What comes late must not undo what came after it.
#[tokio::test(flavor = "multi_thread")]
async fn o2_a_late_give_back_of_a_lost_round_changes_nothing_of_a_later_one() {
    let server = RedisServer::start();
    let owner = "ab".repeat(20);
    let record = format!("1-{owner}{:014}{:011}{:014}{{}}", 0, 60_000, 1_700_000_000_100_u64);
    server.cli(&["SET", "fencepost:{x}", &record, "PX", "60000"]);
    assert_eq!(given_back(&server, &owner, 1_700_000_000_099), Reply::Number(0), "of an earlier round");
    assert_eq!(server.cli(&["EXISTS", "fencepost:{x}"]), "1");
    assert_eq!(given_back(&server, &owner, 1_700_000_000_100), Reply::Number(1), "of its own");
    assert_eq!(server.cli(&["EXISTS", "fencepost:{x}"]), "0");
}

/// A server that stood still carries out a request of a lost round after that round was given back; the claim was granted by others
/// meanwhile. Its record is one of the lease's then, and counts with the next renewal: a second request to give the round back,
/// which comes later still, must leave it. Found by the simulator.
#[tokio::test(flavor = "multi_thread")]
async fn o2_what_a_renewal_counts_is_not_taken_away_by_a_late_give_back() {
    let servers = servers(3);
    let store = client(&servers).await;
    let held = claim("x", LONG);
    let (key, lost) = ("fencepost:{x}", 1_700_000_000_000_u64);
    assert!(is_granted(&once(&store, &held).await));
    let late = format!("1-{}{:014}{:011}{lost:014}{{}}", held.owner(), 0, 60_000);
    servers[0].cli(&["SET", key, &late, "PX", "60000"]);
    assert!(is_renewed(&renewed(&store, &held).await));
    eventually(SOON, "the renewal is there", || !servers[0].cli(&["GET", key]).contains(&lost.to_string())).await;
    assert_eq!(given_back(&servers[0], &held.owner().to_string(), lost), Reply::Number(0));
    assert_eq!(servers[0].cli(&["EXISTS", key]), "1", "it counts, and nobody else may be promised the lock here");
    let states = store.inspect(None).await.unwrap();
    let since = states[0].holders[0].since_unix_ms.unwrap();
    assert!(since > lost, "held since the round that was won");
    assert_eq!(store.release(&held.holding).await.unwrap(), Release::Released);
}

/// As a client gives a lost round back.
fn given_back(server: &RedisServer, owner: &str, round: u64) -> Reply {
    let script = concat!(
        include_str!("../../src/scripts/record.lua"),
        include_str!("../../src/scripts/queue.lua"),
        include_str!("../../src/scripts/holders.lua"),
        include_str!("../../src/scripts/quorum_retract.lua"),
        include_str!("../../src/scripts/release.lua")
    );
    let [lock, queue, waiters] = ["fencepost:{x}", "fencepost:{x}:queue", "fencepost:{x}:waiters"];
    let (owner, round) = (format!("1-{owner}"), round.to_string());
    server.command(&["EVAL", script, "3", lock, queue, waiters, &owner, &round])
}

/// With a limit that hardly any answer keeps, with servers that stand still for moments, and with futures dropped at
/// whatever await point they stand at, rounds are lost in every way there is; nobody overlaps, and nothing stays.
#[tokio::test(flavor = "multi_thread")]
async fn o2_nobody_overlaps_when_answers_come_too_late() {
    let servers = Arc::new(servers(5));
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let until = BootClock.now().after(ms(8_000));
    let mut tasks = JoinSet::new();
    for number in 0..12_u64 {
        let limit = 2 + number % 4 * 5;
        let options = format!("node_timeout={limit}ms&restart_guard=0&connect_timeout=5s");
        let url = url(&servers, &options);
        // Getting acquainted has the same limit.
        let store = loop {
            match open(&url).await {
                Ok(store) => break store,
                Err(error) => assert!(BootClock.now() < until, "{error}"),
            }
        };
        let inside = inside.clone();
        tasks.spawn(async move {
            let mut grants = 0;
            while BootClock.now() < until {
                let claim = claim("x", LONG);
                let work = async {
                    match store.claim(&claim, Patience::Queue).await? {
                        Claimed::Queued(_) => store.turn(&claim).await.map(drop),
                        _ => Ok(()),
                    }
                };
                let patience = ms(fastrand::u64(1..400));
                if matches!(tokio::time::timeout(patience, work).await, Ok(Ok(()))) {
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two hold");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    grants += 1;
                }
                // As the client's cleaner does: until it is answered, and once more a moment later.
                while store.release(&claim.holding).await.is_err() && BootClock.now() < until {}
                tokio::time::sleep(ms(fastrand::u64(0..20))).await;
                let _ = store.release(&claim.holding).await;
            }
            grants
        });
    }
    while BootClock.now() < until {
        let server = &servers[fastrand::usize(..5)];
        server.freeze();
        tokio::time::sleep(ms(fastrand::u64(1..40))).await;
        server.thaw();
        tokio::time::sleep(ms(fastrand::u64(1..40))).await;
    }
    let grants: u64 = within(SOON * 4, "all end", tasks.join_all()).await.into_iter().sum();
    println!("{grants} grants");
    assert!(grants > 0, "nothing was tested");
    eventually(SOON * 4, "nothing is left", || keys(&servers).is_empty()).await;
}

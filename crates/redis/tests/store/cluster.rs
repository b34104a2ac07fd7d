//! A cluster: slots that move and masters that are replaced, while locks are held and waited for.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, Forced, LossReason, Patience, Release, Renewal},
    clock::{BootClock, Clock, sleep},
    error::{Applied, Error, ErrorKind},
    name::Namespace,
    store::{LossReporter, Store},
    url::StoreUrl,
};
use fencepost_redis::{ClusterConfig, RedisStore};
use fencepost_servers::{ClusterSet, RedisServer, sentinel_naming};

use super::{
    Administered, SOON, claim, closing_reaches_a_waiter, eventually, ms, name, open as open_single, queue, release,
    take, within,
};

const TTL: Duration = Duration::from_secs(60);
const FAILOVER: Duration = Duration::from_secs(20);

pub(super) async fn open(url: &str) -> Result<Arc<RedisStore>, Error> {
    let config = ClusterConfig::from_url(StoreUrl::parse(url)?)?;
    Ok(Arc::new(RedisStore::open_cluster(&config, &Namespace::default(), BootClock::shared()).await?))
}

/// A master that has not the slot.
fn another(set: &ClusterSet, slot: u16) -> &RedisServer {
    let here = set.master_of(slot).address();
    set.masters().find(|master| master.address() != here).expect("three masters")
}

/// A lock whose slot another master has.
fn name_elsewhere(set: &ClusterSet, slot: u16) -> &'static str {
    let here = set.master_of(slot).address();
    let elsewhere = |name: &&str| set.master_of(set.slot_of(name)).address() != here;
    ["a", "b", "c", "d", "e"].into_iter().find(elsewhere).expect("five names spread over three masters")
}

fn is_renewed(answer: Result<Renewal, Error>) -> bool {
    matches!(answer, Ok(Renewal::Renewed { .. }))
}

async fn renewed(store: &RedisStore, claim: &Arc<fencepost_core::claim::Claim>) -> Result<Renewal, Error> {
    store.renew(std::slice::from_ref(claim)).await.pop().unwrap()
}

/// One key after another is at the old master, on its way, and at the new one, which the map of no client knows yet.
#[tokio::test(flavor = "multi_thread")]
async fn a_slot_moves_while_its_lock_is_held_and_waited_for() {
    let set = ClusterSet::start();
    let (holder, other) = (open(&set.url()).await.unwrap(), open(&set.url()).await.unwrap());
    let slot = set.slot_of("x");
    let to = another(&set, slot);
    let mine = take(&holder, "x", TTL).await;
    let wanted = claim("x", TTL);
    let turn = queue(&other, &wanted).await;

    set.begin_moving(slot, to);
    assert!(is_renewed(renewed(&holder, &mine).await), "the key is still at its old master");
    set.move_keys(slot, to);
    assert!(is_renewed(renewed(&holder, &mine).await), "ASK: the key is at the node that is about to get the slot");
    assert_eq!(holder.inspect(Some(&name("x"))).await.map(|locks| locks.len()).unwrap_or(1), 1);
    set.finish_moving(slot, to);
    assert!(is_renewed(renewed(&holder, &mine).await), "MOVED: nobody told the client");
    assert!(to.cli(&["GET", "fencepost:{x}"]).contains(&mine.owner().to_string()), "the same owner value");
    assert_eq!(release(&holder, &mine).await, Release::Released);
    within(SOON, "the waiter's turn", turn).await.unwrap().unwrap();
    assert_eq!(release(&other, &wanted).await, Release::Released);
}

/// Scripts name keys that are not all on one side then, which the servers refuse until the slot has moved.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_done_while_a_slot_moves_is_done_right_after() {
    let set = ClusterSet::start();
    let store = open(&set.url()).await.unwrap();
    let slot = set.slot_of("x");
    let to = another(&set, slot);
    let mine = take(&store, "x", TTL).await;
    set.begin_moving(slot, to);
    let (a, b) = (store.clone(), mine.clone());
    let giving_back = tokio::spawn(async move { a.release(&b.holding).await });
    sleep(&BootClock, ms(300)).await;
    assert!(!giving_back.is_finished(), "the test needs a script that the servers refuse now");
    set.move_keys(slot, to);
    set.finish_moving(slot, to);
    let released = within(SOON, "the release", giving_back).await.unwrap().unwrap();
    assert_eq!(released, Release::Released);
    // Free locks can be taken all the while.
    set.begin_moving(slot, another(&set, slot));
    let again = take(&store, "x", TTL).await;
    assert!(is_renewed(renewed(&store, &again).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_loses_nothing() {
    let set = ClusterSet::start();
    let (holder, other) = (open(&set.url()).await.unwrap(), open(&set.url()).await.unwrap());
    let mine = take(&holder, "x", TTL).await;
    let turn = queue(&other, &claim("x", TTL)).await;
    set.fail_over(set.slot_of("x"));
    assert!(is_renewed(renewed(&holder, &mine).await));
    assert_eq!(release(&holder, &mine).await, Release::Released);
    within(SOON, "the waiter's turn", turn).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_disturbs_no_other_lock_and_a_missing_record_is_a_loss() {
    let set = ClusterSet::start();
    let store = open(&set.url()).await.unwrap();
    let slot = set.slot_of("x");
    let apart = take(&store, name_elsewhere(&set, slot), TTL).await;
    let kept = take(&store, "x", TTL).await;
    set.settle();
    // Not deterministic for a cluster, so the record is taken from the replica that will be promoted.
    let replica = set.replica_of(slot);
    let old = set.master_of(slot);
    let address = old.address();
    old.kill();
    assert!(is_renewed(renewed(&store, &apart).await), "another master's lock");
    let error = renewed(&store, &kept).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    set.await_other_master(slot, address);
    let outcome = async {
        loop {
            match renewed(&store, &kept).await {
                Ok(renewal) => return renewal,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            sleep(&BootClock, ms(50)).await;
        }
    };
    assert!(matches!(within(FAILOVER, "the new master", outcome).await, Renewal::Renewed { .. }));
    assert_eq!(replica.cli(&["DEL", "fencepost:{x}"]), "1");
    assert_eq!(renewed(&store, &kept).await.unwrap(), Renewal::Lost(LossReason::Deleted), "a renewal never creates");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_master_is_left_once_it_is_replaced() {
    let set = ClusterSet::start();
    let store = open(&format!("{}?timeout=500ms", set.url())).await.unwrap();
    let slot = set.slot_of("x");
    let old = set.master_of(slot);
    let mine = take(&store, "x", TTL).await;
    old.freeze();
    let lost = claim("x", TTL);
    let error = within(SOON, "the limit", store.claim(&lost, Patience::Once)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    let outcome = async {
        while !is_renewed(renewed(&store, &mine).await) {
            sleep(&BootClock, ms(50)).await;
        }
    };
    within(FAILOVER, "the new master", outcome).await;
    old.thaw();
    assert!(is_renewed(renewed(&store, &mine).await));
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_of_all_masters_are_listed_broken_and_renewed_in_pipelines() {
    let set = ClusterSet::start();
    let store = open(&set.url()).await.unwrap();
    let mut held = Vec::new();
    for number in 0..300 {
        held.push(take(&store, &format!("{number}"), TTL).await);
    }
    assert_eq!(store.inspect(None).await.unwrap().len(), 300);
    assert!(matches!(store.force(&name("7"), None).await.unwrap(), Forced::Broken(_)));
    set.masters().for_each(|master| drop(master.cli(&["CONFIG", "RESETSTAT"])));
    set.masters().for_each(|master| drop(master.cli(&["SCRIPT", "FLUSH"])));
    for _ in 0..2 {
        let answers = store.renew(&held).await;
        assert_eq!(answers.len(), 300);
        for (number, answer) in answers.into_iter().enumerate() {
            match answer.unwrap() {
                Renewal::Lost(LossReason::Deleted) => assert_eq!(number, 7),
                Renewal::Renewed { .. } => assert_ne!(number, 7),
                other => panic!("{number}: {other:?}"),
            }
        }
    }
    // The kernel's writes tell pipelines from single commands: here each holds up to a hundred.
    let reads: u64 = set
        .masters()
        .map(|master| {
            let stats = master.cli(&["INFO", "stats"]);
            let line = stats.lines().find_map(|line| line.strip_prefix("total_reads_processed:")).unwrap();
            line.trim().parse::<u64>().unwrap()
        })
        .sum();
    assert!(reads < 60, "six hundred commands in pipelines, in {reads} reads");
    for claim in &held {
        release(&store, claim).await;
    }
    assert_eq!(store.inspect(None).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_the_wrong_scheme_is_said_when_opening() {
    let set = ClusterSet::start();
    for node in [&set.nodes()[0], &set.nodes()[5]] {
        let error = open_single(&node.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(error.to_string().contains("node of a Redis Cluster; use the scheme redis+cluster:"), "{error}");
    }
    let single = RedisServer::start();
    let (sentinel, _) = sentinel_naming(single.address());
    let error = open(&format!("redis+cluster://{}", sentinel.address())).await.unwrap_err();
    assert!(error.to_string().contains("is no node of a cluster"), "{error}");
    let error = open(&format!("redis+cluster://{}", single.address())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("is no node of a cluster; a single server is opened by redis:"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_nodes_out_of_reach() {
    let set = ClusterSet::start();
    // One that answers is enough, wherever it stands and whatever it is.
    let some = format!("redis+cluster://127.0.0.1:1,{},127.0.0.1:2", set.nodes()[4].address());
    let store = open(&some).await.unwrap();
    let mine = take(&store, "x", TTL).await;
    set.nodes().iter().for_each(RedisServer::kill);
    let error = within(SOON, "the refusal", store.claim(&claim("x", TTL), Patience::Once)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let error = within(SOON, "the refusal", open(&set.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("nothing listens at 127.0.0.1:"), "{error}");
    set.nodes().iter().for_each(RedisServer::launch);
    let outcome = async {
        while !is_renewed(renewed(&store, &mine).await) {
            sleep(&BootClock, ms(50)).await;
        }
    };
    within(FAILOVER, "the same client works again, with the same record", outcome).await;
}

/// Without `cluster-require-full-coverage no` a cluster that lacks slots serves none.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_cluster_that_lacks_slots_is_unavailable() {
    let set = ClusterSet::start();
    let store = open(&format!("{}?timeout=500ms", set.url())).await.unwrap();
    let slot = set.slot_of("x");
    let (master, replica) = (set.master_of(slot), set.replica_of(slot));
    let other = name_elsewhere(&set, slot);
    replica.kill();
    master.kill();
    eventually(FAILOVER, "the cluster is down", || {
        set.masters().all(|master| master.cli(&["CLUSTER", "INFO"]).contains("cluster_state:fail"))
    })
    .await;
    let error = store.claim(&claim(other, TTL), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert!(error.to_string().contains("cluster is down"), "{error}");
    let began = BootClock.now();
    let busy = store.claim(&claim("x", TTL), Patience::Once).await;
    assert!(busy.is_err() && BootClock.now().since(began) < SOON, "{busy:?}");
    assert!(!matches!(busy, Ok(Claimed::Busy(_))));
}

/// The messages of a hand-over stay within the slot: the lock's master sends them, and counts who hears.
#[tokio::test(flavor = "multi_thread")]
async fn w2_a_hand_over_is_told_within_its_slot() {
    let set = ClusterSet::start();
    let (holder, other) = (open(&set.url()).await.unwrap(), open(&set.url()).await.unwrap());
    let slot = set.slot_of("x");
    let mut mine = take(&holder, "x", TTL).await;
    set.masters().for_each(|master| drop(master.cli(&["CONFIG", "RESETSTAT"])));
    for _ in 0..5 {
        let wanted = claim("x", TTL);
        let turn = queue(&other, &wanted).await;
        assert!(!set.master_of(slot).cli(&["PUBSUB", "SHARDCHANNELS", "fencepost:*"]).is_empty());
        assert_eq!(release(&holder, &mine).await, Release::Released);
        within(SOON, "the turn", turn).await.unwrap().unwrap();
        let back = claim("x", TTL);
        let turn = queue(&holder, &back).await;
        assert_eq!(release(&other, &wanted).await, Release::Released);
        within(SOON, "the turn", turn).await.unwrap().unwrap();
        mine = back;
    }
    let stats: Vec<_> = set.masters().map(|master| master.cli(&["INFO", "commandstats"])).collect();
    let calls = |command: &str| -> u32 {
        let of = |stats: &String| -> Option<u32> {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
            line.split(',').next()?.parse().ok()
        };
        stats.iter().filter_map(of).sum()
    };
    assert!((10..=14).contains(&calls("spublish")), "one for each hand-over, and greetings: {stats:?}");
    assert!(calls("publish") <= 2, "each client's greeting: {stats:?}");
    eventually(SOON, "who waits no longer listens no longer", || {
        set.masters().all(|master| master.cli(&["PUBSUB", "SHARDCHANNELS", "fencepost:*"]).is_empty())
    })
    .await;
}

/// The subscription goes with the slot, and the waiter subscribes anew.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_waiter_hears_its_turn_where_its_slot_went() {
    let set = ClusterSet::start();
    let (holder, other) = (open(&set.url()).await.unwrap(), open(&set.url()).await.unwrap());
    let slot = set.slot_of("x");
    let mine = take(&holder, "x", TTL).await;
    let turn = queue(&other, &claim("x", TTL)).await;
    let to = another(&set, slot);
    set.begin_moving(slot, to);
    set.move_keys(slot, to);
    set.finish_moving(slot, to);
    eventually(SOON, "it listens at the new master", || {
        !to.cli(&["PUBSUB", "SHARDCHANNELS", "fencepost:*"]).is_empty()
    })
    .await;
    assert_eq!(release(&holder, &mine).await, Release::Released);
    within(ms(1000), "the turn, by a message", turn).await.unwrap().unwrap();
}

/// Where the user may not use them, hand-overs are told to every node; where no messages are allowed, it asks.
#[tokio::test(flavor = "multi_thread")]
async fn w1_without_sharded_messages_or_without_any() {
    let set = ClusterSet::start();
    let rights = "+ping +info +cluster|slots +asking +time +scan +eval +evalsha +get +set +del +exists +pttl +pexpire \
                  +zadd +zrem +zrange +zrank +zcard +zscore +hget +hset +hdel +hincrby +hgetall";
    let messages = "+subscribe +publish";
    for (user, rights) in [("plain", format!("{rights} {messages}")), ("mute", rights.to_owned())] {
        let head = ["ACL", "SETUSER", user, "on", ">pw", "~fencepost:*", "&fencepost:*", "-@all"];
        let words = [&head[..], &rights.split(' ').collect::<Vec<_>>()].concat();
        set.nodes().iter().for_each(|node| assert_eq!(node.cli(&words), "OK"));
        let url = set.url().replacen("://", &format!("://{user}:pw@"), 1);
        let (holder, other) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let mine = take(&holder, user, TTL).await;
        let turn = queue(&other, &claim(user, TTL)).await;
        assert_eq!(release(&holder, &mine).await, Release::Released);
        within(SOON, "the turn", turn).await.unwrap().unwrap();
        assert!(set.masters().all(|master| master.cli(&["PUBSUB", "SHARDCHANNELS", "fencepost:*"]).is_empty()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l4_a_replaced_master_puts_every_grant_in_doubt() {
    let set = ClusterSet::start();
    let store = open(&set.url()).await.unwrap();
    let (reporter, _losses) = LossReporter::channel();
    store.report_losses(reporter.clone());
    let mine = take(&store, "x", TTL).await;
    eventually(SOON, "it listens", || {
        set.nodes().iter().any(|node| !node.cli(&["PUBSUB", "CHANNELS", "fencepost:*"]).is_empty())
    })
    .await;
    set.fail_over(set.slot_of("x"));
    assert!(is_renewed(renewed(&store, &mine).await), "which finds the new master");
    within(SOON, "every grant is in doubt", reporter.doubted()).await;
}

/// A client waits for a third of the TTL, and would take every answer for lost.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_silent_master_keeps_no_other_lease_from_its_renewal() {
    let set = ClusterSet::start();
    let store = open(&set.url()).await.unwrap();
    let slot = set.slot_of("x");
    let held = [take(&store, "x", ms(3000)).await, take(&store, name_elsewhere(&set, slot), ms(3000)).await];
    set.master_of(slot).freeze();
    let answers = within(ms(1000), "all answers, within a third of the TTL", store.renew(&held)).await;
    assert_eq!(answers[0].as_ref().unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(matches!(answers[1], Ok(Renewal::Renewed { .. })), "{answers:?}");
}

/// With every node silent a crowd is told at once, not one after another.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_crowd_at_a_silent_cluster_waits_for_one_limit() {
    let set = ClusterSet::start();
    let url = format!("{}?timeout=300ms&connect_timeout=500ms", set.url());
    let store = open(&url).await.unwrap();
    take(&store, "x", TTL).await;
    set.nodes().iter().for_each(RedisServer::freeze);
    let crowd: Vec<_> = (0..100)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.claim(&claim(&format!("{number}"), TTL), Patience::Once).await })
        })
        .collect();
    for refused in crowd {
        let error = within(SOON, "every call ends", refused).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let set = ClusterSet::start();
    let holder = open(&set.url()).await.unwrap();
    take(&holder, "x", TTL).await;
    closing_reaches_a_waiter(async || open(&set.url()).await.unwrap() as Arc<dyn Store>).await;
}

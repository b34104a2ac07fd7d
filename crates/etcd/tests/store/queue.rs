//! Order, strays, and what a waiter finds when it is called.

use fencepost_core::{
    claim::{Claimed, Patience},
    clock::{BootClock, sleep},
    error::ErrorKind,
    store::Store,
};
use fencepost_servers::EtcdCluster;

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn strays_neither_block_nor_count() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    for stray in ["readme", "", "0123", "a/b"] {
        cluster.etcdctl(&["put", &format!("fencepost/locks/x/{stray}"), "somebody's"]);
    }
    let first = take(&store, "x", TTL).await;
    let (once, waiter) = (claim("x", TTL), claim("x", TTL));
    assert!(matches!(store.claim(&once, Patience::Once).await.unwrap(), Claimed::Busy(_)));
    let turn = queue(&store, &waiter).await;
    cluster.etcdctl(&["put", "fencepost/locks/x/later", "somebody's"]);
    let listed = store.inspect(None).await.unwrap();
    assert_eq!((listed.len(), listed[0].holders.len(), listed[0].waiters.len()), (1, 1, 1));
    release(&store, &first).await;
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    release(&store, &waiter).await;
    let queued = claim("x", TTL);
    assert!(matches!(store.claim(&queued, Patience::Queue).await.unwrap(), Claimed::Granted(_)));
    assert_eq!(keys(&cluster, "fencepost/locks/x/").len(), 6, "the strays stay");
}

/// The one that looked only at the key before its own would believe that it holds. Source: Jepsen on etcd's locks.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_waiter_whose_own_claim_is_gone_does_not_believe_in_its_turn() {
    let cluster = EtcdCluster::start(1);
    let (a, b, c) = (client(&cluster).await, client(&cluster).await, client(&cluster).await);
    let holder = take(&a, "x", TTL).await;
    let first = claim("x", TTL);
    let mut turn_b = queue(&b, &first).await;
    let second = claim("x", TTL);
    let turn_c = queue(&c, &second).await;
    sleep(&BootClock, ms(300)).await; // both watch
    let own = keys(&cluster, "fencepost/locks/x/").remove(1);
    cluster.etcdctl(&["del", &own]);
    release(&a, &holder).await;
    within(SOON, "the next one's turn", turn_c).await.unwrap().unwrap();
    assert!(tokio::time::timeout(ms(500), &mut turn_b).await.is_err(), "it has a new place, behind the holder");
    release(&c, &second).await;
    within(SOON, "its turn comes after that", turn_b).await.unwrap().unwrap();
}

/// Who looked only for the one before would take the lock from its holder when that one gives up.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_waiter_that_leaves_before_its_turn_hands_nothing_over() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    for last in [&a, &b] {
        let holder = take(&a, "x", TTL).await;
        let (leaves, waits) = (claim("x", TTL), claim("x", TTL));
        let first = queue(&b, &leaves).await;
        let mut turn = queue(last, &waits).await;
        first.abort();
        release(&b, &leaves).await;
        assert!(tokio::time::timeout(ms(500), &mut turn).await.is_err(), "the lock is held");
        release(&a, &holder).await;
        within(SOON, "the turn", turn).await.unwrap().unwrap();
        release(last, &waits).await;
    }
}

/// A claim that hangs on a lease which is not our session's is kept alive by somebody else, or by nobody.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_claim_on_another_lease_is_not_believed() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let holder = take(&a, "x", TTL).await;
    let waiter = claim("x", TTL);
    let turn = queue(&b, &waiter).await;
    let granted = cluster.etcdctl(&["lease", "grant", "600"]);
    let foreign = granted.split_whitespace().nth(1).unwrap().to_owned();
    let own = keys(&cluster, "fencepost/locks/x/").remove(1);
    let value = cluster.etcdctl(&["get", &own, "--print-value-only"]);
    cluster.etcdctl(&["put", &own, value.trim(), "--lease", &foreign]);
    release(&a, &holder).await;
    let refused = within(SOON, "an answer", turn).await.unwrap().expect_err("it must not be believed");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "a repeated claim helps: {refused}");
    // As the client does then: the same claim again takes it back onto our session, with the place it has.
    assert!(matches!(b.claim(&waiter, Patience::Queue).await.unwrap(), Claimed::Granted(_)));
    cluster.etcdctl(&["lease", "revoke", &foreign]);
    assert_eq!(keys(&cluster, "fencepost/locks/x/"), [own]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_a_newer_version_wrote_is_refused_and_left_alone() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let key = format!("fencepost/locks/x/{}", "0".repeat(40));
    cluster.etcdctl(&["put", &key, r#"{"v":2,"host":"h","pid":1,"user":"u"}"#]);
    for patience in [Patience::Once, Patience::Queue] {
        let error = store.claim(&claim("x", TTL), patience).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ForeignValue, "{error}");
        assert!(error.to_string().contains(&key), "it names the key: {error}");
    }
    assert_eq!(store.inspect(Some(&name("x"))).await.unwrap_err().kind(), ErrorKind::ForeignValue);
    assert_eq!(store.inspect(None).await.unwrap(), []);
    assert_eq!(keys(&cluster, "fencepost/locks/x/"), [key]);
}

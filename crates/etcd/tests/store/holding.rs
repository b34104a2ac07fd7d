//! Sessions: shared by many locks, lost at once, and open again.

use fencepost_core::{
    claim::{LossReason, Release, Renewal},
    clock::{BootClock, Clock, sleep},
    error::ErrorKind,
    store::Store,
};
use fencepost_servers::{EtcdCluster, Network, Weather};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn one_session_serves_all_locks_of_a_client_and_ttl() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    for number in 0..50 {
        take(&store, &format!("{number}"), TTL).await;
    }
    assert_eq!(sessions(&cluster).len(), 1);
    take(&store, "other", TTL * 2).await;
    assert_eq!(sessions(&cluster).len(), 2, "another TTL is another session");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_costs_two_commits_and_nothing_else() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let cycle = async || {
        let mine = take(&store, "x", TTL * 100).await;
        assert_eq!(release(&store, &mine).await, Release::Released);
    };
    cycle().await; // opens the session
    let commits = || cluster.metric(0, "etcd_server_proposals_committed_total").unwrap();
    let before = commits();
    for _ in 0..50 {
        cycle().await;
    }
    assert_eq!(commits() - before, 100.0);
}

/// etcd walks over each key that ever was below a prefix, until it is compacted: a key for each grant would make a busy lock
/// slower with every one.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_taken_again_and_again_uses_one_key() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let mut used = std::collections::HashSet::new();
    for _ in 0..20 {
        let mine = take(&store, "x", TTL).await;
        used.extend(keys(&cluster, "fencepost/locks/x/"));
        assert_eq!(release(&store, &mine).await, Release::Released);
    }
    assert_eq!(used.len(), 1, "{used:?}");
    // Two at once are two keys, and each is its owner's alone.
    let holder = take(&store, "x", TTL).await;
    let waiter = claim("x", TTL);
    let turn = queue(&store, &waiter).await;
    assert_eq!(release(&store, &holder).await, Release::Released);
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    let again = claim("x", TTL);
    let turn = queue(&store, &again).await;
    assert_eq!(release(&store, &holder).await, Release::HeldByOther, "its key is another claim's now");
    assert_eq!(keys(&cluster, "fencepost/locks/x/").len(), 2);
    release(&store, &waiter).await;
    within(SOON, "the turn", turn).await.unwrap().unwrap();
}

/// Whoever knows the owner value can give back, in a process of its own as well.
#[tokio::test(flavor = "multi_thread")]
async fn o3_another_client_gives_back_by_the_owner_value() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let mut losses = losses(&a);
    let held = take(&a, "x", TTL).await;
    assert_eq!(release(&b, &claim("x", TTL)).await, Release::HeldByOther, "with another owner value");
    assert_eq!(release(&b, &held).await, Release::Released);
    assert_eq!(release(&b, &held).await, Release::AlreadyExpired);
    let (owner, reason) = within(SOON, "the holder is told", losses.recv()).await.unwrap();
    assert_eq!((owner, reason), (*held.owner(), LossReason::Deleted));
}

/// A script that keeps its lock alive by itself, with one process for each renewal.
#[tokio::test(flavor = "multi_thread")]
async fn another_client_renews_by_the_owner_value() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let held = take(&a, "x", ms(2000)).await;
    let waiter = claim("x", TTL);
    let turn = queue(&b, &waiter).await;
    drop(a); // as a process that ends: nobody else keeps its session alive
    let until = BootClock.now().after(ms(5000));
    while BootClock.now() < until {
        let c = client(&cluster).await;
        let renewal = renew(&c, &held).await.unwrap();
        assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
        assert!(matches!(renew(&c, &waiter).await.unwrap(), Renewal::Lost(_)), "it only waits");
        sleep(&BootClock, ms(200)).await;
    }
    assert!(!turn.is_finished());
    within(SOON * 2, "nobody renews it any more", turn).await.unwrap().unwrap();
    assert!(matches!(renew(&*client(&cluster).await, &held).await.unwrap(), Renewal::Lost(LossReason::TakenOver)));
}

/// What was granted counts, not what was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_below_the_servers_least_shows_what_was_granted() {
    let cluster = EtcdCluster::start_with(1, &["--heartbeat-interval", "100", "--election-timeout", "1000"]);
    let store = client(&cluster).await;
    let mine = claim("x", ms(300));
    let granted = granted(&store, &mine).await;
    assert_eq!(granted.ttl, Some(ms(2000)), "half as much again as the election timeout, in whole seconds");
    let shown = store.inspect(Some(&name("x"))).await.unwrap()[0].holders[0].expires_in.unwrap();
    assert!(shown > ms(300) && shown <= ms(2000), "{shown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn l1_a_session_revoked_by_an_administrator_is_lost_to_a_thousand_holders() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let mut losses = losses(&store);
    let mut held = std::collections::HashSet::new();
    for number in 0..1000 {
        held.insert(take(&store, &format!("{number}"), TTL).await.holding.owner);
    }
    for session in sessions(&cluster) {
        cluster.etcdctl(&["lease", "revoke", &session]);
    }
    within(SOON * 2, "all are told", async {
        while !held.is_empty() {
            let (owner, reason) = losses.recv().await.unwrap();
            assert!(matches!(reason, LossReason::Deleted | LossReason::SessionExpired), "{reason:?}");
            held.remove(&owner);
        }
    })
    .await;
    // The client is as good as before, without being built anew.
    let again = within(SOON, "a new session", take(&store, "7", TTL)).await;
    assert!(matches!(renew(&store, &again).await.unwrap(), Renewal::Renewed { .. }));
}

/// A key that cannot be deleted would stay for as long as the session: the session goes instead, and all are told.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_that_is_never_confirmed_ends_the_session_and_tells_all_its_holders() {
    let cluster = EtcdCluster::start(1);
    for step in [
        "user add root:secret",
        "role add root",
        "user grant-role root root",
        "user add app:pass",
        "role add locks",
        "role grant-permission locks --prefix=true readwrite fencepost/",
        "user grant-role app locks",
        "auth enable",
    ] {
        cluster.etcdctl(&step.split(' ').collect::<Vec<_>>());
    }
    let store = open(&format!("etcd://app:pass@{}", cluster.address(0))).await.unwrap();
    let mut losses = losses(&store);
    let ttl = ms(3000);
    let (stuck, other) = (take(&store, "x", ttl).await, take(&store, "y", ttl).await);
    let root = ["--user", "root:secret"];
    let as_root = |step: &str| cluster.etcdctl(&root.into_iter().chain(step.split(' ')).collect::<Vec<_>>());
    as_root("role grant-permission locks --prefix=true read fencepost/");
    // The other is renewed all the time, as a client would.
    let renewing = tokio::spawn({
        let (store, other) = (store.clone(), other.clone());
        async move {
            loop {
                let _ = renew(&store, &other).await;
                sleep(&BootClock, ttl / 4).await;
            }
        }
    });
    let error = store.release(&stuck.holding).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
    let (owner, reason) = within(ttl * 2 + SOON * 2, "the other is told", losses.recv()).await.unwrap();
    assert_eq!((owner, reason), (other.holding.owner, LossReason::SessionExpired));
    renewing.abort();
    eventually(ttl + SOON, "the cluster frees both", async || {
        as_root("get --prefix fencepost/ --keys-only").is_empty()
    })
    .await;
}

/// A write to the key without its lease would leave the lock held for ever.
#[tokio::test(flavor = "multi_thread")]
async fn l4_a_holder_hears_of_a_write_to_its_key() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let mut losses = losses(&store);
    let mine = take(&store, "x", TTL).await;
    let key = keys(&cluster, "fencepost/locks/x/").remove(0);
    cluster.etcdctl(&["put", &key, "somebody else's"]);
    let lost = within(SOON, "it is told", losses.recv()).await.unwrap();
    assert_eq!(lost, (mine.holding.owner, LossReason::TakenOver));
    assert!(matches!(renew(&store, &mine).await.unwrap(), Renewal::Lost(LossReason::TakenOver)));
    assert_eq!(release(&store, &mine).await, Release::Released);
    assert_eq!(keys(&cluster, "fencepost/locks/"), Vec::<String>::new());
}

/// The stream of watches breaks, and what it would look back to is compacted away meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn l4_a_deletion_is_heard_after_a_broken_stream_and_a_compaction() {
    let cluster = EtcdCluster::start(1);
    let network = Network::before(cluster.address(0)).await.unwrap();
    let store = open(&format!("etcd://{}", network.address)).await.unwrap();
    let mut losses = losses(&store);
    let (deleted, kept) = (take(&store, "x", TTL).await, take(&store, "y", TTL).await);
    let waiting = queue(&store, &claim("y", TTL)).await;
    sleep(&BootClock, ms(200)).await; // the holders' watches have begun
    network.set(Weather::Cut);
    cluster.etcdctl(&["del", &keys(&cluster, "fencepost/locks/x/")[0]]);
    for _ in 0..20 {
        cluster.etcdctl(&["put", "noise", "x"]);
    }
    let status = cluster.etcdctl(&["endpoint", "status", "-w", "fields"]);
    let revision = status.lines().find_map(|line| line.strip_prefix("\"Revision\" : ")).unwrap().to_owned();
    cluster.etcdctl(&["compact", revision.trim()]);
    network.set(Weather::Fair);
    let lost = within(SOON * 2, "it is told", losses.recv()).await.unwrap();
    assert_eq!(lost, (deleted.holding.owner, LossReason::Deleted));
    assert!(matches!(renew(&store, &kept).await.unwrap(), Renewal::Renewed { .. }));
    assert_eq!(release(&store, &kept).await, Release::Released);
    within(SOON * 2, "the waiter has its turn", waiting).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_a_session_that_nothing_hangs_on() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let mine = take(&store, "x", TTL).await;
    release(&store, &mine).await;
    assert_eq!(sessions(&cluster).len(), 1);
    store.close().await;
    assert_eq!(sessions(&cluster).len(), 0);
    assert_eq!(store.release(&mine.holding).await.unwrap_err().kind(), ErrorKind::Closed);
}

/// The waiter may be anywhere in its asking when its store is closed.
#[tokio::test(flavor = "multi_thread")]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let cluster = EtcdCluster::start(1);
    let holder = client(&cluster).await;
    take(&holder, "x", TTL).await;
    for round in 0..60 {
        let store = client(&cluster).await;
        let turn = queue(&store, &claim("x", TTL)).await;
        sleep(&BootClock, Duration::from_micros(60 * round)).await;
        store.close().await;
        let error = within(SOON, "the waiter is told", turn).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

/// Members close a connection that asks for signs of life more often than they allow.
#[tokio::test(flavor = "multi_thread")]
async fn a_quiet_connection_lasts() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    take(&a, "x", TTL * 4).await;
    let turn = queue(&b, &claim("x", TTL * 4)).await;
    let to = format!(":{:04X}", cluster.address(0).port());
    let connections = || {
        let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let ours = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let ours = ours.filter(|fields| fields.get(2).is_some_and(|peer| peer.ends_with(&to)) && fields[3] == "01");
        ours.map(|fields| fields[1].to_owned()).collect::<std::collections::BTreeSet<_>>()
    };
    let before = connections();
    assert!(before.len() >= 2, "{before:?}");
    sleep(&BootClock, ms(16_000)).await;
    assert_eq!(connections(), before);
    turn.abort();
}

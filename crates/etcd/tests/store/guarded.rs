//! Writes of the user's own, on condition that the lock is held.

use std::{io::Write, process::Stdio};

use fencepost_core::{claim::Forced, store::Store};
use fencepost_etcd::EtcdGuard;
use fencepost_servers::EtcdCluster;

use super::*;

#[path = "../../examples/guarded_etcd.rs"]
#[allow(dead_code, unreachable_pub)] // its `main`
mod example;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_does_what_it_says() {
    let cluster = EtcdCluster::start(1);
    let told = example::story(&cluster.url()).await.unwrap();
    assert_eq!(told, ["while it is held: true", "after it was given back: false", "and once more: None"]);
    assert_eq!(cluster.etcdctl(&["get", "app/stock/4711", "--print-value-only"]).trim(), "17");
}

/// Whether the cluster took a write on this condition.
fn written(cluster: &EtcdCluster, guard: &EtcdGuard) -> bool {
    let mut txn = cluster.etcdctl_command(&["txn"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    txn.stdin.take().unwrap().write_all(format!("{guard}\n\nput data x\n\n\n").as_bytes()).unwrap();
    String::from_utf8(txn.wait_with_output().unwrap().stdout).unwrap().starts_with("SUCCESS")
}

fn guard(store: &EtcdStore, claim: &Claim) -> Option<EtcdGuard> {
    store.guard(&claim.holding).map(|guard| *guard.downcast().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_write_takes_effect_only_while_the_lock_is_held() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let held = claim("a \"quoted\" \\name", TTL);
    let grant = granted(&store, &held).await;
    let first = guard(&store, &held).unwrap();
    assert_eq!(u64::try_from(first.create_revision()).ok(), grant.fence.map(|fence| fence.get()));
    assert!(written(&cluster, &first));
    renew(&store, &held).await.unwrap();
    assert!(written(&cluster, &first), "a renewal changes nothing about it");
    assert!(matches!(store.force(held.name(), None).await.unwrap(), Forced::Broken(_)));
    assert!(!written(&cluster, &first), "broken by force");
    release(&store, &held).await;
    assert_eq!(guard(&store, &held), None);

    let (next, waiter) = (take(&store, "x", TTL).await, claim("x", TTL));
    let turn = queue(&store, &waiter).await;
    assert_eq!(guard(&store, &waiter), None, "a waiter holds nothing");
    let second = guard(&store, &next).unwrap();
    release(&store, &next).await;
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    assert!(!written(&cluster, &second), "another holds it");
    assert!(written(&cluster, &guard(&store, &waiter).unwrap()));
}

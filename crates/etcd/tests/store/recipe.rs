//! Beside `etcdctl lock`, the real one.

use std::{
    io::{BufRead, BufReader},
    process::{Child, Stdio},
};

use fencepost_core::{
    claim::{Claimed, Patience},
    store::Store,
};
use fencepost_servers::EtcdCluster;
use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// `etcdctl lock NAME`, which prints its key once it holds and gives back at SIGTERM.
struct Theirs {
    process: Child,
    held: tokio::sync::oneshot::Receiver<String>,
}

impl Theirs {
    fn lock(cluster: &EtcdCluster, lock: &str) -> Self {
        let mut command = cluster.etcdctl_command(&["lock", "--ttl", "5", lock]);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the package etcd-client must be installed");
        let output = process.stdout.take().unwrap();
        let (hold, held) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut lines = BufReader::new(output).lines().map_while(Result::ok);
            if let Some(key) = lines.next() {
                let _ = hold.send(key);
            }
            lines.for_each(drop); // a pipe that nobody reads would end it by a signal
        });
        Self { process, held }
    }

    async fn holds(&mut self) -> String {
        within(SOON, "etcdctl holds", &mut self.held).await.unwrap()
    }

    fn is_waiting(&mut self) -> bool {
        self.held.try_recv().is_err()
    }

    fn give_back(mut self) {
        kill_process(Pid::from_child(&self.process), Signal::TERM).unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Theirs {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn etcdctl_lock_and_fencepost_exclude_each_other_and_share_one_queue() {
    let cluster = EtcdCluster::start(1);
    let store = open(&format!("{}?recipe=etcd", cluster.url())).await.unwrap();
    let lock = "fencepost/nightly/report";

    // They hold, we wait; they wait behind us; we wait behind them.
    let mut theirs = Theirs::lock(&cluster, lock);
    let key = theirs.holds().await;
    assert!(key.starts_with("fencepost/nightly/report/"), "{key}");
    let once = claim("nightly/report", TTL);
    let busy = store.claim(&once, Patience::Once).await.unwrap();
    assert!(matches!(busy, Claimed::Busy(_)), "{busy:?}");
    let ours = claim("nightly/report", TTL);
    let turn = queue(&store, &ours).await;
    let mut next = Theirs::lock(&cluster, lock);
    eventually(SOON, "they wait", async || keys(&cluster, lock).len() == 3).await;
    assert!(!turn.is_finished() && next.is_waiting());
    let listed = store.inspect(None).await.unwrap();
    assert_eq!((listed[0].name.as_str(), listed[0].waiters.len()), ("nightly/report", 2));
    assert_eq!(listed[0].holders[0].owner, None, "who stands behind theirs is not known");

    theirs.give_back();
    let grant = within(SOON, "our turn", turn).await.unwrap().unwrap();
    assert!(grant.fence.is_some());
    assert!(next.is_waiting(), "we hold it");
    let last = claim("nightly/report", TTL);
    let turn = queue(&store, &last).await;
    release(&store, &ours).await;
    next.holds().await;
    assert!(!turn.is_finished(), "they hold it");
    next.give_back();
    within(SOON, "our turn", turn).await.unwrap().unwrap();
    release(&store, &last).await;
    assert_eq!(keys(&cluster, "").len(), 0);
}

/// Their holder dies without a word, and ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_holder_of_either_kind_is_passed_over() {
    let cluster = EtcdCluster::start(1);
    let store = open(&format!("{}?recipe=etcd", cluster.url())).await.unwrap();
    let mut theirs = Theirs::lock(&cluster, "fencepost/x");
    theirs.holds().await;
    let ours = claim("x", ms(2000));
    let turn = queue(&store, &ours).await;
    drop(theirs);
    within(SOON * 2, "their lease ends", turn).await.unwrap().unwrap();
    let mut theirs = Theirs::lock(&cluster, "fencepost/x");
    eventually(SOON, "they wait", async || keys(&cluster, "fencepost/x/").len() == 2).await;
    drop(store); // as a process that ends: nobody keeps its session alive
    theirs.holds().await;
}

/// What only looks like a lock of theirs, and names that lie below each other.
#[tokio::test(flavor = "multi_thread")]
async fn names_below_a_name_and_strays_do_not_block_us() {
    let cluster = EtcdCluster::start(1);
    let store = open(&format!("{}?recipe=etcd", cluster.url())).await.unwrap();
    cluster.etcdctl(&["put", "fencepost/a/readme", "somebody's"]);
    take(&store, "a/b", TTL).await;
    take(&store, "a", TTL).await;
    let listed: Vec<_> = store.inspect(None).await.unwrap().into_iter().map(|lock| lock.name.to_string()).collect();
    assert_eq!(listed, ["a", "a/b"]);
}

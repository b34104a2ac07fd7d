//! Readers, permits and several locks at once: where they lie, what they cost, and who wakes. The rules that hold for them on
//! every store are in the conformance suite.

use fencepost_core::{
    claim::{Claimed, Mode, Patience, Want},
    error::ErrorKind,
    store::Store,
};
use fencepost_servers::{EtcdCluster, Network, Weather};
use futures_util::future::join_all;

use super::*;

fn claim_as(lock: &str, mode: Mode) -> Arc<Claim> {
    claim_all(&[lock], mode)
}

fn claim_all(locks: &[&str], mode: Mode) -> Arc<Claim> {
    let wants = locks.iter().map(|lock| Want { name: name(lock), mode }).collect();
    let holding = Holding::several(wants, Owner::random().unwrap()).unwrap();
    Arc::new(Claim { holding, ..(*claim("unused", TTL)).clone() })
}

fn permits(count: u32, of: u32) -> Arc<Claim> {
    claim_as("s", Mode::Permits { count, of })
}

/// Transactions and reads that the server has answered.
fn requests(cluster: &EtcdCluster) -> f64 {
    let count = |method: &str| {
        let name = format!(
            "grpc_server_handled_total{{grpc_code=\"OK\",grpc_method=\"{method}\",grpc_service=\"etcdserverpb.KV\",grpc_type=\"unary\"}}"
        );
        cluster.metric(0, &name).unwrap_or_default()
    };
    ["Txn", "Range", "DeleteRange"].into_iter().map(count).sum()
}

/// What one step costs beyond the keep-alives.
async fn cost<T>(cluster: &EtcdCluster, step: impl Future<Output = T>) -> f64 {
    let before = requests(cluster);
    step.await;
    requests(cluster) - before
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_claim_costs() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let warm_up = take(&store, "warm-up", TTL).await;
    release(&store, &warm_up).await;
    let alone = claim("x", TTL);
    assert_eq!(cost(&cluster, granted(&store, &alone)).await, 1.0, "a lock");
    assert_eq!(cost(&cluster, release(&store, &alone)).await, 1.0, "giving it back");
    let other = client(&cluster).await;
    let held = take(&other, "y", TTL).await;
    let waiters = [claim("y", TTL), claim("y", TTL)];
    for (waiter, requests) in waiters.iter().zip([2.0, 1.0]) {
        assert_eq!(cost(&cluster, store.claim(waiter, Patience::Queue)).await, requests, "a place in the queue");
    }
    for waiter in &waiters {
        release(&store, waiter).await;
    }
    release(&other, &held).await;
    let readers = [claim_as("x", Mode::Shared), claim_as("x", Mode::Shared)];
    for reader in &readers {
        assert_eq!(cost(&cluster, granted(&store, reader)).await, 1.0, "a reader, alone and beside another");
    }
    assert_eq!(cost(&cluster, release(&store, &readers[0])).await, 1.0);
    let (first, second) = (permits(1, 3), permits(2, 3));
    assert_eq!(cost(&cluster, granted(&store, &first)).await, 1.0, "the first permit");
    assert_eq!(cost(&cluster, granted(&store, &second)).await, 2.0, "permits beside others");
    assert_eq!(cost(&cluster, release(&store, &second)).await, 1.0);
    let several = claim_all(&["a", "b", "c"], Mode::Exclusive);
    assert_eq!(cost(&cluster, granted(&store, &several)).await, 1.0, "three locks");
    assert_eq!(cost(&cluster, release(&store, &several)).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_has_its_folder() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 2, of: 3 }] {
        let claim = claim_as("x", mode);
        granted(&store, &claim).await;
        let key = keys(&cluster, "fencepost/locks/x/").pop().unwrap();
        let folder = match mode {
            Mode::Exclusive => "fencepost/locks/x/",
            Mode::Shared => "fencepost/locks/x/shared/",
            Mode::Permits { .. } => "fencepost/locks/x/permits/",
        };
        assert_eq!(key.len(), folder.len() + 40, "{key}");
        assert!(key.starts_with(folder), "{key}");
        let listed = store.inspect(Some(&name("x"))).await.unwrap();
        assert_eq!(listed[0].holders[0].mode, mode);
        release(&store, &claim).await;
    }
    assert!(keys(&cluster, "fencepost/locks/").is_empty());
}

/// One permit comes back, and of forty that wait one has it: the others are not told.
#[tokio::test(flavor = "multi_thread")]
async fn w2_a_permit_that_comes_back_wakes_the_next_one() {
    let cluster = EtcdCluster::start(1);
    let (holder, crowd) = (client(&cluster).await, client(&cluster).await);
    let held: Vec<_> = (0..3).map(|_| permits(1, 3)).collect();
    for claim in &held {
        granted(&holder, claim).await;
    }
    let waiting: Vec<_> = (0..40).map(|_| permits(1, 3)).collect();
    let mut turns = Vec::new();
    for claim in &waiting {
        turns.push(queue(&crowd, claim).await);
    }
    sleep(&BootClock, ms(500)).await; // all of them watch
    let before = requests(&cluster);
    release(&holder, &held[1]).await;
    let grant = within(SOON, "the next one has it", turns.remove(0)).await.unwrap().unwrap();
    assert_eq!(*grant.slots, [1], "the slot that came back");
    sleep(&BootClock, ms(500)).await; // and whoever else was woken has asked by now
    let asked = requests(&cluster) - before;
    assert!(asked <= 8.0, "{asked} requests for one permit");
    assert!(turns.iter().all(|turn| !turn.is_finished()));
    turns.iter().for_each(JoinHandle::abort);
}

/// A writer goes, and the readers up to the next writer come in at once; those behind it are not told.
#[tokio::test(flavor = "multi_thread")]
async fn w2_a_writer_that_goes_wakes_the_readers_behind_it_and_no_others() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let writer = claim("x", TTL);
    let fence = granted(&a, &writer).await.fence;
    let (first, next, later): (Vec<_>, _, Vec<_>) = (
        (0..10).map(|_| claim_as("x", Mode::Shared)).collect(),
        claim("x", TTL),
        (0..40).map(|_| claim_as("x", Mode::Shared)).collect(),
    );
    let mut turns = Vec::new();
    for claim in first.iter().chain([&next]).chain(&later) {
        turns.push(queue(&b, claim).await);
    }
    sleep(&BootClock, ms(500)).await; // all of them watch
    let before = requests(&cluster);
    release(&a, &writer).await;
    let others = turns.split_off(first.len());
    for grant in within(SOON, "the readers come in", join_all(turns)).await {
        assert_eq!(grant.unwrap().unwrap().fence, fence, "the last writer's fence");
    }
    sleep(&BootClock, ms(500)).await;
    let asked = requests(&cluster) - before;
    assert!(asked <= 2.0 * 10.0 + 4.0, "{asked} requests for ten readers");
    assert!(others.iter().all(|turn| !turn.is_finished()));
    others.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_into_one_transaction_is_left_to_the_client() {
    let cluster = EtcdCluster::start(1);
    let store = client(&cluster).await;
    let names: Vec<_> = (0..=100).map(|number| format!("x{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let refused = store.claim(&claim_all(&names, Mode::Exclusive), Patience::Once).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    let most = claim_all(&names[1..], Mode::Exclusive);
    granted(&store, &most).await;
    assert!(matches!(renew(&store, &most).await, Ok(Renewal::Renewed { .. })));
    assert_eq!(release(&store, &most).await, Release::Released);
    cluster.etcdctl(&["put", "fencepost/locks/x7/readme", "somebody's"]);
    let refused = store.claim(&claim_all(&["x7", "x8"], Mode::Exclusive), Patience::Once).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "a stray neither blocks nor counts: {refused}");
    assert_eq!(keys(&cluster, "fencepost/locks/"), ["fencepost/locks/x7/readme"]);
}

/// etcd's own clients know none of it.
#[tokio::test(flavor = "multi_thread")]
async fn with_the_layout_of_etcds_own_clients_there_are_only_locks_for_one() {
    let cluster = EtcdCluster::start(1);
    let store = open(&format!("{}?recipe=etcd", cluster.url())).await.unwrap();
    let facts = store.capabilities();
    assert_eq!((facts.shared, facts.permits, facts.several), (false, false, false));
    for claim in [claim_as("x", Mode::Shared), permits(1, 3), claim_all(&["a", "b"], Mode::Exclusive)] {
        let refused = store.claim(&claim, Patience::Queue).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
    assert!(keys(&cluster, "").is_empty());
}

/// A change of the limit reaches claims that take more than one transaction, holders and waiters.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_changed_for_all_who_hold_and_wait() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let claims: Vec<_> = (0..130).map(|_| permits(1, 2)).collect();
    let mut turns = Vec::new();
    for (number, claim) in claims.iter().enumerate() {
        match a.claim(claim, Patience::Queue).await.unwrap() {
            Claimed::Granted(_) => assert!(number < 2),
            Claimed::Queued(_) => {
                let (store, claim) = (a.clone(), claim.clone());
                turns.push(tokio::spawn(async move { store.turn(&claim).await }));
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(b.resize(&name("s"), 70).await.unwrap(), Some(2));
    let mut slots = std::collections::BTreeSet::from([0, 1]);
    for turn in turns.drain(..68) {
        let grant = within(SOON * 4, "there is room now", turn).await.unwrap().unwrap();
        assert!(grant.slots.iter().all(|slot| slots.insert(*slot)), "{grant:?}");
    }
    assert_eq!(slots, (0..70).collect());
    let listed = b.inspect(Some(&name("s"))).await.unwrap();
    assert_eq!((listed[0].holders.len(), listed[0].waiters.len()), (70, 60));
    let limits = listed[0].holders.iter().map(|holder| holder.mode).chain(listed[0].waiters.iter().map(|it| it.mode));
    assert!(limits.into_iter().all(|mode| mode == Mode::Permits { count: 1, of: 70 }));
    turns.iter().for_each(JoinHandle::abort);
}

/// Those who come and go do not keep a limit from being changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_changed_while_claims_come_and_go() {
    let cluster = EtcdCluster::start(1);
    let network = Network::before(cluster.address(0)).await.unwrap();
    let (a, b) = (client(&cluster).await, open(&format!("etcd://{}", network.address)).await.unwrap());
    network.set(Weather::SlowReplies(ms(200))); // what was read is no longer so when it is answered
    granted(&a, &permits(1, 1)).await;
    let crowd = (0..50).map(|_| {
        let store = a.clone();
        tokio::spawn(async move {
            loop {
                let claim = permits(1, 1);
                let _ = store.claim(&claim, Patience::Queue).await; // refused from some time on
                let _ = store.release(&claim.holding).await;
            }
        })
    });
    let crowd: Vec<_> = crowd.collect();
    sleep(&BootClock, ms(300)).await; // they are in full swing
    assert_eq!(within(SOON * 3, "the limit is changed", b.resize(&name("s"), 2)).await.unwrap(), Some(1));
    crowd.iter().for_each(JoinHandle::abort);
}

fn refused(claimed: Result<Claimed, Error>, what: &str) {
    let error = claimed.expect_err(what);
    assert_eq!(error.kind(), ErrorKind::Mismatch, "{what}: {error}");
}

/// Strays are older than all claims, and more of them than a claim reads at first.
#[tokio::test(flavor = "multi_thread")]
async fn strays_hide_nobody() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    for stray in ["s/permits/a", "s/permits/b", "lock/readme", "semaphore/readme", "readers/readme"] {
        cluster.etcdctl(&["put", &format!("fencepost/locks/{stray}"), "somebody's"]);
    }
    granted(&a, &permits(1, 1)).await;
    for patience in [Patience::Once, Patience::Queue] {
        let second = permits(1, 1);
        let claimed = b.claim(&second, patience).await.unwrap();
        assert!(matches!(claimed, Claimed::Busy(_) | Claimed::Queued(_)), "{claimed:?}");
        release(&b, &second).await;
    }
    refused(b.claim(&permits(1, 2), Patience::Once).await, "another limit");
    let (one, reader, writer) = (Mode::Permits { count: 1, of: 3 }, Mode::Shared, Mode::Exclusive);
    for (lock, held, others) in
        [("lock", writer, vec![one]), ("semaphore", one, vec![reader, writer]), ("readers", reader, vec![one])]
    {
        granted(&a, &claim_as(lock, held)).await;
        for mode in others {
            for patience in [Patience::Once, Patience::Queue] {
                refused(b.claim(&claim_as(lock, mode), patience).await, &format!("{mode:?} beside {held:?}"));
            }
        }
        assert_eq!(keys(&cluster, &format!("fencepost/locks/{lock}/")).len(), 2, "the stray and who holds");
    }
}

/// A claim that does not fit is not believed by who made it; nobody else may come in behind it either, since who was
/// before both may go.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_comes_in_behind_a_claim_of_the_other_family() {
    let cluster = EtcdCluster::start(1);
    let (a, b) = (client(&cluster).await, client(&cluster).await);
    let (one, two, reader) = (Mode::Permits { count: 1, of: 2 }, Mode::Permits { count: 2, of: 2 }, Mode::Shared);
    // What a client leaves that is refused, and dies before it has removed its claim.
    let leave_dead = async |lock: &str, mode: Mode| {
        let elsewhere = claim_as("elsewhere", mode);
        granted(&b, &elsewhere).await;
        let key = keys(&cluster, "fencepost/locks/elsewhere/").pop().unwrap();
        let value = cluster.etcdctl(&["get", &key, "--print-value-only"]);
        cluster.etcdctl(&["put", &key.replace("elsewhere", lock), value.trim()]);
        release(&b, &elsewhere).await;
    };
    for (lock, first, dead, late) in [
        ("room", one, Mode::Exclusive, one),
        ("full", two, Mode::Exclusive, one),
        ("beside readers", two, reader, one),
        ("readers", reader, one, reader),
    ] {
        let holder = claim_as(lock, first);
        granted(&a, &holder).await;
        leave_dead(lock, dead).await;
        for patience in [Patience::Queue, Patience::Once] {
            refused(b.claim(&claim_as(lock, late), patience).await, lock);
        }
        assert_eq!(release(&a, &holder).await, Release::Released);
        assert_eq!(keys(&cluster, &format!("fencepost/locks/{lock}/")).len(), 1, "{lock}: nothing is left behind");
    }
}

/// A claim that does not fit is not placed at all, so that it cannot refuse, on its way out, whom it does not concern.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_refused_is_met_by_nobody() {
    let cluster = EtcdCluster::start(1);
    let network = Network::before(cluster.address(0)).await.unwrap();
    let (a, mistaken) = (client(&cluster).await, open(&format!("etcd://{}", network.address)).await.unwrap());
    let warm_up = take(&mistaken, "warm-up", TTL).await;
    release(&mistaken, &warm_up).await;
    let (permit, reader) = (Mode::Permits { count: 1, of: 2 }, Mode::Shared);
    for (wrongly, rightly) in [(Mode::Exclusive, permit), (reader, permit), (permit, reader)] {
        let holder = claim_as("x", rightly);
        granted(&a, &holder).await;
        network.set(Weather::SlowReplies(ms(400)));
        let wrong = claim_as("x", wrongly);
        let users = async {
            sleep(&BootClock, ms(200)).await; // its request has been carried out
            for patience in [Patience::Once, Patience::Queue] {
                let next = claim_as("x", rightly);
                let claimed = a.claim(&next, patience).await;
                assert!(matches!(claimed, Ok(Claimed::Granted(_))), "{wrongly:?} among {rightly:?}: {claimed:?}");
                release(&a, &next).await;
            }
        };
        let (answer, ()) = tokio::join!(mistaken.claim(&wrong, Patience::Queue), users);
        refused(answer, "it does not fit");
        network.set(Weather::Fair);
        assert_eq!(release(&a, &holder).await, Release::Released);
        assert!(keys(&cluster, "fencepost/locks/x/").is_empty(), "nothing is left behind");
    }
}

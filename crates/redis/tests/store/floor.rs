//! What taking and giving back costs beside the bare commands. Run it alone and optimised:
//! `cargo test --release -p fencepost-redis --test store floor -- --ignored --nocapture`

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimed, Holding, Patience, Release, Renewal},
    clock::{BootClock, Clock},
    owner::Owner,
    store::Store,
};
use fencepost_redis::RedisStore;
use fencepost_servers::{ClusterSet, RedisServer, SentinelSet};
use redis::aio::MultiplexedConnection;

use super::{claim, client, cluster, queue, release, sentinel, take};

const ROUNDS: usize = 20;
const IN_A_ROUND: usize = 500;
const TTL: Duration = Duration::from_secs(30);

/// The textbook's release.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

#[derive(Clone)]
struct Floor {
    connection: MultiplexedConnection,
    script: redis::Script,
}

impl Floor {
    async fn take_and_release(&mut self, key: &str) {
        let owner = Owner::random().unwrap().to_string();
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&owner).arg("NX").arg("PX").arg(30_000);
        let () = set.query_async(&mut self.connection).await.unwrap();
        let gone: u32 = self.script.key(key).arg(&owner).invoke_async(&mut self.connection).await.unwrap();
        assert_eq!(gone, 1);
    }
}

async fn timed(work: impl Future<Output = ()>) -> Duration {
    let begun = BootClock.now();
    work.await;
    BootClock.now().since(begun)
}

async fn ours(store: &RedisStore, lock: &str, times: usize) {
    let first = claim(lock, TTL); // a client makes the claimant's particulars once
    for _ in 0..times {
        let holding = Holding::exclusive(first.name().clone(), Owner::random().unwrap());
        let next = Claim { holding, ..(*first).clone() };
        let claimed = store.claim(&next, Patience::Once).await.unwrap();
        assert!(matches!(claimed, Claimed::Granted(_)));
        assert_eq!(store.release(&next.holding).await.unwrap(), Release::Released);
    }
}

async fn bare(mut floor: Floor, key: &str, times: usize) {
    for _ in 0..times {
        floor.take_and_release(key).await;
    }
}

/// The median of the ratios of neighbouring rounds: what else the machine does weighs on both sides.
fn median_ratio(mut ratios: Vec<f64>) -> f64 {
    ratios.sort_by(f64::total_cmp);
    ratios[ratios.len() / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for an optimised build on a quiet machine"]
async fn free_locks_cost_little_more_than_the_bare_commands() {
    let server = RedisServer::start_with(&["--appendonly", "no"]);
    let store = client(&server).await;
    let connection = redis::Client::open(server.url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let floor = Floor { connection, script: redis::Script::new(COMPARE_AND_DELETE) };

    let mut alone = Vec::new();
    for _ in 0..ROUNDS {
        let below = timed(bare(floor.clone(), "bare", IN_A_ROUND)).await;
        let with = timed(ours(&store, "x", IN_A_ROUND)).await;
        println!("one task: floor {:?}, ours {:?}", below / IN_A_ROUND as u32, with / IN_A_ROUND as u32);
        alone.push(with.as_secs_f64() / below.as_secs_f64());
    }
    let mut crowd = Vec::new();
    for _ in 0..ROUNDS {
        let below = timed(all((0..64).map(|i| {
            let floor = floor.clone();
            async move { bare(floor, &format!("bare{i}"), IN_A_ROUND / 10).await }
        })));
        let below = below.await;
        let with = timed(all((0..64).map(|i| {
            let store: Arc<RedisStore> = store.clone();
            async move { ours(&store, &format!("x{i}"), IN_A_ROUND / 10).await }
        })));
        crowd.push(below.as_secs_f64() / with.await.as_secs_f64());
    }
    let (alone, crowd) = (median_ratio(alone), median_ratio(crowd));
    println!("one task: {alone:.3} of the floor's time; 64 tasks: {crowd:.3} of the floor's throughput");
    assert!(alone <= 1.10 && crowd >= 0.95, "the goals are 1.10 and 0.95");
}

/// The same store three times, in turns. What differs is our way to the master, and the replicas' work on the same
/// machine.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, for an optimised build on a quiet machine"]
async fn a_followed_master_costs_what_a_single_server_does() {
    let (single, set, cluster) = (RedisServer::start(), SentinelSet::start(), ClusterSet::start());
    let stores = [
        client(&single).await,
        sentinel::open(&set.url()).await.unwrap(),
        cluster::open(&cluster.url()).await.unwrap(),
    ];
    let (mut alone, mut crowd, mut handed) = ([vec![], vec![]], [vec![], vec![]], [vec![], vec![]]);
    for _ in 0..ROUNDS {
        let (mut one, mut many, mut turns) = (Vec::new(), Vec::new(), Vec::new());
        for store in &stores {
            one.push(timed(ours(store, "x", IN_A_ROUND)).await.as_secs_f64());
            let tasks = (0..64).map(|i| {
                let store = store.clone();
                async move { ours(&store, &format!("x{i}"), IN_A_ROUND / 10).await }
            });
            many.push(timed(all(tasks)).await.as_secs_f64());
            turns.push(timed(hand_over(store, IN_A_ROUND / 10)).await.as_secs_f64());
        }
        for followed in 0..2 {
            alone[followed].push(one[followed + 1] / one[0]);
            crowd[followed].push(many[0] / many[followed + 1]);
            handed[followed].push(turns[followed + 1] / turns[0]);
        }
    }
    for (followed, what) in ["sentinels", "a cluster"].into_iter().enumerate() {
        let [alone, crowd, handed] =
            [&alone, &crowd, &handed].map(|ratios: &[Vec<f64>; 2]| median_ratio(ratios[followed].clone()));
        println!(
            "{what}: one task {alone:.3} of a single server's time, 64 tasks {crowd:.3} of its throughput, a hand-over {handed:.3} of its time"
        );
    }
    let mut held = Vec::new();
    for number in 0..10_000 {
        let claim = claim(&format!("{number}"), TTL);
        for store in &stores {
            assert!(matches!(store.claim(&claim, Patience::Once).await.unwrap(), Claimed::Granted(_)));
        }
        held.push(claim);
    }
    for (store, what) in stores.iter().zip(["a single server", "sentinels", "a cluster"]) {
        let renewing = async {
            for answer in store.renew(&held).await {
                assert!(matches!(answer, Ok(Renewal::Renewed { .. })));
            }
        };
        println!("{what}: 10,000 leases renewed in {:?}", timed(renewing).await);
    }
}

async fn hand_over(store: &Arc<RedisStore>, times: usize) {
    let mut mine = take(store, "y", TTL).await;
    for _ in 0..times {
        let next = claim("y", TTL);
        let turn = queue(store, &next).await;
        assert_eq!(release(store, &mine).await, Release::Released);
        turn.await.unwrap().unwrap();
        mine = next;
    }
    release(store, &mine).await;
}

async fn all<F: Future<Output = ()> + Send + 'static>(tasks: impl Iterator<Item = F>) {
    let mut set: tokio::task::JoinSet<()> = tasks.collect();
    while let Some(done) = set.join_next().await {
        done.unwrap();
    }
}

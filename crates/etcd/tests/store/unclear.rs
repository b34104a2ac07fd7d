//! C2: what was sent and not answered may have been done, and is never said to have been left undone.

use fencepost_core::{
    claim::{Claimed, Mode, Patience, Want},
    error::Applied,
    store::Store,
};
use fencepost_servers::{EtcdCluster, Network, Weather};

use super::*;

/// A client whose connection can be broken, and one that looks on.
struct Broken {
    _cluster: EtcdCluster,
    network: Network,
    ours: Arc<EtcdStore>,
    looks_on: Arc<EtcdStore>,
}

impl Broken {
    async fn start() -> Self {
        let cluster = EtcdCluster::start(1);
        let network = Network::before(cluster.address(0)).await.unwrap();
        let ours = open(&format!("etcd://{}?timeout=10s", network.address)).await.unwrap();
        let warm_up = take(&ours, "warm-up", TTL).await;
        release(&ours, &warm_up).await;
        let looks_on = client(&cluster).await;
        Self { _cluster: cluster, network, ours, looks_on }
    }

    /// The request is carried out, and its connection breaks before the answer.
    async fn unanswered<T>(
        &self,
        what: &str,
        work: impl Future<Output = Result<T, Error>>,
        done: impl AsyncFnMut() -> bool,
    ) {
        self.network.set(Weather::LostReplies);
        let breaks = async {
            eventually(SOON, what, done).await;
            self.network.set(Weather::Cut);
        };
        let (outcome, ()) = within(SOON * 4, what, async { tokio::join!(work, breaks) }).await;
        let Err(error) = outcome else { panic!("{what}: there was no answer") };
        assert_eq!(error.applied(), Applied::Unknown, "{what}: {error}");
        self.network.set(Weather::Fair);
    }

    /// How many hold and wait.
    async fn on(&self, lock: &str) -> (usize, usize) {
        let listed = self.looks_on.inspect(Some(&name(lock))).await.unwrap();
        listed.first().map_or((0, 0), |state| (state.holders.len(), state.waiters.len()))
    }

    async fn mode(&self, lock: &str) -> Option<Mode> {
        Some(self.looks_on.inspect(Some(&name(lock))).await.unwrap().first()?.holders.first()?.mode)
    }
}

fn claim_as(lock: &str, mode: Mode) -> Arc<Claim> {
    let holding = Holding::one(Want { name: name(lock), mode }, Owner::random().unwrap());
    Arc::new(Claim { holding, ..(*claim("unused", TTL)).clone() })
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_claim_whose_connection_breaks_is_of_unknown_outcome() {
    let broken = Broken::start().await;
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 1, of: 2 }] {
        for patience in [Patience::Once, Patience::Queue] {
            let claim = claim_as("x", mode);
            let done = async || broken.on("x").await == (1, 0);
            broken.unanswered(&format!("{mode:?}, {patience:?}"), broken.ours.claim(&claim, patience), done).await;
            // As the client does: the same claim again answers as the first one did, or it is given back.
            let again = within(SOON * 2, "an answer", async {
                loop {
                    if let Ok(claimed) = broken.ours.claim(&claim, patience).await {
                        return claimed;
                    }
                }
            });
            assert!(matches!(again.await, Claimed::Granted(_)));
            assert_eq!(release(&broken.ours, &claim).await, Release::Released);
            assert_eq!(broken.on("x").await, (0, 0));
        }
    }
    let (holder, waiter) = (take(&broken.looks_on, "x", TTL).await, claim("x", TTL));
    let done = async || broken.on("x").await == (1, 1);
    broken.unanswered("a place in the queue", broken.ours.claim(&waiter, Patience::Queue), done).await;
    within(SOON * 2, "it is given back", async { while broken.ours.release(&waiter.holding).await.is_err() {} }).await;
    assert_eq!(broken.on("x").await, (1, 0));
    release(&broken.looks_on, &holder).await;
}

/// That nothing listens there any more is known not to have been carried out, and says nothing of the try before.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_claim_whose_member_cannot_be_reached_again_is_of_unknown_outcome() {
    let Broken { _cluster, network, ours, looks_on } = Broken::start().await;
    let claim = claim("x", TTL);
    network.set(Weather::LostReplies);
    let ends = async {
        eventually(SOON, "it is carried out", async || !looks_on.inspect(Some(&name("x"))).await.unwrap().is_empty())
            .await;
        drop(network);
    };
    let (outcome, ()) =
        within(SOON * 4, "an answer", async { tokio::join!(ours.claim(&claim, Patience::Once), ends) }).await;
    assert_eq!(outcome.unwrap_err().applied(), Applied::Unknown);
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_release_whose_connection_breaks_is_of_unknown_outcome() {
    let broken = Broken::start().await;
    let held = take(&broken.ours, "x", TTL).await;
    let done = async || broken.on("x").await == (0, 0);
    broken.unanswered("a release", broken.ours.release(&held.holding), done).await;
    let again = within(SOON * 2, "an answer", async {
        loop {
            if let Ok(answer) = broken.ours.release(&held.holding).await {
                return answer;
            }
        }
    });
    assert!(matches!(again.await, Release::AlreadyExpired | Release::Released));
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_downgrade_whose_connection_breaks_is_of_unknown_outcome() {
    let broken = Broken::start().await;
    let writer = take(&broken.ours, "x", TTL).await;
    let done = async || broken.mode("x").await == Some(Mode::Shared);
    broken.unanswered("a downgrade", broken.ours.downgrade(&writer), done).await;
}

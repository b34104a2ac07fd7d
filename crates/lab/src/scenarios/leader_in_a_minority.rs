//! The old leader lives on, cut off from the others, together with the holder.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::{ServerFault, Side},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LeaderInAMinority;

impl Scenario for LeaderInAMinority {
    fn about(&self) -> About {
        About {
            name: "leader-in-a-minority",
            title: "The old leader lives on in a minority",
            why: "A network splits, and the holder is on the side of the old leader. Whoever can still renew there will not know that \
                  the others have gone on.",
            steps: &[
                "A, who reaches nobody but the leader, takes the lock and reads",
                "the leader is cut off from the others, who agree on another",
                "B, on their side, gets the lock when the lease is over there, reads and writes",
                "A looks at its lease, and writes if it still believes",
            ],
            source: "Gilbert and Lynch, Brewer's conjecture (2002); the PostgreSQL documentation of failover: both must not be primary",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        use StoreKind::{Cluster, EtcdCluster, PostgresStandby, PostgresSynchronous, Sentinel, ZooKeeperEnsemble};
        match (subject.store, subject.client) {
            (EtcdCluster | ZooKeeperEnsemble, Client::Library) => {
                expect(Verdict::Ok, "a leader without a majority renews nothing, and its holder is told in time")
            }
            (PostgresStandby, Client::Library) => {
                expect(Verdict::DoubleGrant, "there are two primaries now, and each grants what it likes")
            }
            (PostgresSynchronous, Client::Library) => {
                expect(Verdict::Ok, "no commit is answered without the standby, and the holder is told in time")
            }
            (Sentinel, Client::Library) => expect(
                Verdict::DoubleGrant,
                "the old master renews for who reaches it, for as long as min-replicas-max-lag lets it, or for ever",
            ),
            (Cluster, Client::Library) => subject.not_here(
                "the nodes tell each other where they are, past any relay; cut off, a master goes on for cluster-node-timeout at most",
            ),
            _ => subject.without_an_heir(),
        }
    }

    /// Nobody can have it before the lease is over on the other side, whose new leader may count it from the beginning.
    fn idle_limit(&self) -> Duration {
        TTL * 6
    }

    fn cuts_the_network(&self) -> bool {
        true
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_from("a", Side::Left).await?;
            let old = takes_and_reads(&mut a, TTL).await?;
            stage.inflict(ServerFault::CutOffLeader).await?;
            let mut b = stage.player_from("b", Side::Right).await?;
            takes_and_works(&mut b).await?;
            if a.check(&old).await?.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

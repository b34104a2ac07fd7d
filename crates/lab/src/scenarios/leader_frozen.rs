//! The leader stands still, and the others go on without it.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::holds_through;
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect, not_played},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LeaderFrozen;

impl Scenario for LeaderFrozen {
    fn about(&self) -> About {
        About {
            name: "leader-frozen",
            title: "The leader is frozen",
            why: "A leader that stands still closes no connection and answers nobody. The others depose it; its clients have to notice.",
            steps: &[
                "A takes the lock and reads",
                "the leader is stopped (SIGSTOP), and the others agree on another",
                "B tries to get the lock, and does not",
                "A writes and gives back; B gets it",
            ],
            source: "etcd issue 15247: what a leader that stood still did to leases; the Redis documentation of Sentinel",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        use StoreKind::{Cluster, EtcdCluster, Sentinel, ZooKeeperEnsemble};
        match (subject.store, subject.client) {
            (EtcdCluster | ZooKeeperEnsemble, Client::Library) => {
                expect(Verdict::Ok, "the next leader knows of each grant that was answered")
            }
            (Sentinel | Cluster, Client::Library) => {
                expect(Verdict::Ok, "the record was replicated, and the clients follow the failover")
            }
            (StoreKind::PostgresStandby | StoreKind::PostgresSynchronous, Client::Library) => not_played(
                "nobody but an administrator replaces a primary: frozen it is in `server-frozen`, replaced in `leader-in-a-minority`",
            ),
            _ => subject.without_an_heir(),
        }
    }

    /// Requests that are on their way to the frozen one are repeated when their time is over.
    fn idle_limit(&self) -> Duration {
        TTL * 6
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            holds_through(stage, ServerFault::FreezeLeader, TTL * 20).await?;
            Ok(Reached::Yes)
        })
    }
}

//! Another server becomes the master in good order.

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

pub(super) struct PlannedFailover;

impl Scenario for PlannedFailover {
    fn about(&self) -> About {
        About {
            name: "planned-failover",
            title: "A planned failover",
            why: "Nothing is broken, and yet the old master lives on for seconds and would grant to whoever still talks to it.",
            steps: &[
                "A takes the lock and reads",
                "an administrator makes another server the master; with Redis the old one lives on",
                "B tries to get the lock, and does not",
                "A writes and gives back; B gets it",
            ],
            source: "the Redis documentation of Sentinel; PostgreSQL: a switchover by shutting the primary down first",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        use StoreKind::{Cluster, PostgresStandby, PostgresSynchronous, Sentinel};
        match (subject.store, subject.client) {
            (Sentinel | Cluster | PostgresStandby | PostgresSynchronous, Client::Library) => {
                expect(Verdict::Ok, "the record was replicated, and the clients follow the failover")
            }
            (StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble, Client::Library) => {
                not_played("the leadership moves as in `leader-dies`, and nobody is missing")
            }
            _ => subject.without_an_heir(),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            holds_through(stage, ServerFault::FailOver, TTL * 6).await?;
            Ok(Reached::Yes)
        })
    }
}

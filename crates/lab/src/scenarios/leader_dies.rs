//! The leader dies, and a majority has everything.

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

pub(super) struct LeaderDies;

impl Scenario for LeaderDies {
    fn about(&self) -> About {
        About {
            name: "leader-dies",
            title: "The leader of a quorum dies",
            why: "What was answered is with a majority, and the next leader comes from one. No lock is lost, and none can be had \
                  until there is that leader.",
            steps: &[
                "A takes the lock and reads",
                "the leader is killed, and the others elect another",
                "B tries to get the lock, and does not",
                "A writes and gives back; B gets it",
            ],
            source: "Ongaro and Ousterhout, In search of an understandable consensus algorithm (2014); Junqueira and others, Zab (2011)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble, Client::Library) => {
                expect(Verdict::Ok, "the next leader knows of each grant that was answered")
            }
            (StoreKind::Sentinel | StoreKind::Cluster, Client::Library) => subject.not_here(
                "what its heir knows of is chance: `leader-frozen` shows it with the record, `crash-before-replication` without",
            ),
            (StoreKind::PostgresStandby | StoreKind::PostgresSynchronous, Client::Library) => not_played("a primary dies in `crash-before-replication` and `synchronous-standby`"),
            _ => subject.without_an_heir(),
        }
    }

    /// Requests that were on their way to the dead one are repeated when their time is over.
    fn idle_limit(&self) -> Duration {
        TTL * 6
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            holds_through(stage, ServerFault::CrashMaster, TTL * 20).await?;
            Ok(Reached::Yes)
        })
    }
}

//! The primary dies, and its standby has everything.

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

pub(super) struct SynchronousStandby;

impl Scenario for SynchronousStandby {
    fn about(&self) -> About {
        About {
            name: "synchronous-standby",
            title: "The primary dies, and its synchronous standby takes over",
            why: "What was answered is on both servers. This is what a lock for correctness on PostgreSQL needs.",
            steps: &[
                "A takes the lock and reads",
                "the primary is killed, and the standby promoted",
                "B tries to get the lock, and does not",
                "A writes and gives back; B gets it",
            ],
            source: "the PostgreSQL documentation of synchronous replication",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::PostgresSynchronous, Client::Library) => {
                expect(Verdict::Ok, "the standby confirmed the grant before it was answered")
            }
            (StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble, Client::Library) => {
                not_played("a leader dies in `leader-dies`")
            }
            (StoreKind::PostgresStandby, Client::Library) => {
                not_played("`crash-before-replication` shows what a standby loses that nobody waits for")
            }
            _ => subject.without_an_heir(),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            holds_through(stage, ServerFault::CrashMaster, TTL * 20).await?;
            Ok(Reached::Yes)
        })
    }
}

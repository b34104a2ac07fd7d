//! The master dies with a grant that no replica has.

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works, wakes_and_looks};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect, not_played},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct CrashBeforeReplication;

impl Scenario for CrashBeforeReplication {
    fn about(&self) -> About {
        About {
            name: "crash-before-replication",
            title: "The master dies before it has replicated",
            why: "Redis answers before its replicas have it, and PostgreSQL with an asynchronous standby does too. What was answered \
                  can be lost with the master, and with it the lock.",
            steps: &[
                "The replicas are held back",
                "A takes the lock and reads, and is busy (SIGSTOP)",
                "the master is killed, and a replica that never saw the grant is promoted",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "the documentation of both on replication; Kleppmann, How to do distributed locking (2016)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Sentinel | StoreKind::Cluster, Client::Library) => {
                expect(Verdict::DoubleGrant, "the new master has never heard of the grant")
            }
            (StoreKind::PostgresStandby, Client::Library) => expect(
                Verdict::DoubleGrant,
                "the standby has never heard of the grant; only the fence is higher all the same",
            ),
            (StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble, Client::Library) => {
                not_played("nothing is answered before a majority has it, as in `leader-dies`")
            }
            (StoreKind::PostgresSynchronous, Client::Library) => {
                not_played("nothing is answered before the standby has it, as in `synchronous-standby`")
            }
            _ => subject.without_an_heir(),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            stage.inflict(ServerFault::HoldReplication).await?;
            let old = takes_and_reads(&mut a, TTL * 20).await?;
            a.pause()?;
            stage.inflict(ServerFault::CrashMaster).await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

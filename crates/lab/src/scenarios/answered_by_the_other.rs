//! A replica has confirmed the grant, and another one becomes master.

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

pub(super) struct AnsweredByTheOther;

impl Scenario for AnsweredByTheOther {
    fn about(&self) -> About {
        About {
            name: "answered-by-the-other",
            title: "WAIT is answered by one replica, and another is promoted",
            why: "WAIT says that so many replicas have the grant. Which of them becomes master does not depend on it.",
            steps: &[
                "One of two replicas is held back, and is the one to be promoted",
                "A takes the lock with replicas=1: the other replica confirms it; A reads, and is busy (SIGSTOP)",
                "the master is killed, and the replica that never saw the grant is promoted",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "the Redis documentation of WAIT: it does not make Redis a strongly consistent store",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Sentinel, Client::Library) => {
                expect(Verdict::DoubleGrant, "the new master has never heard of what the other replica confirmed")
            }
            (StoreKind::Cluster, Client::Library) => subject.not_here("each master here has one replica"),
            (StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble, Client::Library) => {
                not_played("a majority answers, and the next leader is one of it")
            }
            (StoreKind::PostgresStandby | StoreKind::PostgresSynchronous, Client::Library) => {
                not_played("there is one standby")
            }
            _ => subject.without_an_heir(),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player_with("a", "replicas=1").await?, stage.player("b").await?);
            stage.inflict(ServerFault::HoldTheHeir).await?;
            let old = takes_and_reads(&mut a, TTL * 20).await?;
            a.pause()?;
            stage.inflict(ServerFault::CrashMaster).await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

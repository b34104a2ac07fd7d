//! The master that was deposed, and does not know it yet.

use fencepost_core::store::BoxFuture;

use super::scenes::{finishes, takes_and_reads, tries_and_works};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect, not_played},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct DeposedMaster;

impl Scenario for DeposedMaster {
    fn about(&self) -> About {
        About {
            name: "deposed-master",
            title: "The deposed master goes on granting",
            why: "After a failover the old master is told some ten seconds later. Until then it takes writes that nobody else sees, \
                  and all of them are thrown away.",
            steps: &[
                "A comes, and learns where the master is",
                "an administrator makes another server the master; nobody is at fault, and the old one lives on",
                "A takes the lock and reads",
                "B comes, tries to get the lock, and reads and writes if it has it",
                "A writes and gives back",
            ],
            source: "the Redis documentation of Sentinel: old masters are reconfigured when they are reachable again",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Sentinel, Client::Library) => {
                expect(Verdict::Ok, "whoever is told by the sentinels that the master has moved leaves the old one")
            }
            (StoreKind::Sentinel, Client::Counter) => {
                expect(Verdict::DoubleGrant, "the old master grants what the new one has never heard of")
            }
            (StoreKind::Cluster, Client::Library) => {
                subject.not_here("its nodes agree on a failover before the old master answers again")
            }
            (StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble, Client::Library) => {
                not_played("who led before grants nothing without a majority, as in `leader-in-a-minority`")
            }
            (StoreKind::PostgresStandby | StoreKind::PostgresSynchronous, Client::Library) => {
                not_played("a primary that lives on is in `leader-in-a-minority`")
            }
            _ => subject.without_an_heir(),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player("a").await?;
            stage.inflict(ServerFault::FailOver).await?;
            let old = takes_and_reads(&mut a, TTL * 6).await?;
            let mut b = stage.player("b").await?;
            tries_and_works(&mut b, TTL).await?;
            finishes(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

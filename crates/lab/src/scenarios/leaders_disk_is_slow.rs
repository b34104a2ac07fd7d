//! The leader's disk is slow: it is deposed, and does not notice until the disk answers.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect, not_played},
    stage::{Stage, TTL},
    stand::{ServerFault, Side},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LeadersDiskIsSlow;

impl Scenario for LeadersDiskIsSlow {
    fn about(&self) -> About {
        About {
            name: "leaders-disk-is-slow",
            title: "The leader's disk is slow",
            why: "A leader that waits for its disk sends no heartbeats and is deposed, and does not know. Meanwhile it may tell its own \
                  clients that their leases are renewed.",
            steps: &[
                "A, who reaches nobody but the leader, takes the lock and reads, and renews it properly",
                "each fdatasync of the leader takes 2.5 s longer (strace)",
                "B, who reaches the others, waits for the lock; they elect another leader, and B gets it, reads and writes",
                "A looks at its lease, and writes if it still believes",
            ],
            source: "etcd issue 15247: with keep-alives alone, a stuck leader of 3.4.23 said \"renewed\" for seconds after another held, 8 of 8",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::EtcdCluster, Client::Library) => {
                expect(Verdict::Ok, "a renewal is a keep-alive and a read by the majority, and a stuck leader has none")
            }
            (StoreKind::Sentinel | StoreKind::Cluster, Client::Library) => {
                subject.not_here("its master answers before anything is on a disk")
            }
            (StoreKind::ZooKeeperEnsemble, Client::Library) => not_played(
                "its leader shows that it lives by another thread than the one that waits for the disk, and here nobody waits for one",
            ),
            (StoreKind::PostgresStandby | StoreKind::PostgresSynchronous, Client::Library) => not_played(
                "nobody but an administrator replaces a primary: to its clients it is that of `server-frozen`",
            ),
            _ => subject.without_an_heir(),
        }
    }

    fn privileged(&self, _on: Subject) -> bool {
        true
    }

    fn idle_limit(&self) -> Duration {
        TTL * 6
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_from("a", Side::Left).await?;
            let mut b = stage.player_from("b", Side::Right).await?;
            let old = takes_and_reads(&mut a, TTL).await?;
            stage.renewed(&old).await?;
            stage.inflict(ServerFault::SlowDisk).await?;
            takes_and_works(&mut b).await?;
            if a.check(&old).await?.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

//! The server comes back with nothing, or the directory is emptied.

use fencepost_core::store::BoxFuture;

use super::scenes::{holds_through, takes_and_reads, takes_and_works, wakes_and_looks};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct RestartWithoutData;

impl Scenario for RestartWithoutData {
    fn about(&self) -> About {
        About {
            name: "restart-without-data",
            title: "The store comes back without its data",
            why: "A server without persistence forgets its locks with its memory, and nobody is told.",
            steps: &[
                "A takes the lock and reads",
                "A is busy (SIGSTOP) while the store loses everything",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
                "where a majority decides, one server of it loses everything: A is not stopped, B tries in vain, A writes and gives \
                 back, and B gets it",
            ],
            source: "Sanfilippo, Distributed locks with Redis: delayed restarts",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        use StoreKind::{Cluster, Etcd, EtcdCluster, File, Redlock, Sentinel, ZooKeeper, ZooKeeperEnsemble};
        match (subject.store, subject.client) {
            (File, Client::Library) => {
                expect(Verdict::DoubleGrant, "a directory that was emptied knows nothing of its locks")
            }
            (Sentinel | Cluster, Client::Library) => expect(
                Verdict::DoubleGrant,
                "the replicas copy the emptiness of a master that is back before it is missed",
            ),
            (Redlock, Client::Library) => expect(Verdict::Ok, "the four others are a majority without it"),
            (EtcdCluster | ZooKeeperEnsemble, Client::Library) => {
                expect(Verdict::Ok, "the two others are a majority without it, and know of the grant")
            }
            (Etcd | ZooKeeper, Client::Library) => expect(
                Verdict::DoubleGrant,
                "one server alone has forgotten what it granted, and how far its fences had come",
            ),
            (_, Client::Library) if subject.everywhere() => {
                expect(Verdict::DoubleGrant, "the server has forgotten what it granted")
            }
            (StoreKind::Redis, Client::RedisPy | Client::Naive) => {
                expect(Verdict::DoubleGrant, "the server has forgotten what it granted")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            if matches!(stage.subject.store, StoreKind::Redlock | StoreKind::EtcdCluster | StoreKind::ZooKeeperEnsemble)
            {
                holds_through(stage, ServerFault::RestartEmpty, TTL * 20).await?;
                return Ok(Reached::Yes);
            }
            let mut a = stage.player("a").await?;
            let old = takes_and_reads(&mut a, TTL * 20).await?;
            a.pause()?;
            stage.inflict(ServerFault::RestartEmpty).await?;
            let mut b = stage.player("b").await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

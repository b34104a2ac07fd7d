//! The store takes no write any more.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL, pause},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct StoreIsFull;

impl Scenario for StoreIsFull {
    fn about(&self) -> About {
        About {
            name: "store-is-full",
            title: "The store is full",
            why: "A full store answers reads and refuses writes. A grant must not be half made, and what is refused is no grant and no renewal.",
            steps: &[
                "A takes the lock and reads",
                "the store is full: etcd's quota is used up, Redis has no memory left, the disk of the others takes not one byte more",
                "B tries to get the lock, and gets an error",
                "A looks at its lease after longer than a TTL, writes if it still believes, and gives back",
                "there is room again: C takes the lock, reads and writes",
            ],
            source: "the etcd documentation of space quotas; the Redis documentation of maxmemory; the PostgreSQL documentation of disk full failures",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Redis | StoreKind::Etcd | StoreKind::Postgres, Client::Library) => expect(
                Verdict::Ok,
                "who wants it is told that the store is full, and whoever holds can renew or is told in time",
            ),
            (StoreKind::File, Client::Library) => {
                expect(Verdict::Ok, "who wants it is told that the disk is full; what holds was written before")
            }
            (StoreKind::ZooKeeper, Client::Library) => {
                expect(Verdict::Ok, "it ends itself when it cannot write, and whoever holds is told in time")
            }
            (StoreKind::PostgresSession, _) => {
                subject.not_here("the server is that of the column PostgreSQL, and a session that holds writes nothing")
            }
            (StoreKind::Sentinel | StoreKind::Cluster | StoreKind::Redlock, _) => {
                subject.not_here("the servers are those of the column Redis, and are full as they are")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    /// Nobody can have it while the store is full.
    fn idle_limit(&self) -> Duration {
        TTL * 8
    }

    fn fills_the_disk(&self, on: Subject) -> bool {
        matches!(on.store, StoreKind::File | StoreKind::Postgres | StoreKind::ZooKeeper)
    }

    fn privileged(&self, on: Subject) -> bool {
        self.fills_the_disk(on)
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b, mut c) = (stage.player("a").await?, stage.player("b").await?, stage.player("c").await?);
            let old = takes_and_reads(&mut a, TTL).await?;
            stage.inflict(ServerFault::Fill).await?;
            let (_, tries) = b.begin_to_acquire(TTL, Some(TTL / 5), true).await?;
            let (came, why) = tries.came().await?;
            pause(TTL).await;
            if a.check(&old).await?.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            a.release(&old).await?.came().await?;
            stage.inflict(ServerFault::Clear).await?;
            takes_and_works(&mut c).await?;
            Ok(match came {
                Came::Failed => Reached::Yes,
                Came::Yes | Came::No => Reached::No(format!("B was not refused for want of room: {came:?} {why}")),
            })
        })
    }
}

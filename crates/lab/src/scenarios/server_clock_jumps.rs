//! The server's wall clock jumps past the end of the lease.

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

pub(super) struct ServerClockJumps;

impl Scenario for ServerClockJumps {
    fn about(&self) -> About {
        About {
            name: "server-clock-jumps",
            title: "The server's wall clock jumps",
            why: "Redis and PostgreSQL tell the time by the wall clock. Whoever sets that clock ends leases, and their holders are \
                  not told.",
            steps: &[
                "A takes the lock and reads",
                "A is busy (SIGSTOP) while the server's wall clock jumps forward by an hour",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
                "where that clock decides nothing: A is not stopped, B tries in vain, A writes and gives back, and B gets it",
            ],
            source: "Kleppmann, How to do distributed locking (2016): Redis uses the wall clock",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Redis, Client::Library | Client::RedisPy | Client::Naive) => {
                expect(Verdict::DoubleGrant, "the lease is over by the server's clock, and by no other")
            }
            (StoreKind::Postgres, _) => expect(
                Verdict::DoubleGrant,
                "the lease is over by the server's clock, and by no other; only the fence is higher all the same",
            ),
            (StoreKind::PostgresSession, _) => expect(Verdict::Ok, "no clock decides when a session ends"),
            (StoreKind::ZooKeeper, Client::Library) => expect(Verdict::Ok, "it counts sessions on a monotonic clock"),
            (StoreKind::Etcd, Client::Library) => expect(Verdict::Ok, "a lease is over by its monotonic clock alone"),
            (StoreKind::File, _) => subject.not_here("a directory has no server, and no clock decides about its locks"),
            (StoreKind::Sentinel | StoreKind::Cluster, _) => {
                subject.not_here("the master is a server of the column Redis, and tells the time as that does")
            }
            (StoreKind::Redlock, _) => subject.not_here("one server's clock jumps in `redlock-clock-jump`"),
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            if !matches!(stage.subject.store, StoreKind::Redis | StoreKind::Postgres) {
                holds_through(stage, ServerFault::JumpClock, TTL * 20).await?;
                return Ok(Reached::Yes);
            }
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL * 4).await?;
            a.pause()?;
            stage.inflict(ServerFault::JumpClock).await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

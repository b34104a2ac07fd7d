//! The server's wall clock is set back while the lock of somebody who died is still leased.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::takes_and_reads;
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct ServerClockGoesBack;

impl Scenario for ServerClockGoesBack {
    fn about(&self) -> About {
        About {
            name: "server-clock-goes-back",
            title: "The server's wall clock goes back",
            why: "Where a lease ends at a time of day, it lives on for as long as that clock is set back: an hour, for whoever set it by \
                  an hour. Nothing is granted twice, and nobody gets what a dead holder left.",
            steps: &[
                "A takes the lock and reads; B waits for it",
                "A is killed, and the server's wall clock goes back by 6 s",
                "B gets it: when the lease is over, or 6 s later",
            ],
            source: "etcd 3.4, lease/lease_queue.go: leases are queued by the time of day; the Redis documentation of EXPIRE",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Redis, Client::Library) => {
                expect(Verdict::Blocked, "the lease ends by the server's clock, and that much later")
            }
            (StoreKind::Etcd, Client::Library) => expect(
                Verdict::Blocked,
                "3.4 looks at a lease no earlier than the time of day says, and that much later",
            ),
            (StoreKind::PostgresSession, Client::Library) => {
                expect(Verdict::Ok, "no clock decides when a session ends")
            }
            (StoreKind::ZooKeeper, Client::Library) => expect(Verdict::Ok, "it counts sessions on a monotonic clock"),
            (StoreKind::Postgres, Client::Library) => {
                expect(Verdict::Ok, "whoever looks at a lease that ends later than its TTL says cuts it down to that")
            }
            (StoreKind::File, _) => subject.not_here("a directory has no server, and no clock decides about its locks"),
            (StoreKind::Sentinel | StoreKind::Cluster | StoreKind::Redlock, _) => {
                subject.not_here("the servers are those of the column Redis, and tell the time as that does")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    /// Longer than a lease lives on where no clock is set back.
    fn idle_limit(&self) -> Duration {
        TTL * 3
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            takes_and_reads(&mut a, TTL).await?;
            let (new, waits) = b.begin_to_acquire(TTL, None, true).await?;
            a.kill().await?;
            stage.inflict(ServerFault::SetClockBack).await?;
            waits.expect(Came::Yes).await?;
            b.read(&new).await?.expect(Came::Yes).await?;
            b.release(&new).await?.came().await?;
            Ok(Reached::Yes)
        })
    }
}

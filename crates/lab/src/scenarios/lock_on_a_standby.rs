//! One client is led to the primary, another to a standby.

use fencepost_core::store::BoxFuture;

use super::scenes::{finishes, takes_and_reads, tries_and_works};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LockOnAStandby;

impl Scenario for LockOnAStandby {
    fn about(&self) -> About {
        About {
            name: "lock-on-a-standby",
            title: "An advisory lock on a standby",
            why: "A hot standby takes advisory locks as well, in a table of its own. Nothing is replicated and nobody is refused.",
            steps: &[
                "A takes the lock at the primary and reads",
                "B, whom a load balancer led to the standby, tries to get it, and reads and writes if it has it",
                "A writes and gives back",
            ],
            source: "the PostgreSQL documentation of hot standby: advisory locks are not WAL logged",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::PostgresStandby, Client::Advisory) => {
                expect(Verdict::DoubleGrant, "each server has a lock of its own")
            }
            _ => subject.not_here("it is about the advisory locks of PostgreSQL, in the second table"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player_at_replica("b").await?);
            let old = takes_and_reads(&mut a, TTL).await?;
            tries_and_works(&mut b, TTL).await?;
            finishes(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

//! A commit whose wait for the standby was cancelled is answered with success, and a warning.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, THINKS, TTL, pause},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct CancelledCommit;

impl Scenario for CancelledCommit {
    fn about(&self) -> About {
        About {
            name: "cancelled-commit",
            title: "The wait for the synchronous standby is cancelled",
            why: "PostgreSQL then answers that the commit is done, with a warning that few clients read. After a failover it never \
                  happened.",
            steps: &[
                "The standby is cut off, so that commits wait for it",
                "A begins to take the lock; somebody cancels the statement that waits",
                "A reads, if it was told that it holds",
                "the primary is killed, and the standby promoted, which never saw the grant",
                "B takes the lock, reads and writes",
                "A writes, if it was told that it holds",
            ],
            source: "the PostgreSQL documentation: canceling the wait for synchronous replication; seen to lose 8 of 8 grants when \
                     the warning is not heeded",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::PostgresSynchronous, Client::Library) => {
                expect(Verdict::Ok, "a commit with that warning is unknown, and nothing is granted (T1)")
            }
            _ => subject.not_here("it is about the commits of PostgreSQL, with the standby of the second table"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            stage.inflict(ServerFault::HoldReplication).await?;
            let (old, tries) = a.begin_to_acquire(TTL * 20, Some(Duration::ZERO), true).await?;
            stage.inflict(ServerFault::CancelWaits).await?;
            let told = tries.came().await?.0 == Came::Yes;
            if told {
                a.read(&old).await?.expect(Came::Yes).await?;
            }
            stage.inflict(ServerFault::CrashMaster).await?;
            let new = b.acquire(TTL).await?;
            b.read(&new).await?.expect(Came::Yes).await?;
            pause(THINKS).await;
            b.write(&new).await?.expect(Came::Yes).await?;
            if told {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

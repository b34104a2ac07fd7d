//! The store is brought back to what it was some time ago.

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, wakes_and_looks};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, THINKS, TTL, pause},
    stand::ServerFault,
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct SnapshotRestored;

impl Scenario for SnapshotRestored {
    fn about(&self) -> About {
        About {
            name: "snapshot-restored",
            title: "The store is restored from a backup",
            why: "A backup knows nothing of the locks that were granted after it, nor how far their fences had come.",
            steps: &[
                "A snapshot is taken",
                "A takes the lock and reads, and is busy (SIGSTOP)",
                "the store is ended, and comes back with the data of the snapshot",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "the etcd documentation of disaster recovery; etcd issue 15555, revisions after a restore",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.client {
            Client::Library if subject.everywhere() => {
                expect(Verdict::DoubleGrant, "what was granted since then is forgotten")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            stage.inflict(ServerFault::Snapshot).await?;
            let mut a = stage.player("a").await?;
            let old = takes_and_reads(&mut a, TTL * 20).await?;
            a.pause()?;
            stage.inflict(ServerFault::Restore).await?;
            let mut b = stage.player("b").await?;
            let new = b.acquire(TTL).await?;
            b.read(&new).await?.came().await?;
            pause(THINKS).await;
            b.write(&new).await?.came().await?;
            pause(THINKS).await;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

//! Readers beside readers, and writers alone.

use std::time::Duration;

use fencepost_core::store::BoxFuture;
use fencepost_history::Holding;

use crate::{
    agent::Came,
    player::Player,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL, pause},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct ReadersAndWriters;

impl Scenario for ReadersAndWriters {
    fn about(&self) -> About {
        About {
            name: "readers-and-writers",
            title: "Readers and writers want one lock",
            why: "Readers may be there together and a writer only alone. Whoever counts readers can count wrong.",
            steps: &[
                "A and B take the lock as readers, both at once; C asks for it as a writer, and is told that they hold it",
                "A and B give it back",
                "three readers and two writers, C among them, take it eight times each, one after another",
            ],
            source: "Courtois, Heymans and Parnas, Concurrent control with readers and writers (1971)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.shares() {
            true => expect(
                Verdict::Ok,
                "no writer is beside anybody, and a reader's fence is not older than that of the writer before him (F3)",
            ),
            false => subject.not_here("its locks are for one holder"),
        }
    }

    /// As with contention: what takes long is the machine.
    fn idle_limit(&self) -> Duration {
        TTL * 4
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b, mut c) = (stage.player("a").await?, stage.player("b").await?, stage.player("c").await?);
            let one = a.acquire_beside(Holding::Shared, TTL).await?;
            let two = b.acquire_beside(Holding::Shared, TTL).await?;
            let (_, waits) = c.begin_to_acquire(TTL, Some(TTL / 10), true).await?;
            if waits.granted().await? {
                return Ok(Reached::Yes); // beside two readers: the checker says so
            }
            a.release(&one).await?.expect(Came::Yes).await?;
            b.release(&two).await?.expect(Came::Yes).await?;
            let mut crowd = tokio::task::JoinSet::new();
            for reader in [a, b, stage.player("d").await?] {
                crowd.spawn(reads(reader, stage.random.fork()));
            }
            for writer in [c, stage.player("e").await?] {
                crowd.spawn(writes(writer, stage.random.fork()));
            }
            while let Some(one) = crowd.join_next().await {
                one.map_err(|error| Stop::Failed(error.to_string()))??;
            }
            Ok(Reached::Yes)
        })
    }
}

const TURNS: u32 = 8;

async fn reads(mut reader: Player, mut random: fastrand::Rng) -> Result<(), Stop> {
    for _ in 0..TURNS {
        let grant = reader.acquire_beside(Holding::Shared, TTL).await?;
        reader.read(&grant).await?.expect(Came::Yes).await?;
        pause(Duration::from_millis(random.u64(0..4))).await;
        reader.release(&grant).await?.expect(Came::Yes).await?;
    }
    Ok(())
}

async fn writes(mut writer: Player, mut random: fastrand::Rng) -> Result<(), Stop> {
    for _ in 0..TURNS {
        let grant = writer.acquire(TTL).await?;
        writer.read(&grant).await?.expect(Came::Yes).await?;
        pause(Duration::from_millis(random.u64(0..4))).await;
        writer.write(&grant).await?.expect(Came::Yes).await?;
        writer.release(&grant).await?.expect(Came::Yes).await?;
    }
    Ok(())
}

//! Permits, of which there are only so many.

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

pub(super) struct Permits;

/// How many there are.
const LIMIT: u32 = 3;

impl Scenario for Permits {
    fn about(&self) -> About {
        About {
            name: "permits",
            title: "More want permits than there are",
            why: "A semaphore that counts and forgets lets one too many in. Here each permit has a number, which two never have at once.",
            steps: &[
                "A takes two of three permits and B the third; C tries, and gets none",
                "A and B give theirs back",
                "four processes take one or two eight times each, one after another",
            ],
            source: "Dijkstra, Over de sequentialiteit van procesbeschrijvingen (1962): semaphores",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.shares() {
            true => expect(Verdict::Ok, "never more than there are, and no permit twice"),
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
            let two = a.acquire_beside(some(2), TTL).await?;
            let one = b.acquire_beside(some(1), TTL).await?;
            let (_, tries) = c.begin_to_hold(some(1), TTL, Some(TTL / 10), true).await?;
            if tries.granted().await? {
                return Ok(Reached::Yes); // one too many: the checker says so
            }
            a.release(&two).await?.expect(Came::Yes).await?;
            b.release(&one).await?.expect(Came::Yes).await?;
            let mut crowd = tokio::task::JoinSet::new();
            for player in [a, b, c, stage.player("d").await?] {
                crowd.spawn(take_turns(player, stage.random.fork()));
            }
            while let Some(one) = crowd.join_next().await {
                one.map_err(|error| Stop::Failed(error.to_string()))??;
            }
            Ok(Reached::Yes)
        })
    }
}

fn some(count: u32) -> Holding {
    Holding::Permits { count, limit: LIMIT }
}

async fn take_turns(mut player: Player, mut random: fastrand::Rng) -> Result<(), Stop> {
    for _ in 0..8 {
        let grant = player.acquire_beside(some(random.u32(1..=2)), TTL).await?;
        pause(Duration::from_millis(random.u64(0..4))).await;
        player.release(&grant).await?.expect(Came::Yes).await?;
    }
    Ok(())
}

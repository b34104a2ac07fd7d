//! Many want one lock, and nothing goes wrong.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use crate::{
    agent::Came,
    player::Player,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL, pause},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct Contention;

impl Scenario for Contention {
    fn about(&self) -> About {
        About {
            name: "contention",
            title: "Many want one lock",
            why: "A lock that fails without a fault needs no laboratory. It is also the ground on which the others stand.",
            steps: &[
                "Four processes take the lock twelve times each, one after another",
                "each reads the resource under the lock, thinks, writes, and gives the lock back",
            ],
            source: "Dijkstra, Solution of a problem in concurrent programming control (1965)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        if !subject.everywhere() {
            return Err(NotPlayed::Apart);
        }
        expect(Verdict::Ok, "one holder at a time is all that is asked")
    }

    /// Nothing is broken here that could block for a TTL: what takes long is the machine, or a round of votes that has to
    /// be repeated.
    fn idle_limit(&self) -> Duration {
        TTL * 4
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut crowd = tokio::task::JoinSet::new();
            let mut players = Vec::new();
            for name in ["a", "b", "c", "d"] {
                players.push(stage.player(name).await?);
            }
            for player in players {
                let random = stage.random.fork();
                crowd.spawn(take_turns(player, random));
            }
            while let Some(one) = crowd.join_next().await {
                one.map_err(|error| Stop::Failed(error.to_string()))??;
            }
            Ok(Reached::Yes)
        })
    }
}

async fn take_turns(mut player: Player, mut random: fastrand::Rng) -> Result<(), Stop> {
    for _ in 0..12 {
        let grant = player.acquire(TTL).await?;
        player.read(&grant).await?.expect(Came::Yes).await?;
        pause(Duration::from_millis(random.u64(0..4))).await;
        player.write(&grant).await?.expect(Came::Yes).await?;
        player.release(&grant).await?.expect(Came::Yes).await?;
    }
    Ok(())
}

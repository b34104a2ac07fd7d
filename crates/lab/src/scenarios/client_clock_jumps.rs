//! A client's wall clock is set, back and forth.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{gives_back_in_the_end, takes_and_reads};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, THINKS, TTL, pause},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct ClientClockJumps;

impl Scenario for ClientClockJumps {
    fn about(&self) -> About {
        About {
            name: "client-clock-jumps",
            title: "A client's wall clock jumps",
            why: "Wall clocks are set by people and by NTP. A lease that is counted on one is over an hour early, or an hour late.",
            steps: &[
                "A takes the lock and reads",
                "A's wall clock jumps an hour forward: it still holds, and writes",
                "it jumps two hours back, and A is cut off for longer than its lease lasts: it is told in time",
                "B takes the lock, reads and writes",
                "where nothing expires A is not cut off: B tries in vain, A writes and gives back, and B gets it",
            ],
            source: "Kleppmann, How to do distributed locking (2016): gettimeofday is subject to discontinuous jumps",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.client {
            Client::Library if subject.everywhere() && subject.expires() => {
                expect(Verdict::Ok, "leases are counted on a clock that nobody can set (T2)")
            }
            Client::Library if subject.everywhere() => {
                expect(Verdict::Ok, "nothing of it is counted on a client's clock")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    /// The lock is wanted from the cut on, and nobody can have it before the lease is over.
    fn idle_limit(&self) -> Duration {
        TTL * 3
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let clock = stage.wall_clock()?;
            let (mut a, mut b) = (stage.player_on("a", &clock).await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL).await?;
            stage.jump(&a, &clock, 3600)?;
            pause(TTL).await;
            if a.check(&old).await?.came().await?.0 == Came::No {
                return Ok(Reached::No("the lease was lost, though it was renewed".to_owned()));
            }
            a.write(&old).await?.expect(Came::Yes).await?;
            stage.jump(&a, &clock, -3600)?;
            if !stage.subject.expires() {
                gives_back_in_the_end(&mut a, &old, &mut b).await?;
                return Ok(Reached::Yes);
            }
            stage.weather_to_store(&a, fencepost_servers::Weather::Silence)?;
            let new = b.acquire(TTL * 4).await?;
            b.read(&new).await?.expect(Came::Yes).await?;
            pause(THINKS).await;
            b.write(&new).await?.expect(Came::Yes).await?;
            if a.check(&old).await?.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

//! A client's clock is slower than any margin allows for.

use std::time::Duration;

use fencepost_core::store::BoxFuture;
use fencepost_history::{Event, What};
use fencepost_servers::Weather;

use super::scenes::{gives_back_in_the_end, takes_and_reads, takes_and_works};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct ClientClockDrifts;

/// In hundredths. A lease allows for a difference of one.
const PACE: u32 = 10;

impl Scenario for ClientClockDrifts {
    fn about(&self) -> About {
        About {
            name: "client-clock-drifts",
            title: "A client's clock is slow",
            why: "A lease is sound as long as both sides count alike. A client allows for a difference of a hundredth; a clock that is \
                  slower than that believes in what is over.",
            steps: &[
                "A's clock runs at a tenth of its pace",
                "A takes the lock and reads, and is cut off from the store",
                "B gets the lock when the lease is over, reads and writes",
                "by A's clock there is time left, and it writes",
                "where nothing expires A is not cut off: B tries in vain, A writes and gives back, and B gets it",
            ],
            source: "Gray and Cheriton, Leases (1989), section 5: leases depend on well-behaved clocks",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.client {
            Client::Library if subject.everywhere() && !subject.expires() => {
                expect(Verdict::Ok, "nothing of it is counted on a client's clock")
            }
            Client::Library if subject.everywhere() => match subject.fenced() {
                true => expect(Verdict::OverlapFenced, "it believes in what is over, and its fence is refused"),
                false => expect(Verdict::Overlap, "it believes in what is over, and nothing stops its write"),
            },
            _ => Err(NotPlayed::Apart),
        }
    }

    fn idle_limit(&self) -> Duration {
        TTL * 3
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_at_pace("a", PACE).await?;
            let mut b = stage.player("b").await?;
            let old = takes_and_reads(&mut a, TTL).await?;
            if !stage.subject.expires() {
                gives_back_in_the_end(&mut a, &old, &mut b).await?;
                return Ok(Reached::Yes);
            }
            stage.weather_to_store(&a, Weather::Silence)?;
            takes_and_works(&mut b).await?;
            let is_told = |event: &Event| matches!(&event.what, What::Lost { grant, .. } if *grant == old);
            if stage.events().iter().any(is_told) {
                return Ok(Reached::No("A was told that its lease is over".to_owned()));
            }
            a.write(&old).await?.came().await?;
            Ok(Reached::Yes)
        })
    }
}

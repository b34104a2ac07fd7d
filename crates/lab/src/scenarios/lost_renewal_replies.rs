//! Renewals arrive in the store, and their answers are lost.

use fencepost_core::store::BoxFuture;
use fencepost_history::{Event, What};
use fencepost_servers::Weather;

use crate::{
    agent::Client,
    scenario::{About, Expected, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LostRenewalReplies;

impl Scenario for LostRenewalReplies {
    fn about(&self) -> About {
        About {
            name: "lost-renewal-replies",
            title: "The answers to renewals are lost",
            why: "The store extends the lease, and the holder cannot know. It must stop at the deadline that it knows.",
            steps: &[
                "A takes the lock",
                "from then on every answer to A is lost; its renewals arrive",
                "B waits",
                "A is told at its deadline",
            ],
            source: "Gray and Cheriton, Leases (1989)",
        }
    }

    fn expects(&self, subject: Subject) -> Option<Expected> {
        match (subject.store, subject.client) {
            (StoreKind::Redis, Client::Library) => {
                expect(Verdict::Blocked, "the store goes on holding what it extended last")
            }
            // Elsewhere the first lost answer ends the connection, and no renewal arrives any more.
            _ => None,
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            let grant = a.acquire(TTL).await?;
            // The first renewal teaches the server the script; from then on each is one request.
            stage.renewed(&grant).await?;
            stage.weather_to_store(&a, Weather::LostReplies)?;
            b.acquire(TTL).await?;
            stage.until("A is told", |event| was_told(event, &grant)).await?;
            stage.weather_to_store(&a, Weather::Fair)?;
            Ok(Reached::Yes)
        })
    }
}

fn was_told(event: &Event, wanted: &str) -> bool {
    matches!(&event.what, What::Lost { grant, .. } if grant == wanted)
}

//! Renewals arrive in the store, and their answers are lost.

use fencepost_core::store::BoxFuture;
use fencepost_history::{Event, What};
use fencepost_servers::Weather;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LostRenewalReplies;

/// The first renewals teach the server what they are, a script or a statement; from then on each is one request.
const TAUGHT_BY: usize = 2;

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

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File | StoreKind::PostgresSession, _) => subject.not_here("nothing of it is renewed"),
            (_, Client::Library) if subject.everywhere() => expect(
                Verdict::Ok,
                "the holder is told at its deadline, and what it gives back then arrives as well (L3)",
            ),
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            // Once in peace: the first of each request may have to teach the server something.
            let first = a.acquire(TTL).await?;
            a.release(&first).await?.expect(Came::Yes).await?;
            let grant = a.acquire(TTL).await?;
            stage.renewals(&grant, TAUGHT_BY).await?;
            stage.weather_to_store(&a, Weather::LostReplies)?;
            let before = a.arrived();
            let (_, waits) = b.begin_to_acquire(TTL, None, true).await?;
            // A has nothing else to say until it is told.
            let mut renewals_arrived = false;
            let told = |events: &[Event]| {
                let told = events.iter().any(|event| was_told(event, &grant));
                renewals_arrived |= !told && a.arrived() > before;
                told
            };
            stage.until_all("A is told", told).await?;
            waits.expect(Came::Yes).await?;
            stage.weather_to_store(&a, Weather::Fair)?;
            Ok(if renewals_arrived { Reached::Yes } else { Reached::No("no renewal was seen to arrive".to_owned()) })
        })
    }
}

fn was_told(event: &Event, wanted: &str) -> bool {
    matches!(&event.what, What::Lost { grant, .. } if grant == wanted)
}

//! The answer to an acquire is lost, and the store has applied it.

use fencepost_core::store::BoxFuture;
use fencepost_servers::Weather;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LostReply;

impl Scenario for LostReply {
    fn about(&self) -> About {
        About {
            name: "lost-reply",
            title: "The answer to an acquire is lost",
            why: "Nobody knows then that the lock is held. Whoever wanted it cannot even give it back.",
            steps: &["Every answer to A is lost", "A asks for the lock and gives up", "B asks for it"],
            source: "Apache Curator, CURATOR-79",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File, _) => subject.not_here("no network lies between a directory and who uses it"),
            (StoreKind::ZooKeeper, Client::Library) => {
                expect(Verdict::Blocked, "a session whose answers are lost is given up, and lasts until it expires")
            }
            (_, Client::Library) if subject.everywhere() => {
                expect(Verdict::Ok, "what was given up is released in the background, and that arrives")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            // Once in peace, so that what is lost is the answer to the claim and not to some preparation.
            let first = a.acquire(TTL * 2).await?;
            a.release(&first).await?.expect(Came::Yes).await?;
            let observer = stage.observer().await?;
            stage.weather_to_store(&a, Weather::LostReplies)?;
            let (lost, asks) = a.begin_to_acquire(TTL * 2, Some(TTL / 4), true).await?;
            let applied = observer.sees(&lost, TTL / 4).await?;
            let (came, why) = asks.came().await?;
            b.acquire(TTL).await?;
            stage.weather_to_store(&a, Weather::Fair)?;
            Ok(match came {
                Came::Failed if applied => Reached::Yes,
                Came::Failed => Reached::No("the store was not seen to apply it".to_owned()),
                Came::Yes | Came::No => Reached::No(format!("A was answered: {why}")),
            })
        })
    }
}

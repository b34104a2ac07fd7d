//! The answer to an acquire is lost, and the store has applied it.

use fencepost_core::store::BoxFuture;
use fencepost_servers::Weather;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, Reached, Scenario, Stop, expect},
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
            steps: &[
                "Every answer to A is lost",
                "A asks for the lock and gives up",
                "B asks for it, and gets it when the forgotten grant has run out",
            ],
            source: "Apache Curator, CURATOR-79",
        }
    }

    fn expects(&self, subject: Subject) -> Option<Expected> {
        match (subject.store, subject.client) {
            (StoreKind::File, _) => None,
            (_, Client::Library) => {
                expect(Verdict::Blocked, "while A is cut off, nobody can undo its grant before the TTL")
            }
            (_, Client::RedisPy | Client::Naive) => None,
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            stage.weather_to_store(&a, Weather::LostReplies)?;
            let (_, asks) = a.begin_to_acquire(TTL * 2, Some(TTL / 5), true).await?;
            let (came, why) = asks.came().await?;
            b.acquire(TTL).await?;
            stage.weather_to_store(&a, Weather::Fair)?;
            Ok(if came == Came::Failed { Reached::Yes } else { Reached::No(format!("A was answered: {why}")) })
        })
    }
}

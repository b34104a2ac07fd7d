//! The answer to an acquire arrives after the lease is over.

use std::time::Duration;

use fencepost_core::store::BoxFuture;
use fencepost_servers::Weather;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LateReply;

impl Scenario for LateReply {
    fn about(&self) -> About {
        About {
            name: "late-reply",
            title: "The grant arrives after its end",
            why: "A lease counts from before its request was sent. Whoever counts from the answer believes in what is over.",
            steps: &[
                "The network holds every answer to A back for longer than the TTL",
                "A asks for the lock",
                "B asks for it when A has its answer",
            ],
            source: "node-redlock issue 296",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File, _) => subject.not_here("no network lies between a directory and who uses it"),
            (StoreKind::PostgresSession, _) => subject
                .not_here("no grant of a session is over before its answer comes, which is waited for 3 s at most"),
            (_, Client::Library) if subject.everywhere() => {
                expect(Verdict::Ok, "an answer after its own deadline is no grant (T1)")
            }
            (StoreKind::Redis, Client::RedisPy | Client::Naive) => {
                expect(Verdict::Overlap, "it takes the answer for a grant")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    /// A itself waits for its answer, and nobody has the lock meanwhile.
    fn idle_limit(&self) -> Duration {
        LATE * 3
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            // Once in peace, so that it is the answer to the claim that is late.
            let first = a.acquire(TTL).await?;
            a.release(&first).await?.expect(Came::Yes).await?;
            stage.weather_to_store(&a, Weather::SlowReplies(LATE))?;
            let asked = crate::agent::now();
            let (old, asks) = a.begin_to_acquire(SHORT, Some(Duration::ZERO), false).await?;
            let (came, _) = asks.came().await?;
            let late = u128::from(crate::agent::now() - asked) >= LATE.as_nanos();
            stage.weather_to_store(&a, Weather::Fair)?;
            b.acquire(TTL).await?;
            if came == Came::Yes {
                a.release(&old).await?.came().await?;
            }
            Ok(if late { Reached::Yes } else { Reached::No("the answer was not late".to_owned()) })
        })
    }
}

const SHORT: Duration = Duration::from_millis(250);
/// Longer than that, also where TTLs are whole seconds, and shorter than the clients' own limit for one answer.
const LATE: Duration = Duration::from_millis(1200);

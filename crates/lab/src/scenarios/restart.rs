//! The server is killed and comes back with its data.

use fencepost_core::store::BoxFuture;

use super::scenes::{finishes, takes_and_reads};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct Restart;

impl Scenario for Restart {
    fn about(&self) -> About {
        About {
            name: "restart",
            title: "The server is killed and restarted with its data",
            why: "A restart is ordinary. A store that keeps what it answered keeps the lock.",
            steps: &[
                "A takes the lock and reads",
                "the server is killed and started again with what it had on its disk; where there are several, one of them, the master if \
                 there is one",
                "B tries to get the lock, and does not",
                "A writes and gives back; B gets it",
            ],
            source: "the Redis documentation of persistence",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File, Client::Library) => subject.not_here(
                "a directory has no server; a host that restarts ends all processes there, as in `holder-killed`, and the fences                  are on its disk",
            ),
            (StoreKind::PostgresSession, _) => {
                expect(Verdict::OverlapFenced, "its session ends with the server; its holder is told, and has a fence")
            }
            (StoreKind::Redlock, Client::Library) => expect(Verdict::Ok, "the four others are a majority without it"),
            (_, Client::Library) if subject.everywhere() => expect(Verdict::Ok, "what was answered was written down"),
            (StoreKind::Redis, Client::RedisPy | Client::Naive) => {
                expect(Verdict::Ok, "what was answered was written down")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL * 4).await?;
            stage.inflict(ServerFault::Restart).await?;
            let (new, tries) = b.begin_to_acquire(TTL, Some(TTL / 5), true).await?;
            let taken = tries.came().await?.0 == Came::Yes;
            if taken {
                b.read(&new).await?.expect(Came::Yes).await?;
            }
            finishes(&mut a, &old).await?;
            if !taken {
                b.acquire(TTL).await?;
            }
            Ok(Reached::Yes)
        })
    }
}

//! A server that wakes carries out what nobody waits for any more.

use fencepost_core::store::BoxFuture;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct ServerWakes;

impl Scenario for ServerWakes {
    fn about(&self) -> About {
        About {
            name: "server-wakes",
            title: "A frozen server wakes and grants to nobody",
            why: "A request that timed out is still in the server's socket. It runs when the server does, and a lock is held by nobody.",
            steps: &[
                "The server is stopped (SIGSTOP)",
                "A asks for the lock and gives up",
                "the server runs on, and carries A's request out",
                "B asks for the lock",
            ],
            source: "seen in this laboratory: a request outlives the client that gave it up",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File, _) => subject.not_here("a directory has no server"),
            (_, Client::Library) if subject.everywhere() => {
                expect(Verdict::Ok, "what was given up is undone in the background (C1)")
            }
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            stage.inflict(ServerFault::Freeze).await?;
            let (_, asks) = a.begin_to_acquire(TTL * 4, Some(TTL / 5), true).await?;
            let (came, why) = asks.came().await?;
            stage.inflict(ServerFault::Thaw).await?;
            b.acquire(TTL).await?;
            Ok(if came == Came::Failed { Reached::Yes } else { Reached::No(format!("A was answered: {why}")) })
        })
    }
}

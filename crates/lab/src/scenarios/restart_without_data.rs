//! The server comes back with nothing, or the directory is emptied.

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works, wakes_and_looks};
use crate::{
    agent::Client,
    scenario::{About, Expected, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct RestartWithoutData;

impl Scenario for RestartWithoutData {
    fn about(&self) -> About {
        About {
            name: "restart-without-data",
            title: "The store comes back without its data",
            why: "A server without persistence forgets its locks with its memory, and nobody is told.",
            steps: &[
                "A takes the lock and reads",
                "A is busy (SIGSTOP) while the store loses everything",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "Sanfilippo, Distributed locks with Redis: delayed restarts",
        }
    }

    fn expects(&self, subject: Subject) -> Option<Expected> {
        match (subject.store, subject.client) {
            (StoreKind::File, Client::Library) => {
                expect(Verdict::DoubleGrant, "a directory that was emptied knows nothing of its locks")
            }
            (StoreKind::Redis, Client::Library | Client::RedisPy | Client::Naive) => {
                expect(Verdict::DoubleGrant, "the server has forgotten what it granted")
            }
            _ => None,
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player("a").await?;
            let old = takes_and_reads(&mut a, TTL * 4).await?;
            a.pause()?;
            stage.inflict(ServerFault::RestartEmpty).await?;
            let mut b = stage.player("b").await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

//! The holder's host vanishes: nobody is told that its connections are over.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::takes_and_reads;
use crate::{
    agent::Came,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL, pause},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct HolderVanishes;

/// Nothing that was sent before is on its way any more.
const ARRIVED: Duration = Duration::from_millis(20);

impl Scenario for HolderVanishes {
    fn about(&self) -> About {
        About {
            name: "holder-vanishes",
            title: "The holder's host vanishes",
            why: "A process that dies closes its connections. A machine that loses its power, or its network, does not.",
            steps: &[
                "A takes the lock and reads; B waits for it",
                "nothing passes any more between A and the store, and A is killed: its connections stay open at the server",
                "B gets it",
            ],
            source: "Gray and Cheriton, Leases (1989); the manual page tcp(7) on keepalive",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            _ if !subject.everywhere() => Err(NotPlayed::Apart),
            (StoreKind::File, _) => subject.not_here("whoever uses a directory is on its host, and vanishes with it"),
            (StoreKind::PostgresSession, _) => subject.not_here(
                "the server gives a vanished host up after 35 s, which is longer than a story here may take; and only where the \
                 host's kernel is gone as well",
            ),
            _ => expect(Verdict::Blocked, "nobody can tell a host that is gone from a slow one before the TTL is over"),
        }
    }

    fn cuts_the_network(&self) -> bool {
        true
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            takes_and_reads(&mut a, TTL).await?;
            let (new, waits) = b.begin_to_acquire(TTL, None, true).await?;
            stage.cut_off(&a).await?;
            pause(ARRIVED).await;
            a.kill().await?;
            waits.expect(Came::Yes).await?;
            b.read(&new).await?.expect(Came::Yes).await?;
            b.release(&new).await?.came().await?;
            Ok(Reached::Yes)
        })
    }
}

//! The holder loses the store and not the resource.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct CutOff;

impl Scenario for CutOff {
    fn about(&self) -> About {
        About {
            name: "cut-off",
            title: "The holder is cut off from the store",
            why: "It could go on writing for ever. It must know by itself when to stop.",
            steps: &[
                "A takes the lock and reads",
                "A is cut off from the store; it still reaches the resource",
                "where no TTL would end it, an administrator ends A's session, and A cannot hear of it",
                "B gets the lock when the lease is over, reads and writes",
                "A looks at its lease, and writes if it still believes",
            ],
            source: "redis-semaphore issues 9 and 24",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File, _) => subject.not_here("no network lies between a directory and who uses it"),
            _ if !subject.everywhere() => Err(NotPlayed::Apart),
            (StoreKind::PostgresSession, Client::Library) => expect(
                Verdict::OverlapFenced,
                "it believes for 15 s after its last answer, and an administrator may end its session sooner: only the fence helps",
            ),
            (_, Client::Library) => {
                expect(Verdict::Ok, "the holder is told at its deadline, before the store passes the lock on (L1)")
            }
            (_, Client::RedisPy) => expect(Verdict::Overlap, "nobody tells its holder"),
            (_, Client::Kazoo) => expect(Verdict::Ok, "who asks is told that the session is in doubt"),
            (_, Client::Etcdctl) => expect(Verdict::Overlap, "its command runs on until the lease is known to be over"),
            (_, Client::Naive) => expect(Verdict::Overlap, "it never looks, and writes"),
            (_, Client::Monotonic | Client::Counter | Client::Advisory) => Err(NotPlayed::Apart),
        }
    }

    /// The lock is wanted from the cut on, and nobody can have it before the lease is over.
    fn idle_limit(&self) -> Duration {
        TTL * 3
    }

    fn cuts_the_network(&self) -> bool {
        true
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            let old = takes_and_reads(&mut a, TTL).await?;
            stage.cut_off(&a).await?;
            if !stage.subject.expires() {
                stage.freed(&old, "its session was ended");
                stage.inflict(ServerFault::EndSessions).await?;
            }
            takes_and_works(&mut b).await?;
            if a.check(&old).await?.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

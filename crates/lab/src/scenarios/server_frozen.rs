//! The server stands still for longer than a TTL.

use fencepost_core::store::BoxFuture;

use super::scenes::{gives_back_in_the_end, takes_and_reads};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, THINKS, TTL, pause},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct ServerFrozen;

impl Scenario for ServerFrozen {
    fn about(&self) -> About {
        About {
            name: "server-frozen",
            title: "The server is frozen",
            why: "Nobody can renew and nobody can take. The holder must stop in time, and everybody must go on when the server does.",
            steps: &[
                "A takes the lock; B waits",
                "the server is stopped (SIGSTOP) for longer than the TTL; where there are several, all of them",
                "A's lease ends without an answer",
                "the server runs on; B gets the lock; A looks, and writes if it still believes",
                "where nothing expires: B tries in vain, A writes and gives back, and B gets it",
            ],
            source: "Kleppmann, How to do distributed locking (2016): a server can be paused as well",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::File, _) => subject.not_here("a directory has no server"),
            (StoreKind::PostgresSession, Client::Library) => {
                expect(Verdict::Ok, "no TTL ends a session, and its holder believes for 15 s without an answer")
            }
            (_, Client::Library) if subject.everywhere() => {
                expect(Verdict::Blocked, "safe, since the holder stops at its deadline")
            }
            // Whether the session of a naive client of ZooKeeper outlives that hangs on what the server does first when it wakes.
            (StoreKind::Redis | StoreKind::Etcd, Client::Naive) => expect(Verdict::Overlap, "its holder never stops"),
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL).await?;
            if !stage.subject.expires() {
                stage.inflict(ServerFault::Freeze).await?;
                pause(TTL * 2).await;
                stage.inflict(ServerFault::Thaw).await?;
                gives_back_in_the_end(&mut a, &old, &mut b).await?;
                return Ok(Reached::Yes);
            }
            let (new, waits) = b.begin_to_acquire(TTL, None, true).await?;
            pause(TTL / 5).await;
            stage.inflict(ServerFault::Freeze).await?;
            pause(TTL * 2).await;
            stage.inflict(ServerFault::Thaw).await?;
            waits.expect(Came::Yes).await?;
            b.read(&new).await?.expect(Came::Yes).await?;
            pause(THINKS).await;
            b.write(&new).await?.expect(Came::Yes).await?;
            pause(THINKS).await;
            if a.check(&old).await?.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

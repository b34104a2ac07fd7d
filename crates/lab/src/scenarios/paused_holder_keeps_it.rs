//! A stopped holder keeps a lock that does not expire.

use fencepost_core::store::BoxFuture;

use crate::{
    agent::Came,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct PausedHolderKeepsIt;

impl Scenario for PausedHolderKeepsIt {
    fn about(&self) -> About {
        About {
            name: "paused-holder-keeps-it",
            title: "A paused holder keeps it",
            why: "Where the lock lives as long as its process, a pause is only a wait: nobody else gets it.",
            steps: &[
                "A takes the lock and reads",
                "A is paused for longer than a TTL",
                "B tries for that long, and gets nothing",
                "A wakes and writes, gives back, and B gets it",
            ],
            source: "the manual page flock(2)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.expires() {
            true => subject.not_here("its grants end with their TTL, as in `kleppmann-pause`"),
            false => expect(Verdict::Ok, "nothing expires, so nothing can expire wrongly"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let grant = a.acquire(TTL).await?;
            a.read(&grant).await?.expect(Came::Yes).await?;
            a.pause()?;
            let write = a.write(&grant).await?;
            let (_, tries) = b.begin_to_acquire(TTL, Some(TTL * 2), true).await?;
            let (came, _) = tries.came().await?;
            a.wake()?;
            write.came().await?;
            a.release(&grant).await?.came().await?;
            match came {
                Came::No => {
                    b.acquire(TTL).await?;
                }
                Came::Yes | Came::Failed => stage.note("B got the lock of a paused holder"),
            }
            Ok(Reached::Yes)
        })
    }
}

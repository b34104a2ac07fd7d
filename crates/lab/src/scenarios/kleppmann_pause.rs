//! Kleppmann's pause: a holder that is stopped beyond its lease, and acts when it wakes.

use fencepost_core::store::BoxFuture;

use super::scenes::takes_and_reads;
use crate::{
    agent::Came,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{LOCK, Stage, THINKS, TTL, pause},
    stand::ServerFault,
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct KleppmannPause;

impl Scenario for KleppmannPause {
    fn about(&self) -> About {
        About {
            name: "kleppmann-pause",
            title: "Kleppmann's pause",
            why: "No client can prevent it: whatever it looks at before it writes, it can be paused after the look. Only the resource can refuse.",
            steps: &[
                "A takes the lock, reads, and looks at its lease: still held",
                "A is paused (SIGSTOP) with its write about to be sent",
                "the lease ends (where none does, an administrator breaks the lock); B takes it, reads and writes",
                "A wakes, and its write leaves at once",
            ],
            source: "Kleppmann, How to do distributed locking (2016)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        if !subject.everywhere() {
            return Err(NotPlayed::Apart);
        }
        match subject.fenced() {
            true => expect(Verdict::OverlapFenced, "the resource has seen the newer fence and refuses the older one"),
            false => expect(Verdict::Overlap, "the resource cannot know that the write is late"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL).await?;
            a.check(&old).await?.expect(Came::Yes).await?;
            a.pause()?;
            let late = a.write(&old).await?;
            let (new, waits) = b.begin_to_acquire(TTL, None, true).await?;
            if !stage.subject.expires() {
                stage.freed(&old, "broken by force");
                stage.inflict(ServerFault::Break(LOCK)).await?;
            }
            waits.expect(Came::Yes).await?;
            b.read(&new).await?.expect(Came::Yes).await?;
            pause(THINKS).await;
            b.write(&new).await?.expect(Came::Yes).await?;
            pause(THINKS).await;
            a.wake()?;
            late.came().await?;
            b.release(&new).await?.came().await?;
            Ok(Reached::Yes)
        })
    }
}

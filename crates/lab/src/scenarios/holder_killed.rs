//! The holder dies, and somebody waits.

use fencepost_core::store::BoxFuture;

use crate::{
    agent::Came,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct HolderKilled;

impl Scenario for HolderKilled {
    fn about(&self) -> About {
        About {
            name: "holder-killed",
            title: "The holder is killed",
            why: "A dead holder cannot give back. Either the store notices, or everybody waits for the TTL.",
            steps: &["A takes the lock", "B waits for it", "A is killed with SIGKILL", "B gets it"],
            source: "Gray and Cheriton, Leases (1989)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        if !subject.everywhere() {
            return Err(NotPlayed::Apart);
        }
        match subject.expires() {
            true => expect(Verdict::Blocked, "nobody can tell a dead holder from a slow one before the TTL is over"),
            false => expect(Verdict::Ok, "the lock ends with the process, or with its connection"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            a.acquire(TTL).await?;
            let (grant, waits) = b.begin_to_acquire(TTL, None, true).await?;
            a.kill().await?;
            waits.expect(Came::Yes).await?;
            b.release(&grant).await?.expect(Came::Yes).await?;
            Ok(Reached::Yes)
        })
    }
}

//! Redlock's clock jump: the server that both majorities share loses track of time.

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works, wakes_and_looks};
use crate::{
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::{ServerFault, Side},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct RedlockClockJump;

impl Scenario for RedlockClockJump {
    fn about(&self) -> About {
        About {
            name: "redlock-clock-jump",
            title: "Redlock's clock jump",
            why: "Two majorities share at least one server. If that one ends a lease early, both majorities can be had.",
            steps: &[
                "A reaches servers 1, 2, 3; B reaches 3, 4, 5",
                "A takes the lock with 1, 2, 3 and reads, and is busy (SIGSTOP)",
                "the wall clock of 3 jumps forward by an hour",
                "B takes the lock with 3, 4, 5, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "Kleppmann, How to do distributed locking (2016)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.store {
            StoreKind::Redlock => expect(Verdict::DoubleGrant, "the algorithm rests on clocks that do not jump"),
            _ => subject.not_here("it is about Redlock: `server-clock-jumps` is the same for one server"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_from("a", Side::Left).await?;
            let mut b = stage.player_from("b", Side::Right).await?;
            let old = takes_and_reads(&mut a, TTL * 6).await?;
            a.pause()?;
            stage.inflict(ServerFault::JumpClock).await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

//! The server that both majorities share comes back without its data.

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works, wakes_and_looks};
use crate::{
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::{ServerFault, Side},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct RedlockNodeForgets;

impl Scenario for RedlockNodeForgets {
    fn about(&self) -> About {
        About {
            name: "redlock-node-forgets",
            title: "A Redlock server comes back without its data",
            why: "The same with a server that was restarted and keeps nothing, and with no guard against restarts.",
            steps: &[
                "A reaches servers 1, 2, 3; B reaches 3, 4, 5",
                "A takes the lock with 1, 2, 3 and reads, and is busy (SIGSTOP)",
                "3 is killed and started again with nothing",
                "B takes the lock with 3, 4, 5, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "Sanfilippo, Distributed locks with Redis: delayed restarts; Kleppmann (2016)",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.store {
            StoreKind::Redlock => expect(
                Verdict::DoubleGrant,
                "with restart_guard=0 a server that forgot counts at once; leave the guard on",
            ),
            _ => subject.not_here("it is about Redlock: `restart-without-data` is the same for others"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_from("a", Side::Left).await?;
            let mut b = stage.player_from("b", Side::Right).await?;
            let old = takes_and_reads(&mut a, TTL * 6).await?;
            a.pause()?;
            stage.inflict(ServerFault::RestartEmpty).await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

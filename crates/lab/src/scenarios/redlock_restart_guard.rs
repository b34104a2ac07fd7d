//! The server in the middle of a Redlock comes back without its data, and is not counted until it can have promised nothing.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, wakes_and_looks};
use crate::{
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, THINKS, TTL, pause},
    stand::{ServerFault, Side},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct RedlockRestartGuard;

/// Everybody claims with the same: that is what the guard needs. Servers tell how long they are up in whole seconds.
const SAME: Duration = Duration::from_secs(2);

impl Scenario for RedlockRestartGuard {
    fn about(&self) -> About {
        About {
            name: "redlock-restart-guard",
            title: "A Redlock server comes back without its data, and is not counted",
            why: "A server that has been up for less than a TTL may have forgotten what it promised. One that is up for longer cannot: \
                  what it forgot is over.",
            steps: &[
                "The servers have been up for longer than a TTL, and restart_guard is left on",
                "A reaches servers 1, 2, 3; B reaches 3, 4, 5",
                "A takes the lock with 1, 2, 3 and reads, and is busy (SIGSTOP)",
                "3 is killed and started again with nothing",
                "B waits for the lock, with the same TTL, gets it with 3, 4, 5, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "Sanfilippo, Distributed locks with Redis: delayed restarts",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match subject.store {
            StoreKind::Redlock => {
                expect(Verdict::Ok, "a server counts again when all that it may have forgotten is over")
            }
            _ => subject.not_here("it is about Redlock"),
        }
    }

    /// B waits until the server in the middle counts again, which is up to a second after A's lease.
    fn idle_limit(&self) -> Duration {
        TTL * 3
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.guarded_player_from("a", Side::Left).await?;
            let mut b = stage.guarded_player_from("b", Side::Right).await?;
            // Until then no server counts.
            let old = takes_and_reads(&mut a, SAME).await?;
            a.pause()?;
            let paused = crate::agent::now();
            stage.inflict(ServerFault::RestartEmpty).await?;
            let in_time = u128::from(crate::agent::now() - paused) < SAME.as_nanos() / 2;
            let new = b.acquire(SAME).await?;
            b.read(&new).await?.came().await?;
            pause(THINKS).await;
            b.write(&new).await?.came().await?;
            pause(THINKS).await;
            wakes_and_looks(&mut a, &old).await?;
            Ok(if in_time {
                Reached::Yes
            } else {
                Reached::No("the server came back when A's lease was all but over".to_owned())
            })
        })
    }
}

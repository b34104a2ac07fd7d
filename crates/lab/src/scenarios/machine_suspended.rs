//! The holder's machine is suspended for longer than the lease lasts.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works};
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct MachineSuspended;

impl Scenario for MachineSuspended {
    fn about(&self) -> About {
        About {
            name: "machine-suspended",
            title: "The holder's machine is suspended",
            why: "While a machine sleeps its monotonic clock stands still, and with it the timers of most programs. To them no \
                  time has passed when it wakes.",
            steps: &[
                "A takes the lock and reads",
                "A's machine is suspended: its process stops, and its monotonic clock with it",
                "B gets the lock when the lease is over, reads and writes",
                "A's machine resumes: A looks at its lease, and writes if it still believes",
            ],
            source: "the manual page clock_gettime(2): CLOCK_MONOTONIC does not count time that the system is suspended",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (_, Client::Library) if subject.everywhere() && subject.expires() => {
                expect(Verdict::Ok, "its deadlines are read on a clock that counts while the machine sleeps (T2)")
            }
            (StoreKind::File, Client::Library) => {
                subject.not_here("nothing of it ends with time: a machine that sleeps keeps its locks, as in `paused-holder-keeps-it`")
            }
            (StoreKind::PostgresSession, Client::Library) => subject.not_here(
                "no TTL ends its locks: a machine that sleeps keeps them, as in `paused-holder-keeps-it`, for as long as its \
                 connections last",
            ),
            (_, Client::Monotonic) => expect(Verdict::Overlap, "by its clock no time has passed"),
            _ => Err(NotPlayed::Apart),
        }
    }

    /// The lock is wanted from the suspension on, and nobody can have it before the lease is over.
    fn idle_limit(&self) -> Duration {
        TTL * 3
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let clock = stage.wall_clock()?;
            let (mut a, mut b) = (stage.player_on("a", &clock).await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL).await?;
            a.suspend(&clock)?;
            takes_and_works(&mut b).await?;
            let look = a.check(&old).await?;
            a.resume(&clock)?;
            if look.came().await?.0 == Came::Yes {
                a.write(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

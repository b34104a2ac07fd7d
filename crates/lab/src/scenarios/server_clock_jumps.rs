//! The server's wall clock jumps past the end of the lease.

use fencepost_core::store::BoxFuture;

use super::scenes::{takes_and_reads, takes_and_works, wakes_and_looks};
use crate::{
    scenario::{About, Expected, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct ServerClockJumps;

impl Scenario for ServerClockJumps {
    fn about(&self) -> About {
        About {
            name: "server-clock-jumps",
            title: "The server's wall clock jumps",
            why: "Redis judges expiry by its wall clock. Whoever sets that clock ends leases, and their holders are not told.",
            steps: &[
                "A takes the lock and reads",
                "A is busy (SIGSTOP) while the server's wall clock jumps forward by an hour",
                "B takes the lock, reads and writes",
                "A runs on, looks at its lease, and writes if it still believes",
            ],
            source: "Kleppmann, How to do distributed locking (2016): Redis uses the wall clock",
        }
    }

    fn expects(&self, subject: Subject) -> Option<Expected> {
        match subject.store {
            StoreKind::Redis => {
                expect(Verdict::DoubleGrant, "the lease is over by the server's clock, and by no other")
            }
            _ => None,
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL * 4).await?;
            a.pause()?;
            stage.inflict(ServerFault::JumpClock).await?;
            takes_and_works(&mut b).await?;
            wakes_and_looks(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

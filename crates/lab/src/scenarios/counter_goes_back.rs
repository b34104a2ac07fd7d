//! A fence that is counted where it can be forgotten.

use fencepost_core::store::BoxFuture;

use super::scenes::takes_and_reads;
use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, THINKS, TTL, pause},
    stand::ServerFault,
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

/// How many fences are drawn that the replicas do not hear of.
const FORGOTTEN: usize = 5;

pub(super) struct CounterGoesBack;

impl Scenario for CounterGoesBack {
    fn about(&self) -> About {
        About {
            name: "counter-goes-back",
            title: "The fence's counter goes back with a failover",
            why: "A fence by INCR is as durable as its server. After a failover that lost its last steps it counts them again, and \
                  the resource refuses the rightful holder.",
            steps: &[
                "A takes the lock and gives it back, so that the counter stands at 1 everywhere",
                "the replicas are held back",
                "A takes the lock and gives it back five times, and takes it once more: its fence is 7",
                "A reads and writes",
                "the master is killed, and a replica is promoted that knows of one fence",
                "B takes the lock; its fence is 2, and the resource has seen 7",
            ],
            source: "Kleppmann, How to do distributed locking (2016): a counter on one Redis node is not enough",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::Sentinel, Client::Counter) => {
                expect(Verdict::DoubleGrant, "the new master counts on from what it has heard of")
            }
            _ => subject.not_here("it is about a fence that somebody counts beside the lock, in the second table"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player("a").await?;
            let first = a.acquire(TTL * 20).await?;
            a.release(&first).await?.expect(Came::Yes).await?;
            pause(THINKS).await; // for the replicas to hear of it
            stage.inflict(ServerFault::HoldReplication).await?;
            for _ in 0..FORGOTTEN {
                let grant = a.acquire(TTL * 20).await?;
                a.release(&grant).await?.expect(Came::Yes).await?;
            }
            let old = takes_and_reads(&mut a, TTL * 20).await?;
            a.write(&old).await?.expect(Came::Yes).await?;
            stage.inflict(ServerFault::CrashMaster).await?;
            let mut b = stage.player("b").await?;
            let new = b.acquire(TTL).await?;
            let refused = b.read(&new).await?.came().await?.0 == Came::No;
            match refused {
                true => Ok(Reached::Yes),
                false => Ok(Reached::No("the counter did not go back".to_owned())),
            }
        })
    }
}

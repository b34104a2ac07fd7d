//! A release that comes late deletes what another holds.

use fencepost_core::store::BoxFuture;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct DeleteAnothersLock;

impl Scenario for DeleteAnothersLock {
    fn about(&self) -> About {
        About {
            name: "delete-anothers-lock",
            title: "A late release deletes another's lock",
            why: "SET NX and DEL is what many write first. The DEL does not ask whose lock it deletes.",
            steps: &[
                "A takes the lock and is paused beyond its lease",
                "B gets it",
                "A wakes and gives back what it no longer has",
                "C tries to get the lock while B holds it",
            ],
            source: "the Redis documentation of SET; RedLock.net issue 93",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        if !subject.everywhere() {
            return Err(NotPlayed::Apart);
        }
        match subject.client {
            Client::Library if !subject.expires() => {
                subject.not_here("no grant ends before it is given back, so that none can be given back too late")
            }
            Client::Library => {
                expect(Verdict::Ok, "a release changes nothing that is not recorded under its owner (O2)")
            }
            Client::RedisPy => {
                expect(Verdict::Overlap, "it deletes nothing, and its holder is never told of the end of the lease")
            }
            Client::Naive => expect(Verdict::DoubleGrant, "B's lock is deleted, and C gets it while B holds"),
            Client::Kazoo | Client::Etcdctl | Client::Monotonic | Client::Counter | Client::Advisory => {
                Err(NotPlayed::Apart)
            }
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b, mut c) = (stage.player("a").await?, stage.player("b").await?, stage.player("c").await?);
            let old = a.acquire(TTL).await?;
            a.pause()?;
            let late = a.release(&old).await?;
            let (new, waits) = b.begin_to_acquire(TTL * 4, None, true).await?;
            waits.expect(Came::Yes).await?;
            a.wake()?;
            late.came().await?;
            let (third, tries) = c.begin_to_acquire(TTL, Some(TTL / 5), true).await?;
            if tries.came().await?.0 == Came::Yes {
                c.release(&third).await?.came().await?;
            }
            b.release(&new).await?.came().await?;
            Ok(Reached::Yes)
        })
    }
}

//! The answer to an acquire arrives after the lease is over.

use std::time::Duration;

use fencepost_core::store::BoxFuture;
use fencepost_servers::Weather;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct LateReply;

impl Scenario for LateReply {
    fn about(&self) -> About {
        About {
            name: "late-reply",
            title: "The grant arrives after its end",
            why: "A lease counts from before its request was sent. Whoever counts from the answer believes in what is over.",
            steps: &[
                "The network holds every answer to A back for longer than the TTL",
                "A asks for the lock",
                "B asks for it when A has its answer",
            ],
            source: "node-redlock issue 296",
        }
    }

    fn expects(&self, subject: Subject) -> Option<Expected> {
        match (subject.store, subject.client) {
            // etcd makes short TTLs longer than the answer takes, and a ZooKeeper session that short never begins.
            (StoreKind::Etcd | StoreKind::ZooKeeper, _) => None,
            (store, _) if !store.at_one_address() => None,
            (_, Client::Library) => expect(Verdict::Ok, "an answer after its own deadline is no grant (T1)"),
            (_, Client::RedisPy | Client::Naive) => expect(Verdict::Overlap, "it takes the answer for a grant"),
            (_, Client::Kazoo | Client::Etcdctl | Client::Monotonic | Client::Counter | Client::Advisory) => None,
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            stage.weather_to_store(&a, Weather::SlowReplies(SHORT * 3 / 2))?;
            let (old, asks) = a.begin_to_acquire(SHORT, None, false).await?;
            let (came, _) = asks.came().await?;
            stage.weather_to_store(&a, Weather::Fair)?;
            b.acquire(TTL).await?;
            if came == Came::Yes {
                a.release(&old).await?.came().await?;
            }
            Ok(Reached::Yes)
        })
    }
}

/// Shorter than the client's own limit for one call, with the delay.
const SHORT: Duration = Duration::from_millis(250);

//! The network delivers a request to take the lock once more, after the lock was given back.

use std::time::Duration;

use fencepost_core::store::BoxFuture;
use fencepost_servers::Weather;

use crate::{
    agent::{Came, Client},
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct DuplicateRequest;

/// The lock is given back long before.
const LATER: Duration = Duration::from_millis(500);

impl Scenario for DuplicateRequest {
    fn about(&self) -> About {
        About {
            name: "duplicate-request",
            title: "A request arrives twice",
            why: "A proxy that sends a request again after a timeout takes a lock for somebody who has given it back.",
            steps: &[
                "A takes the lock; the network keeps a copy of the request",
                "A gives it back",
                "half a second later the copy arrives, on another connection",
                "B asks for the lock",
            ],
            source: "Burrows, The Chubby lock service (2006), section 2.4: messages may be delivered late and out of order",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        use StoreKind::{Cluster, Etcd, File, Postgres, PostgresSession, Redis, Redlock, Sentinel, ZooKeeper};
        match (subject.store, subject.client) {
            (Redis | Sentinel | Cluster | Redlock, Client::Library) => {
                expect(Verdict::Blocked, "nobody renews what nobody wants, and it runs out after its TTL")
            }
            (File, _) => subject.not_here("no network lies between a directory and who uses it"),
            (Postgres | PostgresSession | Etcd | ZooKeeper, _) => subject.not_here(
                "its protocol is a conversation: a request means nothing on another connection, and on its own one TCP                  delivers nothing twice",
            ),
            _ => Err(NotPlayed::Apart),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            let observer = stage.observer().await?;
            stage.weather_to_store(&a, Weather::Duplicates(LATER))?;
            let grant = a.acquire(TTL).await?;
            stage.weather_to_store(&a, Weather::Fair)?;
            a.release(&grant).await?.expect(Came::Yes).await?;
            let again = observer.sees(&grant, LATER * 4).await?;
            b.acquire(TTL).await?;
            Ok(if again { Reached::Yes } else { Reached::No("the request was not seen to arrive again".to_owned()) })
        })
    }
}

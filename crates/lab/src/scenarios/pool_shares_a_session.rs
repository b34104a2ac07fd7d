//! Two clients of a pool, and one session behind it.

use fencepost_core::store::BoxFuture;

use super::scenes::{finishes, takes_and_reads, tries_and_works};
use crate::{
    agent::Client,
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL},
    subject::{StoreKind, Subject},
    verdict::Verdict,
};

pub(super) struct PoolSharesASession;

impl Scenario for PoolSharesASession {
    fn about(&self) -> About {
        About {
            name: "pool-shares-a-session",
            title: "A pool gives two clients the same session",
            why: "An advisory lock belongs to the session, and counts how often that session took it. A pooler in transaction mode \
                  gives one session to many.",
            steps: &[
                "A takes the lock and reads",
                "B tries to get the lock, and reads and writes if it has it",
                "A writes and gives back",
            ],
            source: "the PgBouncer documentation: session-level advisory locks do not work with transaction pooling",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        match (subject.store, subject.client) {
            (StoreKind::PgBouncer, Client::Library) => {
                expect(Verdict::Ok, "a row with an owner excludes whatever session it is written from")
            }
            (StoreKind::PgBouncer, Client::Advisory) => {
                expect(Verdict::DoubleGrant, "to PostgreSQL both are one, who takes its own lock again")
            }
            _ => subject.not_here("it is about a pool before PostgreSQL, in the second table"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
            let old = takes_and_reads(&mut a, TTL * 6).await?;
            tries_and_works(&mut b, TTL / 2).await?;
            finishes(&mut a, &old).await?;
            Ok(Reached::Yes)
        })
    }
}

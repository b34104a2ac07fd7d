//! The write is on its way for longer than the lease.

use std::time::Duration;

use fencepost_core::store::BoxFuture;
use fencepost_history::{Event, What};
use fencepost_servers::Weather;

use super::scenes::{takes_and_reads, takes_and_works};
use crate::{
    scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop, expect},
    stage::{Stage, TTL, pause},
    subject::Subject,
    verdict::Verdict,
};

pub(super) struct WriteInFlight;

impl Scenario for WriteInFlight {
    fn about(&self) -> About {
        About {
            name: "write-in-flight",
            title: "The write is on its way when the lock passes on",
            why: "A packet can be late. Its sender may be dead by the time it arrives, and nobody can call it back.",
            steps: &[
                "A takes the lock and reads",
                "A sends its write, which the network holds back; A is killed",
                "B gets the lock, reads and writes",
                "A's write arrives",
            ],
            source: "Burrows, The Chubby lock service (2006), section 2.4",
        }
    }

    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed> {
        if !subject.everywhere() {
            return Err(NotPlayed::Apart);
        }
        match subject.fenced() {
            true => expect(Verdict::OverlapFenced, "the resource has seen the newer fence and refuses the older one"),
            false => expect(Verdict::Overlap, "the resource cannot know that the write is late"),
        }
    }

    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>> {
        Box::pin(async move {
            let mut a = stage.player_behind_network("a").await?;
            let mut b = stage.player("b").await?;
            let old = takes_and_reads(&mut a, TTL).await?;
            stage.weather_to_resource(&a, Weather::SlowRequests(TTL * 2))?;
            let _never_answered = a.write(&old).await?;
            pause(SENT_WITHIN).await;
            a.kill().await?;
            let new = takes_and_works(&mut b).await?;
            let already = arrived(&stage.events(), &old);
            stage.until("the late write", |event| is_write(event, &old)).await?;
            b.release(&new).await?.came().await?;
            Ok(if already { Reached::No("the write was faster than B".to_owned()) } else { Reached::Yes })
        })
    }
}

/// The write has left its process by then, and is held by the network for much longer.
const SENT_WITHIN: Duration = Duration::from_millis(300);

fn arrived(events: &[Event], grant: &str) -> bool {
    events.iter().any(|event| is_write(event, grant))
}

fn is_write(event: &Event, wanted: &str) -> bool {
    matches!(&event.what, What::Write { grant, .. } if grant == wanted)
}

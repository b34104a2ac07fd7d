//! Taking a free lock and giving it back, alone or by several tasks on locks of their own.

use std::time::Duration;

use fencepost::{Acquired, Efficiency, Error, Locks, clock::Moment};

use crate::{
    floor::{Cycle, Measuring},
    ground::Ground,
    plan::Work,
    report::Outcome,
    rounds::contest,
    samples::Samples,
};

pub(super) async fn measure(ground: &Ground, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let names = ground.names(outcome.size);
    let ours = Ours(ground.client().await?);
    let mut floors = ground.floor.as_ref().map(|floor| floor.cycles()).unwrap_or_default();
    floors.retain(|floor| floor.at_once || outcome.size == 1);
    let contestants: Vec<&dyn Cycle> =
        std::iter::once(&ours as &dyn Cycle).chain(floors.iter().map(|floor| floor.cycle)).collect();
    let series = contest(span, &names, &contestants).await?;
    outcome.latency = Some(series[0].samples.latency());
    outcome.per_second = Some(series[0].per_second());
    for (floor, theirs) in floors.iter().zip(&series[1..]) {
        let (ratio, goal) = match outcome.work {
            Work::Tasks => (series[0].throughput_ratio(theirs), floor.throughput_goal),
            _ => (series[0].latency_ratio(theirs), floor.time_goal),
        };
        outcome.against.push(floor.against(&theirs.samples, Some(theirs.per_second()), ratio, goal));
    }
    ours.0.close().await;
    Ok(outcome)
}

struct Ours(Locks<Efficiency>);

impl Cycle for Ours {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            samples
                .fill(until, async || {
                    // Nobody else uses the name.
                    if let Acquired(mut lease) = self.0.lock(name).acquire().await? {
                        lease.release().await?;
                    }
                    Ok(())
                })
                .await
        })
    }
}

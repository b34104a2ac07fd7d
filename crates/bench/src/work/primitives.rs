//! What is built from locks, taken and given back while it is free, next to the plain lock of the same store.

use std::time::Duration;

use fencepost::{Efficiency, Error, Locks, clock::Moment};

use super::granted;
use crate::{
    floor::{Cycle, Measuring},
    ground::Ground,
    report::{Figure, Outcome},
    rounds::contest,
    samples::Samples,
};

pub(super) async fn measure(ground: &Ground, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let locks = ground.client().await?;
    let store = locks.capabilities();
    let kinds = [Kind::Lock, Kind::Reader, Kind::Permit, Kind::Downgraded, Kind::Three];
    let possible = kinds.into_iter().filter(|kind| match kind {
        Kind::Reader | Kind::Downgraded => store.shared,
        Kind::Permit => store.permits,
        Kind::Lock | Kind::Three => true,
    });
    let ours: Vec<_> = possible.map(|kind| Ours { locks: &locks, kind }).collect();
    let contestants: Vec<&dyn Cycle> = ours.iter().map(|ours| ours as &dyn Cycle).collect();
    let series = contest(span, &ground.names(1), &contestants).await?;
    outcome.latency = Some(series[0].samples.latency());
    outcome.per_second = Some(series[0].per_second());
    for (ours, series_of) in ours.iter().zip(&series).skip(1) {
        let name = format!("{}, times a plain lock", ours.kind.words());
        outcome.figures.push(Figure::new(name, series_of.latency_ratio(&series[0]), ""));
    }
    if !(store.shared && store.permits) {
        outcome.notes.push("the store has no shared locks, or no permits".into());
    }
    locks.close().await;
    Ok(outcome)
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Lock,
    Reader,
    Permit,
    Downgraded,
    Three,
}

impl Kind {
    fn words(self) -> &'static str {
        match self {
            Kind::Lock => "a lock",
            Kind::Reader => "a reader",
            Kind::Permit => "one of 100 permits",
            Kind::Downgraded => "a writer that becomes a reader",
            Kind::Three => "three locks at once",
        }
    }
}

struct Ours<'a> {
    locks: &'a Locks<Efficiency>,
    kind: Kind,
}

impl Cycle for Ours<'_> {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            // Each kind on a name of its own: what a release leaves behind must not weigh on the next kind.
            let name = format!("{name}/{:?}", self.kind);
            let three = [1, 2, 3].map(|number| format!("{name}/{number}"));
            let (read_write, semaphore) = (self.locks.read_write(&name), self.locks.semaphore(&name, 100));
            samples
                .fill(until, async || match self.kind {
                    Kind::Lock => granted(self.locks.lock(&name).acquire().await?)?.release().await.map(drop),
                    Kind::Reader => granted(read_write.read().acquire().await?)?.release().await.map(drop),
                    Kind::Permit => granted(semaphore.permits(1).acquire().await?)?.release().await.map(drop),
                    Kind::Downgraded => {
                        let writer = granted(self.locks.lock(&name).acquire().await?)?;
                        writer.downgrade().await?.release().await.map(drop)
                    }
                    Kind::Three => granted(self.locks.several(&three).acquire().await?)?.release().await.map(drop),
                })
                .await
        })
    }
}

//! Contestants that take turns, so that what else the machine does falls on all of them.

use std::time::Duration;

use fencepost::Error;
use futures_util::future::join_all;

use crate::{
    floor::Cycle,
    samples::{Samples, median, now},
};

/// How long one contestant goes on before it is the next one's turn.
const TURN: Duration = Duration::from_millis(40);

/// What one contestant did over all rounds.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) samples: Samples,
    rounds: Vec<Round>,
}

#[derive(Clone, Copy, Debug)]
struct Round {
    p50_us: f64,
    per_second: f64,
}

impl Series {
    pub(crate) fn per_second(&self) -> f64 {
        median(self.rounds.iter().map(|round| round.per_second).collect())
    }

    /// The median over the rounds of our time by theirs.
    pub(crate) fn latency_ratio(&self, floor: &Series) -> f64 {
        median(self.pairs(floor).map(|(ours, theirs)| ours.p50_us / theirs.p50_us).collect())
    }

    /// The median over the rounds of our throughput by theirs.
    pub(crate) fn throughput_ratio(&self, floor: &Series) -> f64 {
        median(self.pairs(floor).map(|(ours, theirs)| ours.per_second / theirs.per_second).collect())
    }

    fn pairs<'a>(&'a self, floor: &'a Series) -> impl Iterator<Item = (&'a Round, &'a Round)> {
        self.rounds.iter().zip(&floor.rounds)
    }

    fn close_round(&mut self, samples: &Samples, took: Duration) {
        self.rounds.push(Round { p50_us: samples.p50_us(), per_second: samples.count() as f64 / took.as_secs_f64() });
        self.samples.add(samples);
    }
}

/// Lets the contestants take turns for `span`, each with `tasks` cycles at once on names of their own.
pub(crate) async fn contest(
    span: Duration,
    names: &[String],
    contestants: &[&dyn Cycle],
) -> Result<Vec<Series>, Error> {
    contest_in_turns_of(TURN, span, names, contestants).await
}

/// The same in longer turns, or shorter ones.
pub(crate) async fn contest_in_turns_of(
    most: Duration,
    span: Duration,
    names: &[String],
    contestants: &[&dyn Cycle],
) -> Result<Vec<Series>, Error> {
    // Whatever is done once (a script sent, a file made) is done before it counts.
    for contestant in contestants {
        turn(*contestant, names, Duration::ZERO).await?;
    }
    let length = most.min(span / (2 * contestants.len().max(1)) as u32);
    let until = now().after(span);
    let mut series: Vec<_> = contestants.iter().map(|_| Series::default()).collect();
    for first in 0.. {
        // Each leads in turn: who follows whom must not matter.
        for offset in 0..contestants.len() {
            let index = (first + offset) % contestants.len();
            let began = now();
            let samples = turn(contestants[index], names, length).await?;
            series[index].close_round(&samples, now().since(began));
        }
        if now() >= until {
            break;
        }
    }
    Ok(series)
}

async fn turn(contestant: &dyn Cycle, names: &[String], length: Duration) -> Result<Samples, Error> {
    let until = now().after(length);
    let mut all: Vec<_> = names.iter().map(|_| Samples::default()).collect();
    let running = names.iter().zip(&mut all).map(|(name, samples)| contestant.run(name, until, samples));
    for done in join_all(running).await {
        done?;
    }
    let mut sum = Samples::default();
    all.iter().for_each(|samples| sum.add(samples));
    Ok(sum)
}

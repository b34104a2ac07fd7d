//! The works, each measured next to its floor.

mod crowds;
mod fairness;
mod handover;
mod leases;
mod primitives;
mod startup;
mod taking;
pub(crate) mod transfers;

pub use fairness::{PassedOver, passed_over};

use std::time::Duration;

use fencepost::{Attempt, Error, ErrorKind, error::Operation};

use crate::{
    ground::Ground,
    plan::{Part, Plan, Work},
    report::Outcome,
};

/// Measures one part for about `span`.
pub(crate) async fn measure(ground: &Ground, plan: &Plan, part: &Part, span: Duration) -> Result<Outcome, Error> {
    let outcome = Outcome::of(part.work, part.size);
    match part.work {
        Work::Alone | Work::Tasks => taking::measure(ground, outcome, span).await,
        Work::HandOver => handover::measure(ground, outcome, span).await,
        Work::Leases => leases::measure(ground, outcome, span).await,
        Work::Startup => startup::measure(ground, plan, outcome, span),
        Work::Primitives => primitives::measure(ground, outcome, span).await,
        Work::Crowds => crowds::measure(ground, outcome, span).await,
        Work::Fairness => fairness::measure(ground, outcome, span).await,
        Work::Transfers => transfers::measure(ground, plan, outcome, span).await,
    }
}

/// What was acquired. Nobody else uses our names.
fn granted<T>(attempt: Attempt<T>) -> Result<T, Error> {
    attempt.acquired().ok_or_else(|| broken("a name of ours is held by another".into()))
}

fn broken(what: String) -> Error {
    Error::new(ErrorKind::Unavailable, Operation::Wait, what)
}

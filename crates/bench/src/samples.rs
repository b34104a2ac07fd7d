//! Durations, counted into a histogram.

use std::time::Duration;

use fencepost::{
    Error,
    clock::{BootClock, Clock, Moment},
};
use hdrhistogram::Histogram;

use crate::report::Latency;

/// What one contestant needed, time after time.
#[derive(Clone, Debug)]
pub(crate) struct Samples(Histogram<u64>);

impl Default for Samples {
    fn default() -> Self {
        // Nanoseconds, exact to a part in a thousand. Three digits are what the crate takes for sure.
        Self(Histogram::new(3).expect("three significant digits are allowed"))
    }
}

impl Samples {
    pub(crate) fn record(&mut self, took: Duration) {
        // It grows by itself, and no time that fits an hour is beyond it.
        let _ = self.0.record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1));
    }

    /// Does `once` again and again until the moment is there, and at least once.
    pub(crate) async fn fill(
        &mut self,
        until: Moment,
        mut once: impl AsyncFnMut() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut before = now();
        loop {
            once().await?;
            let after = now();
            self.record(after.since(before));
            if after >= until {
                return Ok(());
            }
            before = after;
        }
    }

    pub(crate) fn add(&mut self, other: &Samples) {
        // Both grow by themselves, so that everything fits.
        let _ = self.0.add(&other.0);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len()
    }

    pub(crate) fn p50_us(&self) -> f64 {
        self.0.value_at_quantile(0.5) as f64 / 1e3
    }

    pub(crate) fn latency(&self) -> Latency {
        let p99_us = self.0.value_at_quantile(0.99) as f64 / 1e3;
        Latency { p50_us: self.p50_us(), p99_us, samples: self.count() }
    }
}

/// The clock that everything here is measured by.
pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// The one in the middle; not a number when there is none.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

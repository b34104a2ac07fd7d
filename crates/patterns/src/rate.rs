//! So many in a span and no more, for all processes together.
//!
//! GCRA, the generic cell rate algorithm: one moment for each key says when the next one would come if they came evenly, and it may run
//! ahead of the clock by the burst. So there is no window whose edge lets twice as many through, nothing to count and nothing to
//! clean up. The clock is the store's, so that those of the processes need not agree.
//!
//! | where | clock | what it survives |
//! |---|---|---|
//! | `rate::redis` (feature `redis`) | the server's wall clock | what the server keeps; a failover can let a burst through again |
//! | `rate::postgres` (feature `postgres`) | the server's wall clock | what the database keeps |
//! | [`rate::file`](mod@file), on Linux | the machine's clock since its start, which counts time asleep | `kill -9`; a restart of the machine begins anew |
//!
//! When a wall clock jumps forward, a burst is let through early; when it jumps back, nothing more is denied than the burst, since a
//! moment that lies further ahead than that cannot be ours and is taken back to it.

pub mod file;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

use std::time::Duration;

use fencepost_core::error::{Error, ErrorKind, Operation};

/// How many may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Between two that come evenly.
    pub(crate) interval: Duration,
    pub(crate) burst: u32,
}

/// Whether it was let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Yes.
    Through {
        /// How many more could come at once now.
        left: u32,
    },
    /// No, and nothing was counted.
    Denied {
        /// After how long it would be, if nobody else comes meanwhile. [`Duration::MAX`] for more at once than the burst.
        retry_in: Duration,
    },
}

impl Rate {
    /// `count` in each `span`, evenly, of which `burst` may come at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for none, a burst of none, less than a microsecond between two, or a burst that lasts longer than a
    /// year.
    pub fn new(count: u32, span: Duration, burst: u32) -> Result<Self, Error> {
        const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);
        let interval = span.checked_div(count).unwrap_or_default();
        let lasts = interval.checked_mul(burst).unwrap_or(Duration::MAX);
        if interval < Duration::from_micros(1) || burst == 0 || lasts > YEAR {
            let said = format!("{count} in {span:?}, {burst} at once, is no rate");
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Parse, said).not_applied().advise(
                "say at least one of each, a microsecond or more between two, and a burst that lasts a year at most",
            ));
        }
        Ok(Self { interval, burst })
    }

    pub(crate) fn interval_micros(self) -> i64 {
        self.interval.as_micros() as i64 // at most a year
    }

    /// How far the moment may run ahead of the clock.
    pub(crate) fn ahead_micros(self) -> i64 {
        self.interval_micros() * i64::from(self.burst)
    }

    /// What a moment that is this far ahead of the clock leaves, or lacks.
    pub(crate) fn decide(self, through: bool, micros: i64) -> Decision {
        if through {
            let left = micros / self.interval_micros();
            Decision::Through { left: u32::try_from(left).unwrap_or_default() }
        } else {
            Decision::Denied { retry_in: Duration::from_micros(u64::try_from(micros).unwrap_or_default()) }
        }
    }

    /// More at once than the burst never get through.
    pub(crate) fn never(self, count: u32) -> Option<Decision> {
        (count > self.burst).then_some(Decision::Denied { retry_in: Duration::MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senseless_rates_are_refused() {
        let second = Duration::from_secs(1);
        for (count, span, burst) in
            [(0, second, 1), (1, Duration::ZERO, 1), (1, second, 0), (2_000_000, second, 1), (1, Duration::MAX, 1)]
        {
            assert_eq!(Rate::new(count, span, burst).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(Rate::new(10, second, 3).unwrap().interval, Duration::from_millis(100));
    }
}

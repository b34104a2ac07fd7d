//! How long: the time to live of a lease and the time a caller is willing to wait (T3).

use std::time::Duration;

use crate::error::{Error, ErrorKind, Operation};

/// The most permits of one claim. Each is a slot of its own that somebody else may have next.
pub const MOST_PERMITS: u32 = 1_000;

/// The time to live of a lease: what the store is asked to grant, in whole milliseconds.
///
/// Between [`Ttl::MIN`] and [`Ttl::MAX`]. It is a different thing from the waiting time
/// ([`Wait`]) and never optional on a store that expires. Stores that do not expire ignore it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// Ten milliseconds. Below it the drift allowance and one round trip eat the whole lease.
    pub const MIN: Duration = Duration::from_millis(10);
    /// 365 days.
    pub const MAX: Duration = Duration::from_secs(365 * 24 * 60 * 60);
    /// Thirty seconds, renewed every ten (R1).
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(30));

    /// Checks `ttl`; a fraction of a millisecond is rounded up, so that nothing is truncated to zero.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] when it lies outside [`Ttl::MIN`] ..= [`Ttl::MAX`].
    pub fn new(ttl: Duration) -> Result<Self, Error> {
        if !(Self::MIN..=Self::MAX).contains(&ttl) {
            let said = format!("a TTL of {ttl:?} is outside the limits of 10 ms to 365 days");
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Parse, said).not_applied());
        }
        let millis = ttl.as_nanos().div_ceil(1_000_000);
        // At most 365 days in milliseconds, which fits.
        Ok(Self(Duration::from_millis(millis as u64)))
    }

    /// The TTL as a duration.
    pub fn get(self) -> Duration {
        self.0
    }

    /// The TTL in milliseconds, at least [`Ttl::MIN`].
    pub fn millis(self) -> u64 {
        self.0.as_millis() as u64
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// How long an acquire may take altogether, connecting included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// Ask the store once and take its answer.
    Once,
    /// Wait for at most this long.
    AtMost(Duration),
    /// Wait as long as it takes.
    #[default]
    Forever,
}

impl Wait {
    /// What is left of it when this much time has passed.
    pub fn left_after(self, passed: Duration) -> Self {
        match self {
            Wait::AtMost(limit) => Wait::from(limit.saturating_sub(passed)),
            Wait::Once | Wait::Forever => self,
        }
    }
}

impl From<Duration> for Wait {
    /// Less than a millisecond means "try once": no queue is worth entering for that long.
    fn from(limit: Duration) -> Self {
        if limit < Duration::from_millis(1) { Wait::Once } else { Wait::AtMost(limit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t3_a_ttl_is_never_zero_and_never_truncated() {
        for bad in [Duration::ZERO, Duration::from_millis(1), Ttl::MAX + Duration::from_nanos(1)] {
            assert_eq!(Ttl::new(bad).unwrap_err().kind(), ErrorKind::InvalidInput);
        }
        assert_eq!(Ttl::new(Duration::from_micros(10_001)).unwrap().millis(), 11);
        assert_eq!(Ttl::new(Ttl::MAX).unwrap().get(), Ttl::MAX);
    }

    #[test]
    fn t3_zero_waiting_time_tries_once() {
        assert_eq!(Wait::from(Duration::ZERO), Wait::Once);
        assert_eq!(Wait::from(Duration::from_nanos(1)), Wait::Once);
        assert_eq!(Wait::from(Duration::from_millis(1)), Wait::AtMost(Duration::from_millis(1)));
    }
}

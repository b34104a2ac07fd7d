//! A clock that runs slower than time does.

use std::{sync::Arc, time::SystemTime};

use fencepost_core::{
    clock::{BootClock, Clock, Moment},
    store::BoxFuture,
};

/// A clock at so many hundredths of its pace, from the process's start on.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacedClock {
    began: Moment,
    pace: u32,
}

impl PacedClock {
    pub(super) fn of(pace: u32) -> Arc<Self> {
        Arc::new(Self { began: BootClock.now(), pace: pace.max(1) })
    }

    /// When it is truly this moment of the clock's. Histories are told in true times.
    pub(super) fn truly(&self, moment: Moment) -> Moment {
        let since = moment.as_nanos().saturating_sub(self.began.as_nanos());
        let true_since = u128::from(since) * 100 / u128::from(self.pace);
        let true_since = u64::try_from(true_since).unwrap_or(u64::MAX);
        Moment::from_nanos(self.began.as_nanos().min(moment.as_nanos()).saturating_add(true_since))
    }
}

impl Clock for PacedClock {
    fn now(&self) -> Moment {
        let since = u128::from(BootClock.now().as_nanos() - self.began.as_nanos()) * u128::from(self.pace) / 100;
        Moment::from_nanos(self.began.as_nanos().saturating_add(u64::try_from(since).unwrap_or(u64::MAX)))
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        BootClock.sleep_until(self.truly(until))
    }

    fn wall(&self) -> SystemTime {
        BootClock.wall()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_slow_clock_tells_when_it_truly_is() {
        let clock = PacedClock::of(10);
        let later = clock.began.after(Duration::from_millis(100));
        assert_eq!(clock.truly(later), clock.began.after(Duration::from_secs(1)));
        assert_eq!(clock.truly(Moment::END), Moment::END);
        let right = PacedClock::of(100);
        assert_eq!(right.truly(later), later);
    }
}

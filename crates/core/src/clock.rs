//! The one clock that deadlines are read on (T2).
//!
//! [`BootClock`] keeps counting while the machine is suspended, and its timers fire by the same count.
//! A paused or migrated *virtual machine* stops every clock inside it: no client can notice, and only the
//! fence helps there.

mod alarm;
mod manual;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

pub use manual::ManualClock;

use crate::store::BoxFuture;

/// A point on a [`Clock`], in nanoseconds since some fixed instant of that clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Later than every other point.
    pub const END: Moment = Moment(u64::MAX);

    /// The point `nanos` nanoseconds after the clock's beginning.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's beginning.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// This point later by `span`; the end of time when that overflows (after 584 years).
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The span from `earlier` to this point; zero when `earlier` is not earlier.
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The instant *before* a request was sent: what a lease counts from (T1).
///
/// It is its own type so that the instant of a reply cannot take its place by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sent(Moment);

impl Sent {
    /// Reads the clock; call it before the request leaves.
    pub fn now(clock: &dyn Clock) -> Self {
        Self(clock.now())
    }

    /// A known instant, for stores that count from an earlier request and for tests.
    pub const fn at(moment: Moment) -> Self {
        Self(moment)
    }

    /// The instant.
    pub const fn moment(self) -> Moment {
        self.0
    }
}

/// A clock and its timers.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;

    /// Completes at `until`, or at once when that has passed. Cancel safe.
    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()>;

    /// The wall clock, to show to people. Nothing is decided by it.
    fn wall(&self) -> SystemTime;
}

/// Completes after `span` on `clock`. Cancel safe.
pub fn sleep(clock: &dyn Clock, span: Duration) -> BoxFuture<'static, ()> {
    clock.sleep_until(clock.now().after(span))
}

/// Milliseconds since 1970 on the wall clock, to show to people.
pub fn wall_unix_ms(clock: &dyn Clock) -> u64 {
    let since = clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux; `CLOCK_MONOTONIC` elsewhere, which on macOS also
/// counts time asleep.
#[derive(Debug, Default, Clone, Copy)]
pub struct BootClock;

impl BootClock {
    /// The clock, ready to share.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self)
    }
}

impl Clock for BootClock {
    fn now(&self) -> Moment {
        #[cfg(target_os = "linux")]
        let id = rustix::time::ClockId::Boottime;
        #[cfg(not(target_os = "linux"))]
        let id = rustix::time::ClockId::Monotonic;
        let time = rustix::time::clock_gettime(id);
        // Seconds and nanoseconds since boot are never negative.
        Moment((time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64))
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        Box::pin(alarm::Sleep::until(until))
    }

    #[allow(clippy::disallowed_methods)] // the one place that reads the wall clock, for display
    fn wall(&self) -> SystemTime {
        SystemTime::now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn t2_a_sleep_ends_by_the_clock_it_was_set_on() {
        let clock = BootClock;
        let until = clock.now().after(Duration::from_secs(2));
        let earlier = clock.sleep_until(clock.now().after(Duration::from_millis(5)));
        let later = tokio::spawn(clock.sleep_until(until));
        earlier.await;
        assert!(clock.now() < until, "the earlier sleep must not wait for the later one");
        later.await.unwrap();
        assert!(clock.now() >= until);
    }

    #[tokio::test]
    async fn t2_a_dropped_sleep_leaves_no_alarm() {
        let clock = BootClock;
        for _ in 0..100 {
            let mut sleep = clock.sleep_until(clock.now().after(Duration::from_secs(3600)));
            assert!(futures_poll_once(&mut sleep).await.is_none());
        }
        assert_eq!(alarm::pending_within(Duration::from_secs(3601), Duration::from_secs(3599)), 0);
    }

    async fn futures_poll_once<T>(future: &mut BoxFuture<'static, T>) -> Option<T> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(value) => std::task::Poll::Ready(Some(value)),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}

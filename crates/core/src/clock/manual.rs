//! A clock that a test moves by hand.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Poll, Waker},
    time::{Duration, SystemTime},
};

use super::{Clock, Moment};
use crate::store::BoxFuture;

/// A clock that stands still until [`advance`](ManualClock::advance) moves it. Clones are the same clock.
///
/// For tests of your own code: with the memory store, a lease lives and dies without waiting.
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now: Moment,
    sleepers: Vec<Waker>,
}

impl ManualClock {
    /// A clock at one hour after its beginning.
    pub fn new() -> Self {
        let clock = Self::default();
        clock.advance(Duration::from_secs(3600));
        clock
    }

    /// Moves the clock on and wakes whoever slept until then.
    pub fn advance(&self, span: Duration) {
        let sleepers = {
            let mut state = self.lock();
            state.now = state.now.after(span);
            std::mem::take(&mut state.sleepers)
        };
        sleepers.into_iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.lock().now
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(std::future::poll_fn(move |context| {
            let mut state = clock.lock();
            if state.now >= until {
                return Poll::Ready(());
            }
            state.sleepers.retain(|sleeper| !sleeper.will_wake(context.waker()));
            state.sleepers.push(context.waker().clone());
            Poll::Pending
        }))
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_nanos(self.now().as_nanos())
    }
}

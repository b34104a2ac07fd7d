//! A clock that jumps: what a suspended machine looks like to the processes on it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime},
};

use fencepost_core::{
    clock::{BootClock, Clock, Moment},
    store::BoxFuture,
};
use tokio::sync::Notify;

/// The machine's clock plus an offset that a test can raise. Clones are the same clock.
#[derive(Clone, Debug, Default)]
pub struct JumpingClock(Arc<State>);

#[derive(Debug, Default)]
struct State {
    offset: Mutex<Duration>,
    jumped: Notify,
}

impl JumpingClock {
    /// A clock that runs `offset` ahead of the machine's.
    pub fn ahead(offset: Duration) -> Self {
        let clock = Self::default();
        clock.jump(offset);
        clock
    }

    /// Moves the clock ahead and wakes whoever slept until then, as a resume does.
    pub fn jump(&self, span: Duration) {
        *self.0.offset.lock().unwrap_or_else(PoisonError::into_inner) += span;
        self.0.jumped.notify_waiters();
    }

    /// Moves the clock ahead and wakes nobody: a process that runs before its timers have fired.
    pub fn jump_unnoticed(&self, span: Duration) {
        *self.0.offset.lock().unwrap_or_else(PoisonError::into_inner) += span;
    }

    fn offset(&self) -> Duration {
        *self.0.offset.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for JumpingClock {
    fn now(&self) -> Moment {
        BootClock.now().after(self.offset())
    }

    fn sleep_until(&self, until: Moment) -> BoxFuture<'static, ()> {
        let clock = self.clone();
        Box::pin(async move {
            loop {
                let jumped = clock.0.jumped.notified();
                tokio::pin!(jumped);
                jumped.as_mut().enable();
                let left = until.since(clock.now());
                if left.is_zero() {
                    return;
                }
                tokio::select! {
                    () = jumped => {}
                    () = BootClock.sleep_until(BootClock.now().after(left)) => {}
                }
            }
        })
    }

    fn wall(&self) -> SystemTime {
        BootClock.wall() + self.offset()
    }
}

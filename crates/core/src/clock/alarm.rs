//! Timers on the boot clock: one thread for the whole process, asleep until the earliest alarm.
//!
//! The runtime's own timers stand still while the machine is suspended. A kernel timer on the boot clock does
//! not, and one thread with one timer serves any number of runtimes.

use std::{
    collections::BTreeMap,
    future::Future,
    pin::Pin,
    sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use super::{BootClock, Clock, Moment};

/// Even without a kernel timer an alarm is never later than this.
const LONGEST_NAP: Duration = Duration::from_millis(100);

/// Completes at a moment of the boot clock.
#[derive(Debug)]
pub(super) struct Sleep {
    until: Moment,
    alarm: Option<u64>,
}

impl Sleep {
    pub(super) fn until(until: Moment) -> Self {
        Self { until, alarm: None }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if BootClock.now() >= self.until {
            return Poll::Ready(());
        }
        let alarm = self.alarm;
        self.alarm = Some(ALARMS.set(self.until, alarm, context.waker()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(id) = self.alarm {
            // The waker goes after the lock: its drop may run code that sets or drops another alarm.
            let _waker = { ALARMS.lock().pending.remove(&(self.until, id)) };
        }
    }
}

static ALARMS: LazyLock<Alarms> = LazyLock::new(|| Alarms {
    state: Mutex::default(),
    changed: Condvar::new(),
    #[cfg(target_os = "linux")]
    timer: kernel::timer(),
});

struct Alarms {
    state: Mutex<State>,
    changed: Condvar,
    #[cfg(target_os = "linux")]
    timer: Option<rustix::fd::OwnedFd>,
}

#[derive(Default)]
struct State {
    pending: BTreeMap<(Moment, u64), Waker>,
    next_id: u64,
    running: bool,
    /// When the thread wakes at the latest. An alarm that was set and dropped again leaves it as it is: limits of
    /// seconds on calls of microseconds would otherwise cost a system call each.
    wakes_at: Option<Moment>,
}

impl Alarms {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A waker that panicked leaves the map whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&'static self, at: Moment, id: Option<u64>, waker: &Waker) -> u64 {
        let _replaced; // dropped after the lock, as in `Drop`
        let mut state = self.lock();
        let id = id.unwrap_or_else(|| {
            state.next_id += 1;
            state.next_id
        });
        _replaced = state.pending.insert((at, id), waker.clone());
        let earlier = state.wakes_at.is_none_or(|wakes_at| at < wakes_at);
        if !state.running {
            state.running = self.start();
        }
        if !state.running {
            // No thread to be had: poll again rather than sleep past a deadline.
            waker.wake_by_ref();
        } else if earlier {
            state.wakes_at = Some(at);
            self.rearm(at);
        }
        id
    }

    fn start(&'static self) -> bool {
        thread::Builder::new().name("fencepost-clock".into()).spawn(|| self.run()).is_ok()
    }

    fn run(&self) {
        loop {
            let mut due = Vec::new();
            let mut state = self.lock();
            let now = BootClock.now();
            while let Some(entry) = state.pending.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                due.push(entry.remove());
            }
            if !due.is_empty() {
                drop(state);
                due.into_iter().for_each(Waker::wake);
                continue;
            }
            let next = state.pending.first_key_value().map(|(key, _)| key.0);
            state.wakes_at = next;
            self.nap(state, next);
        }
    }

    #[cfg(target_os = "linux")]
    fn rearm(&self, at: Moment) {
        match &self.timer {
            // The thread that is reading the timer wakes at the new time.
            Some(timer) => kernel::arm(timer, at),
            None => self.changed.notify_one(),
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn rearm(&self, _at: Moment) {
        self.changed.notify_one();
    }

    /// Sleeps until `next`, an earlier alarm, or for no reason.
    fn nap(&self, state: MutexGuard<'_, State>, next: Option<Moment>) {
        #[cfg(target_os = "linux")]
        if let Some(timer) = &self.timer {
            // Armed under the lock, so that an earlier alarm set meanwhile is armed after this one.
            if let Some(at) = next {
                kernel::arm(timer, at);
            }
            drop(state);
            if kernel::wait(timer) {
                return;
            }
            // A timer that cannot be read must not turn into a busy loop.
            thread::sleep(LONGEST_NAP);
            return;
        }
        let nap = match next {
            Some(at) => at.since(BootClock.now()).min(LONGEST_NAP),
            None => Duration::from_secs(3600),
        };
        let _unlocked = self.changed.wait_timeout(state, nap);
    }
}

/// Alarms that lie between `least` and `most` from now.
#[cfg(test)]
pub(super) fn pending_within(most: Duration, least: Duration) -> usize {
    let now = BootClock.now();
    let range = (now.after(least), 0)..(now.after(most), 0);
    ALARMS.lock().pending.range(range).count()
}

#[cfg(target_os = "linux")]
mod kernel {
    use rustix::{
        fd::OwnedFd,
        io::Errno,
        time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec},
    };

    use super::Moment;

    pub(super) fn timer() -> Option<OwnedFd> {
        rustix::time::timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok()
    }

    pub(super) fn arm(timer: &OwnedFd, at: Moment) {
        // Zero would disarm it; the end of time is more seconds than the kernel takes.
        let nanos = at.as_nanos().clamp(1, i64::MAX as u64);
        let it_value = Timespec { tv_sec: (nanos / 1_000_000_000) as _, tv_nsec: (nanos % 1_000_000_000) as _ };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value };
        // It fails only for a malformed time, which this is not.
        let _ = rustix::time::timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once);
    }

    pub(super) fn wait(timer: &OwnedFd) -> bool {
        let mut expirations = [0; 8];
        matches!(rustix::io::read(timer, &mut expirations), Ok(_) | Err(Errno::INTR))
    }
}

//! Giving back what a lost round, or a lease that ended, may have left in one store: until the store confirmed it, or
//! the record is over by itself.

use std::time::Duration;

use crate::{backoff::Backoff, clock::Moment};

/// A request that was under way when the first one to give back was answered has been applied by then.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// What is left to do in one store.
#[derive(Clone, Debug)]
pub struct CleaningUp {
    until: Moment,
    due: Moment,
    /// Answers that are still wanted: two where a request may yet be under way.
    looks: u32,
    backoff: Backoff,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errand {
    /// Ask the store, and feed the answer to [`CleaningUp::answered`].
    Ask,
    /// Wait until then.
    Wait(Moment),
    /// It is done, or over by itself.
    Done,
}

impl CleaningUp {
    /// Begins at `now`. A store that was stopped can apply a request when it wakes, and keeps it for `ttl` from then
    /// on; so it is tried for `patience`, which should be longer. `unclear` says that a request may be under way.
    pub fn begin(now: Moment, patience: Duration, unclear: bool) -> Self {
        let backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(2));
        Self { until: now.after(patience), due: now, looks: 1 + u32::from(unclear), backoff }
    }

    /// What to do at `now`.
    pub fn next(&self, now: Moment) -> Errand {
        if self.looks == 0 || now >= self.until {
            Errand::Done
        } else if now >= self.due {
            Errand::Ask
        } else {
            Errand::Wait(self.due)
        }
    }

    /// The store answered at `now`, or did not.
    pub fn answered(&mut self, now: Moment, confirmed: bool) {
        if confirmed {
            self.looks = self.looks.saturating_sub(1);
            self.due = now.after(SECOND_LOOK);
        } else {
            self.due = now.after(self.backoff.pause());
        }
    }
}

//! Holders whose watch has not begun yet.
//!
//! Most are gone before it does, and the task that watches never hears of them: to wake it for each, with a timer, would cost
//! a good part of what the lock costs.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicBool,
            Ordering::{AcqRel, Release},
        },
    },
};

use fencepost_core::{clock::Moment, owner::Owner};
use tokio::sync::Notify;

/// Those that hold, and are not watched.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// With the moment when its watch is to begin.
    holders: Mutex<HashMap<Owner, Moment>>,
    /// Whether the task looks here from time to time.
    looked_after: AtomicBool,
    begun: Notify,
}

/// Whose watch is to begin now.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) holders: Vec<Owner>,
    /// Whether others are left to look after.
    pub(crate) others: bool,
}

impl Late {
    pub(crate) fn add(&self, owner: Owner, due: Moment) {
        self.lock().insert(owner, due);
        if !self.looked_after.swap(true, AcqRel) {
            self.begun.notify_one();
        }
    }

    /// Whether it was still here.
    pub(crate) fn remove(&self, owner: &Owner) -> bool {
        self.lock().remove(owner).is_some()
    }

    /// Completes when there is somebody to look after. Cancel safe.
    pub(crate) async fn begun(&self) {
        self.begun.notified().await;
    }

    /// Takes out those that are due.
    pub(crate) fn due(&self, now: Moment) -> Due {
        let mut holders = self.lock();
        let due = holders.extract_if(|_, due| *due <= now).map(|(owner, _)| owner).collect();
        let others = !holders.is_empty();
        // Under the lock, so that whoever adds one finds out that nobody looks.
        self.looked_after.store(others, Release);
        Due { holders: due, others }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Moment>> {
        // Nothing in here can panic half way.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What is noted of one claim. There are as many of them as leases and waiters: what can be derived is not kept.

use std::sync::Arc;

use fencepost_core::{clock::Moment, name::LockName};

use crate::{keys::Kind, queue::Place, seats::Seat, session::Session};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) kind: Kind,
    pub(super) first: Spot,
    /// Of several locks in one claim, the others.
    pub(super) others: Box<[Spot]>,
    pub(super) session: Arc<Session>,
    pub(super) stage: Stage,
    /// Where the claim found its place in the queue, for who waits for its turn.
    pub(super) place: Option<Box<Place>>,
    /// The number of the watch on its first key, those on the others following; 0 while nobody watches.
    pub(super) watch: u64,
    /// A request for it was sent whose outcome was not seen: it may still be carried out.
    pub(super) unclear: bool,
    /// A removal of it was sent whose outcome was not seen: that, too, may still be carried out.
    pub(super) unclear_removal: bool,
}

/// Where a claim lies below one lock.
#[derive(Debug)]
pub(super) struct Spot {
    pub(super) name: LockName,
    pub(super) seat: Seat,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Stage {
    /// Asked for, or waiting in the queue. Somebody must look after it since then; `None` while nothing is to be done.
    Wanted { unattended: Option<Moment> },
    /// Held until then unless renewed, and seen in the store as of a revision.
    Held { until: Moment, seen: i64, created: i64 },
    /// Being given back since then.
    Leaving { since: Moment },
}

impl Entry {
    /// Nobody believes in it from now on, and a removal is about to be sent.
    pub(super) fn leave(&mut self, now: Moment) -> Moment {
        let since = match self.stage {
            Stage::Leaving { since } => {
                // The one before was not answered, or not yet.
                self.unclear_removal = true;
                since
            }
            _ => now,
        };
        self.stage = Stage::Leaving { since };
        since
    }

    pub(super) fn spots(&self) -> impl Iterator<Item = &Spot> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

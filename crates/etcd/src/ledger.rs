//! What this client has claimed: the one place that knows which owner value stands on which session, and how far it is.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fencepost_core::{claim::LossReason, clock::Moment, owner::Owner, store::LossReporter};

use crate::{failure::Failure, queue::Place, session::Session};

#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Mutex<HashMap<Owner, Entry>>,
    reporter: OnceLock<LossReporter>,
}

#[derive(Debug)]
struct Entry {
    key: Arc<[u8]>,
    session: Arc<Session>,
    stage: Stage,
    /// Where the claim found its place in the queue, for who waits for its turn.
    place: Option<Place>,
    /// A request for it was sent whose outcome was not seen: it may still be carried out.
    unclear: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// Asked for, or waiting in the queue. Somebody must look after it since then; `None` while nothing is to be done.
    Wanted { unattended: Option<Moment> },
    /// Held until then unless renewed, and seen in the store as of a revision.
    Held { until: Moment, seen: i64, created: i64 },
    /// Being given back since then.
    Leaving { since: Moment },
}

/// A claim that is being given back.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) owner: Owner,
    pub(crate) key: Arc<[u8]>,
    pub(crate) session: Arc<Session>,
    pub(crate) unclear: bool,
    pub(crate) since: Moment,
}

/// How long something may be overdue before it is given back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) not_renewed: Duration,
    pub(crate) unattended: Duration,
    pub(crate) leaving: Duration,
}

/// Marks a request for a claim as under way. Until it says otherwise, the outcome is unknown, also when its future is
/// dropped.
#[derive(Debug)]
pub(crate) struct Asking<'a> {
    ledger: &'a Ledger,
    owner: Owner,
    before: bool,
}

impl Asking<'_> {
    /// The store answered; `unclear` when an earlier try of the same request may still be carried out.
    pub(crate) fn answered(self, unclear: bool) {
        let unclear = unclear || self.before;
        self.ledger.change(&self.owner, |entry| entry.unclear = unclear);
    }
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, Entry>> {
        // Every change leaves the table whole.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, owner: &Owner, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.lock().get_mut(owner).map(change)
    }

    pub(crate) fn report_to(&self, reporter: LossReporter) {
        // A second reporter would belong to a second client of one store, which there is not.
        let _ = self.reporter.set(reporter);
    }

    /// A request for this claim on this session is about to be sent. Not for one that is still being given back: the
    /// two would overtake each other.
    pub(crate) fn ask(
        &self,
        owner: &Owner,
        key: &[u8],
        session: &Arc<Session>,
        now: Moment,
    ) -> Result<Asking<'_>, Failure> {
        let mut entries = self.lock();
        let stage = Stage::Wanted { unattended: Some(now) };
        let entry = entries.entry(*owner).or_insert_with(|| Entry {
            key: key.into(),
            session: session.clone(),
            stage,
            place: None,
            unclear: false,
        });
        match entry.stage {
            Stage::Wanted { .. } => entry.stage = stage,
            Stage::Held { .. } => {}
            Stage::Leaving { .. } => return Err(Failure::leaving()),
        }
        let before = std::mem::replace(&mut entry.unclear, true);
        if entry.session.id != session.id {
            entry.session = session.clone();
        }
        Ok(Asking { ledger: self, owner: *owner, before })
    }

    /// It found its place in the queue.
    pub(crate) fn placed(&self, owner: &Owner, place: Place) {
        self.change(owner, |entry| entry.place = Some(place));
    }

    /// The place that it found, on a session that is not lost. Told once: later it may be another.
    pub(crate) fn place(&self, owner: &Owner) -> Option<(Place, Arc<Session>)> {
        let found = self.change(owner, |entry| entry.place.take().map(|place| (place, entry.session.clone())));
        found.flatten().filter(|(_, session)| !session.is_lost())
    }

    /// It is held until then unless renewed, as of this revision. `false` when its session has been lost by now, or it
    /// is being given back.
    pub(crate) fn hold(&self, owner: &Owner, until: Moment, created: i64, seen: i64) -> bool {
        let held = self.change(owner, |entry| {
            let sound = !entry.session.is_lost() && !matches!(entry.stage, Stage::Leaving { .. });
            if sound {
                entry.stage = Stage::Held { until, seen, created };
            }
            sound
        });
        held == Some(true)
    }

    /// It was seen in the store as of this revision.
    pub(crate) fn seen(&self, owner: &Owner, revision: i64) {
        self.change(owner, |entry| {
            if let Stage::Held { seen, .. } = &mut entry.stage {
                *seen = (*seen).max(revision);
            }
        });
    }

    /// It was renewed until then.
    pub(crate) fn renewed(&self, owner: &Owner, until: Moment) {
        self.change(owner, |entry| {
            if let Stage::Held { until: before, .. } = &mut entry.stage {
                *before = until;
            }
        });
    }

    /// Its turn may have come since then; `None` while it waits for others.
    pub(crate) fn unattended(&self, owner: &Owner, since: Option<Moment>) {
        self.change(owner, |entry| {
            if let Stage::Wanted { unattended } = &mut entry.stage {
                *unattended = since;
            }
        });
    }

    /// The revision that a held claim was last seen at.
    pub(crate) fn seen_at(&self, owner: &Owner) -> Option<i64> {
        match self.lock().get(owner)?.stage {
            Stage::Held { seen, .. } => Some(seen),
            _ => None,
        }
    }

    /// The key of a claim that is held, and the revision that created it.
    pub(crate) fn key(&self, owner: &Owner) -> Option<(Arc<[u8]>, i64)> {
        match self.lock().get(owner)? {
            Entry { key, stage: Stage::Held { created, .. }, .. } => Some((key.clone(), *created)),
            _ => None,
        }
    }

    /// The session that a claim stands on.
    pub(crate) fn session(&self, owner: &Owner) -> Option<Arc<Session>> {
        self.lock().get(owner).map(|entry| entry.session.clone())
    }

    /// It is being given back from now on, and nobody believes in it any more.
    pub(crate) fn leave(&self, owner: &Owner, now: Moment) -> Option<Leaving> {
        self.change(owner, |entry| {
            let since = match entry.stage {
                Stage::Leaving { since } => since,
                _ => now,
            };
            entry.stage = Stage::Leaving { since };
            let Entry { key, session, unclear, .. } = entry;
            Leaving { owner: *owner, key: key.clone(), session: session.clone(), unclear: *unclear, since }
        })
    }

    /// What is to be given back at `now` though nobody does: grants that were not renewed in time, turns that nobody
    /// took, and releases whose answer is overdue. They are leaving from now on.
    pub(crate) fn overdue(&self, now: Moment, limits: &Limits) -> Vec<Leaving> {
        let mut overdue = Vec::new();
        for (owner, entry) in &mut *self.lock() {
            let (due, since) = match entry.stage {
                Stage::Held { until, .. } => (until.after(limits.not_renewed), now),
                Stage::Wanted { unattended: Some(since) } => (since.after(limits.unattended), now),
                Stage::Wanted { unattended: None } => continue,
                Stage::Leaving { since } => (since.after(limits.leaving), since),
            };
            if now >= due {
                entry.stage = Stage::Leaving { since };
                let Entry { key, session, unclear, .. } = entry;
                let (key, session, unclear) = (key.clone(), session.clone(), *unclear);
                overdue.push(Leaving { owner: *owner, key, session, unclear, since });
            }
        }
        overdue
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Nothing of it is left in the store.
    pub(crate) fn forget(&self, owner: &Owner) {
        self.lock().remove(owner);
    }

    /// Whether any claim stands on the session.
    pub(crate) fn uses(&self, session: &Arc<Session>) -> bool {
        self.lock().values().any(|entry| entry.session.id == session.id)
    }

    /// Tells the holder of a claim that it is lost; others have nothing to lose.
    pub(crate) fn lose(&self, owner: &Owner, reason: LossReason) {
        let held = self.change(owner, |entry| {
            let held = matches!(entry.stage, Stage::Held { .. });
            if held {
                entry.stage = Stage::Wanted { unattended: None };
            }
            held
        });
        if held == Some(true)
            && let Some(reporter) = self.reporter.get()
        {
            reporter.lost(*owner, reason);
        }
    }

    /// Tells all holders of a session. It must be marked as lost before, so that nobody begins to believe meanwhile.
    pub(crate) fn lose_session(&self, session: &Session) {
        let owners: Vec<_> = {
            let entries = self.lock();
            entries.iter().filter(|(_, entry)| entry.session.id == session.id).map(|(owner, _)| *owner).collect()
        };
        for owner in owners {
            self.lose(&owner, LossReason::SessionExpired);
        }
    }
}

//! What this client has claimed: the one place that knows which owner value stands on which session, and how far it is.

mod entry;

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Claim, LossReason},
    clock::Moment,
    name::LockName,
    owner::Owner,
    store::LossReporter,
};

use crate::{
    failure::Failure,
    keys::{Keys, Kind},
    ledger::entry::{Entry, Spot, Stage},
    queue::Place,
    seats::Seats,
    session::Session,
};

#[derive(Debug)]
pub(crate) struct Ledger {
    keys: Keys,
    books: Mutex<Books>,
    reporter: OnceLock<LossReporter>,
}

#[derive(Debug, Default)]
struct Books {
    entries: HashMap<Owner, Entry>,
    seats: Seats,
}

/// A claim that is being given back.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) owner: Owner,
    /// More than one of several locks in one claim.
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) session: Arc<Session>,
    pub(crate) unclear: bool,
    pub(crate) since: Moment,
}

/// What is to be watched of a holder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToWatch {
    /// The revision as of which it was last seen.
    pub(crate) seen: i64,
    pub(crate) locks: u64,
    /// The number from which on it was watched before; 0 when it was not.
    pub(crate) before: u64,
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
    /// The claim's key; of several, the first one's.
    pub(crate) key: Vec<u8>,
}

impl Asking<'_> {
    /// The store answered; `unclear` when an earlier try of the same request may still be carried out. Whether any request
    /// for the claim may be: one that was answered says nothing of those before it.
    pub(crate) fn answered(self, unclear: bool) -> bool {
        let unclear = unclear || self.before;
        self.ledger.change(&self.owner, |entry| entry.unclear = unclear);
        unclear
    }
}

impl Books {
    /// The keys of a claim, as they lie in the cluster.
    fn keys_of<'a>(&'a self, entry: &'a Entry, keys: &'a Keys) -> impl Iterator<Item = Vec<u8>> {
        entry.spots().map(|spot| keys.claim(&spot.name, entry.kind, self.seats.label(spot.seat)))
    }
}

impl Ledger {
    pub(crate) fn new(keys: Keys) -> Self {
        Self { keys, books: Mutex::default(), reporter: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // Every change leaves the books whole.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, owner: &Owner, change: impl FnOnce(&mut Entry) -> T) -> Option<T> {
        self.lock().entries.get_mut(owner).map(change)
    }

    pub(crate) fn report_to(&self, reporter: LossReporter) {
        // A second reporter would belong to a second client of one store, which there is not.
        let _ = self.reporter.set(reporter);
    }

    /// A request for this claim on this session is about to be sent. Not for one that is still being given back: the
    /// two would overtake each other.
    pub(crate) fn ask(&self, claim: &Claim, session: &Arc<Session>, now: Moment) -> Result<Asking<'_>, Failure> {
        let Books { entries, seats } = &mut *self.lock();
        let owner = claim.owner();
        let stage = Stage::Wanted { unattended: Some(now) };
        let entry = entries.entry(*owner).or_insert_with(|| {
            let wants = claim.holding.wants();
            let mut spots = wants.iter().map(|want| {
                let seat = seats.take(&want.name, owner);
                Spot { name: want.name.clone(), seat }
            });
            Entry {
                kind: Kind::of(wants[0].mode),
                first: spots.next().expect("a claim has a want"),
                others: spots.collect(),
                session: session.clone(),
                stage,
                place: None,
                watch: 0,
                unclear: false,
                unclear_removal: false,
            }
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
        let key = self.keys.claim(&entry.first.name, entry.kind, seats.label(entry.first.seat));
        Ok(Asking { ledger: self, owner: *owner, before, key })
    }

    /// Whether this client holds the lock or waits for it.
    pub(crate) fn is_claimed(&self, name: &LockName) -> bool {
        self.lock().seats.any_taken(name)
    }

    /// The claim that this revision created was seen to be the first of its lock: no older one is there, nor will be.
    pub(crate) fn is_first(&self, name: &LockName, created: i64) {
        self.lock().seats.is_first(name, created);
    }

    /// Whether the claim that this revision created is the one that was last seen to be the first.
    pub(crate) fn was_first(&self, name: &LockName, created: i64) -> bool {
        self.lock().seats.first(name) == created
    }

    /// It found its place in the queue.
    pub(crate) fn placed(&self, owner: &Owner, place: Place) {
        self.change(owner, |entry| entry.place = Some(Box::new(place)));
    }

    /// The place that it found, on a session that is not lost. Told once: later it may be another.
    pub(crate) fn place(&self, owner: &Owner) -> Option<(Place, Arc<Session>)> {
        let found = self.change(owner, |entry| entry.place.take().map(|place| (*place, entry.session.clone())));
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

    /// The key of a claim; of several locks, the first one's.
    pub(crate) fn key(&self, owner: &Owner) -> Option<Vec<u8>> {
        self.key_of(owner, 0)
    }

    /// The key of one of a claim's locks.
    pub(crate) fn key_of(&self, owner: &Owner, lock: usize) -> Option<Vec<u8>> {
        let books = self.lock();
        books.keys_of(books.entries.get(owner)?, &self.keys).nth(lock)
    }

    /// All keys of a claim.
    pub(crate) fn keys(&self, owner: &Owner) -> Vec<Vec<u8>> {
        let books = self.lock();
        books.entries.get(owner).into_iter().flat_map(|entry| books.keys_of(entry, &self.keys)).collect()
    }

    /// The keys of a claim that is held, and the revision that created them.
    pub(crate) fn held(&self, owner: &Owner) -> Option<(Vec<Vec<u8>>, i64)> {
        let books = self.lock();
        match books.entries.get(owner)? {
            entry @ Entry { stage: Stage::Held { created, .. }, .. } => {
                Some((books.keys_of(entry, &self.keys).collect(), *created))
            }
            _ => None,
        }
    }

    /// The keys of a claim that is held are watched from now on, under this number and those that follow.
    pub(crate) fn watch(&self, owner: &Owner, first: u64) -> Option<ToWatch> {
        self.change(owner, |entry| {
            let Stage::Held { seen, .. } = entry.stage else { return None };
            let before = std::mem::replace(&mut entry.watch, first);
            Some(ToWatch { seen, locks: entry.spots().count() as u64, before })
        })?
    }

    /// The numbers under which the keys of a claim were watched, which nobody does any more from now on.
    pub(crate) fn unwatch(&self, owner: &Owner) -> Range<u64> {
        let watched = self.change(owner, |entry| {
            let first = std::mem::take(&mut entry.watch);
            let locks = if first == 0 { 0 } else { entry.spots().count() as u64 };
            first..first + locks
        });
        watched.unwrap_or_default()
    }

    /// The session that a claim stands on.
    pub(crate) fn session(&self, owner: &Owner) -> Option<Arc<Session>> {
        self.lock().entries.get(owner).map(|entry| entry.session.clone())
    }

    /// It is being given back from now on, and nobody believes in it any more.
    pub(crate) fn leave(&self, owner: &Owner, now: Moment) -> Option<Leaving> {
        let mut books = self.lock();
        let since = books.entries.get_mut(owner)?.leave(now);
        Some(self.leaving(&books, *owner, since))
    }

    fn leaving(&self, books: &Books, owner: Owner, since: Moment) -> Leaving {
        let entry = &books.entries[&owner];
        let keys = books.keys_of(entry, &self.keys).collect();
        Leaving { owner, keys, session: entry.session.clone(), unclear: entry.unclear, since }
    }

    /// What is to be given back at `now` though nobody does: grants that were not renewed in time, turns that nobody
    /// took, and releases whose answer is overdue. They are leaving from now on.
    pub(crate) fn overdue(&self, now: Moment, limits: &Limits) -> Vec<Leaving> {
        let mut overdue = Vec::new();
        let mut books = self.lock();
        for (owner, entry) in &mut books.entries {
            let due = match entry.stage {
                Stage::Held { until, .. } => until.after(limits.not_renewed),
                Stage::Wanted { unattended: Some(since) } => since.after(limits.unattended),
                Stage::Wanted { unattended: None } => continue,
                Stage::Leaving { since } => since.after(limits.leaving),
            };
            if now >= due {
                overdue.push((*owner, entry.leave(now)));
            }
        }
        overdue.into_iter().map(|(owner, since)| self.leaving(&books, owner, since)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    /// A removal of it was sent, or tried once more, whose outcome was not seen.
    pub(crate) fn removal_is_unclear(&self, owner: &Owner) {
        self.change(owner, |entry| entry.unclear_removal = true);
    }

    /// Nothing of it is left in the store.
    pub(crate) fn forget(&self, owner: &Owner) {
        let Books { entries, seats } = &mut *self.lock();
        let Some(entry) = entries.remove(owner) else { return };
        if entry.unclear || entry.unclear_removal {
            seats.give_up();
        } else {
            entry.spots().for_each(|spot| seats.give_back(&spot.name, spot.seat));
        }
    }

    /// Whether any claim stands on the session.
    pub(crate) fn uses(&self, session: &Arc<Session>) -> bool {
        self.lock().entries.values().any(|entry| entry.session.id == session.id)
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
            let books = self.lock();
            books.entries.iter().filter(|(_, entry)| entry.session.id == session.id).map(|(owner, _)| *owner).collect()
        };
        for owner in owners {
            self.lose(&owner, LossReason::SessionExpired);
        }
    }
}

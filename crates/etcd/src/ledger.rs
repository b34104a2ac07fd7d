//! What this client has claimed: the one place that knows which owner value stands on which session, and how far it is.

use std::{
    collections::HashMap,
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
    queue::Place,
    seats::{Seat, Seats},
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

#[derive(Debug)]
struct Entry {
    first: Spot,
    /// Of several locks in one claim, the others.
    others: Box<[Spot]>,
    session: Arc<Session>,
    stage: Stage,
    /// Where the claim found its place in the queue, for who waits for its turn.
    place: Option<Box<Place>>,
    /// A request for it was sent whose outcome was not seen: it may still be carried out.
    unclear: bool,
    /// A removal of it was sent whose outcome was not seen: that, too, may still be carried out.
    unclear_removal: bool,
}

/// Where a claim lies: its key below one lock.
#[derive(Debug)]
struct Spot {
    name: LockName,
    seat: Seat,
    key: Arc<[u8]>,
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
    /// Of several locks in one claim, those of the others.
    pub(crate) others: Box<[Arc<[u8]>]>,
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
    /// The claim's key; of several, the first one's.
    pub(crate) key: Arc<[u8]>,
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

impl Entry {
    /// Nobody believes in it from now on, and a removal is about to be sent.
    fn leave(&mut self, owner: Owner, now: Moment) -> Leaving {
        let since = match self.stage {
            Stage::Leaving { since } => {
                // The one before was not answered, or not yet.
                self.unclear_removal = true;
                since
            }
            _ => now,
        };
        self.stage = Stage::Leaving { since };
        Leaving {
            owner,
            key: self.first.key.clone(),
            others: self.others.iter().map(|spot| spot.key.clone()).collect(),
            session: self.session.clone(),
            unclear: self.unclear,
            since,
        }
    }

    fn spots(&self) -> impl Iterator<Item = &Spot> {
        std::iter::once(&self.first).chain(&self.others)
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
            let mut spots = claim.holding.wants().iter().map(|want| {
                let seat = seats.take(&want.name, owner);
                let key = self.keys.claim(&want.name, Kind::of(want.mode), seat).into();
                Spot { name: want.name.clone(), seat, key }
            });
            Entry {
                first: spots.next().expect("a claim has a want"),
                others: spots.collect(),
                session: session.clone(),
                stage,
                place: None,
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
        Ok(Asking { ledger: self, owner: *owner, before, key: entry.first.key.clone() })
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

    /// The revision that a held claim was last seen at.
    pub(crate) fn seen_at(&self, owner: &Owner) -> Option<i64> {
        match self.lock().entries.get(owner)?.stage {
            Stage::Held { seen, .. } => Some(seen),
            _ => None,
        }
    }

    /// The key of a claim; of several locks, the first one's.
    pub(crate) fn key(&self, owner: &Owner) -> Option<Arc<[u8]>> {
        self.lock().entries.get(owner).map(|entry| entry.first.key.clone())
    }

    /// All keys of a claim.
    pub(crate) fn keys(&self, owner: &Owner) -> Vec<Arc<[u8]>> {
        let books = self.lock();
        books.entries.get(owner).into_iter().flat_map(Entry::spots).map(|spot| spot.key.clone()).collect()
    }

    /// The keys of a claim that is held, and the revision that created them.
    pub(crate) fn held(&self, owner: &Owner) -> Option<(Vec<Arc<[u8]>>, i64)> {
        match self.lock().entries.get(owner)? {
            entry @ Entry { stage: Stage::Held { created, .. }, .. } => {
                Some((entry.spots().map(|spot| spot.key.clone()).collect(), *created))
            }
            _ => None,
        }
    }

    /// The session that a claim stands on.
    pub(crate) fn session(&self, owner: &Owner) -> Option<Arc<Session>> {
        self.lock().entries.get(owner).map(|entry| entry.session.clone())
    }

    /// It is being given back from now on, and nobody believes in it any more.
    pub(crate) fn leave(&self, owner: &Owner, now: Moment) -> Option<Leaving> {
        self.change(owner, |entry| entry.leave(*owner, now))
    }

    /// What is to be given back at `now` though nobody does: grants that were not renewed in time, turns that nobody
    /// took, and releases whose answer is overdue. They are leaving from now on.
    pub(crate) fn overdue(&self, now: Moment, limits: &Limits) -> Vec<Leaving> {
        let mut overdue = Vec::new();
        for (owner, entry) in &mut self.lock().entries {
            let due = match entry.stage {
                Stage::Held { until, .. } => until.after(limits.not_renewed),
                Stage::Wanted { unattended: Some(since) } => since.after(limits.unattended),
                Stage::Wanted { unattended: None } => continue,
                Stage::Leaving { since } => since.after(limits.leaving),
            };
            if now >= due {
                overdue.push(entry.leave(*owner, now));
            }
        }
        overdue
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

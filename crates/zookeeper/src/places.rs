//! What this client holds and waits for: which node on which session stands for which owner value.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fencepost_core::{
    claim::Mode,
    clock::{Clock, Moment, Sent},
    fence::Fence,
    owner::Owner,
};
use tokio::sync::Notify;

use crate::{queue::Leaving, session::Session};

#[derive(Debug)]
pub(crate) struct Places {
    books: Mutex<Books>,
    clock: Arc<dyn Clock>,
    /// There is something new for the sentry to look after.
    pub(crate) changed: Notify,
    /// Something that was sifted out has gone, or is back.
    settled: Notify,
}

#[derive(Debug, Default)]
struct Books {
    places: HashMap<Owner, Place>,
    queues: HashMap<Arc<str>, Known>,
    /// Whose nodes are being taken out of the ensemble, with no place here any more.
    sifted: HashSet<Owner>,
}

/// What is known of a lock's queue while this client has places in it.
#[derive(Debug, Default)]
struct Known {
    places: usize,
    /// The node that was last seen to be the first: whoever stood before it is gone for good.
    first: Option<Arc<str>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) session: Arc<Session>,
    /// The container of the lock's nodes.
    pub(crate) lock: Arc<str>,
    /// How the lock is wanted.
    pub(crate) mode: Mode,
    /// The node, once its creation was answered.
    pub(crate) node: Option<Node>,
    /// The node that the claim waits for, where it has found that out.
    pub(crate) before: Option<Arc<str>>,
    /// What was granted, once it was.
    pub(crate) given: Option<Given>,
    pub(crate) standing: Standing,
}

/// A node of ours.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    /// The transaction that made it.
    pub(crate) created: Fence,
    /// Whether there was anything in the data of the lock's container by then: readers use the lock, perhaps.
    pub(crate) noted: bool,
}

/// What a grant gives beyond the time.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    pub(crate) fence: Fence,
    pub(crate) slots: Arc<[u32]>,
}

impl Given {
    pub(crate) fn of(fence: Fence) -> Self {
        Self { fence, slots: Arc::default() }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    /// The lock is not ours. `alone_since` is set while nobody asks for it or awaits the turn.
    Coming { alone_since: Option<Moment> },
    /// The lock is ours, as far as the holder was told.
    Held {
        since: Moment,
        /// What the grant or its last renewal counted from.
        told: Sent,
        /// The connection on which the node is watched.
        watched_on: Option<u64>,
    },
}

impl Place {
    /// The whole path of the node.
    pub(crate) fn path(&self) -> Option<String> {
        self.node.as_ref().map(|node| format!("{}/{}", self.lock, node.name))
    }

    /// What leaves the queue with it.
    pub(crate) fn leaving<'a>(&'a self, owner: &'a Owner) -> Leaving<'a> {
        Leaving {
            session: &self.session,
            lock: &self.lock,
            owner,
            mode: self.mode,
            node: self.node.as_ref().map(|node| &*node.name),
            slots: self.given.as_ref().map(|given| &*given.slots),
        }
    }
}

impl Places {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { books: Mutex::default(), clock, changed: Notify::new(), settled: Notify::new() }
    }

    pub(crate) fn get(&self, owner: &Owner) -> Option<Place> {
        self.lock().places.get(owner).cloned()
    }

    pub(crate) fn remove(&self, owner: &Owner) -> Option<Place> {
        self.lock().remove(owner)
    }

    /// Nobody stands behind it any more. It stays here until its node is known to be gone: should whoever removes it be
    /// dropped in the middle, the sentry does (C1).
    pub(crate) fn leaving(&self, owner: &Owner) -> Option<Place> {
        let now = self.clock.now();
        let mut books = self.lock();
        let place = books.places.get_mut(owner)?;
        place.standing = Standing::Coming { alone_since: Some(now) };
        self.changed.notify_one();
        Some(place.clone())
    }

    /// Puts back what could not be removed, unless there is something new under this owner value.
    pub(crate) fn put_back(&self, owner: Owner, place: Place) {
        let standing = Standing::Coming { alone_since: Some(self.clock.now()) };
        let mut books = self.lock();
        if !books.places.contains_key(&owner) {
            books.insert(owner, Place { standing, ..place });
        }
        self.changed.notify_one();
    }

    /// Takes down that a claim is under way, before anything is sent, and attends to it.
    pub(crate) fn enter(self: &Arc<Self>, owner: Owner, session: &Arc<Session>, lock: &str, mode: Mode) -> Attendance {
        let place = Place {
            session: session.clone(),
            lock: lock.into(),
            mode,
            node: None,
            before: None,
            given: None,
            standing: Standing::Coming { alone_since: None },
        };
        self.lock().insert(owner, place);
        Attendance { places: self.clone(), owner }
    }

    /// Attends to a claim that is there already.
    pub(crate) fn attend(self: &Arc<Self>, owner: &Owner) -> Option<(Place, Attendance)> {
        let mut books = self.lock();
        let place = books.places.get_mut(owner)?;
        if let Standing::Coming { alone_since } = &mut place.standing {
            *alone_since = None;
        }
        Some((place.clone(), Attendance { places: self.clone(), owner: *owner }))
    }

    pub(crate) fn set_node(&self, owner: &Owner, node: Node) {
        if let Some(place) = self.lock().places.get_mut(owner) {
            place.node = Some(node);
        }
    }

    /// This node is what the claim waits for.
    pub(crate) fn set_before(&self, owner: &Owner, node: &str) {
        if let Some(place) = self.lock().places.get_mut(owner) {
            place.before = Some(node.into());
        }
    }

    /// This node was seen to be the first of its queue.
    pub(crate) fn is_first(&self, lock: &str, node: &str) {
        if let Some(known) = self.lock().queues.get_mut(lock)
            && known.first.as_deref() != Some(node)
        {
            known.first = Some(node.into());
        }
    }

    /// Whether this node is the one that was last seen to be the first.
    pub(crate) fn was_first(&self, lock: &str, node: &str) -> bool {
        self.lock().queues.get(lock).is_some_and(|known| known.first.as_deref() == Some(node))
    }

    /// The lock is ours from now on. What a repeated claim was given stays what it was. `None` when the place is gone
    /// meanwhile.
    pub(crate) fn hold(&self, owner: &Owner, told: Sent, given: Given) -> Option<Given> {
        let since = self.clock.now();
        let Books { places, queues, .. } = &mut *self.lock();
        let place = places.get_mut(owner)?;
        let name = &place.node.as_ref()?.name;
        // Others may hold beside readers and permits, and stand before them.
        if let (Mode::Exclusive, Some(known)) = (place.mode, queues.get_mut(&place.lock)) {
            known.first = Some(name.clone());
        }
        let given = place.given.get_or_insert(given).clone();
        if matches!(place.standing, Standing::Coming { .. }) {
            place.standing = Standing::Held { since, told, watched_on: None };
            self.changed.notify_one();
        }
        Some(given)
    }

    /// The holder is told that his lease counts from `proven`.
    pub(crate) fn told(&self, owner: &Owner, proven: Sent) {
        if let Some(Place { standing: Standing::Held { told, .. }, .. }) = self.lock().places.get_mut(owner) {
            *told = (*told).max(proven);
        }
    }

    /// Marks grants as watched on the present connection of their sessions, and answers those that were not.
    pub(crate) fn to_watch<'a>(&self, owners: impl Iterator<Item = &'a Owner>) -> Vec<(Owner, Place)> {
        let mut books = self.lock();
        let mut unwatched = Vec::new();
        for owner in owners {
            let Some(place) = books.places.get_mut(owner) else { continue };
            let connection = Some(place.session.state().connection);
            if let Standing::Held { watched_on, .. } = &mut place.standing
                && std::mem::replace(watched_on, connection) != connection
            {
                unwatched.push((*owner, place.clone()));
            }
        }
        unwatched
    }

    /// The node is not watched, or not any more.
    pub(crate) fn unwatched(&self, owner: &Owner) {
        if let Some(Place { standing: Standing::Held { watched_on, .. }, .. }) = self.lock().places.get_mut(owner) {
            *watched_on = None;
        }
        self.changed.notify_one();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().places.is_empty()
    }

    /// Takes out every place of a session that has ended.
    pub(crate) fn remove_session(&self, id: i64) -> Vec<(Owner, Place)> {
        self.lock().extract(|_, place| place.session.id == id)
    }

    /// Looks at each place; those for which `look` answers `false` are taken out, and `settle` has to be called for each.
    pub(crate) fn sift(&self, mut look: impl FnMut(&Owner, &mut Place) -> bool) {
        let mut books = self.lock();
        let sifted = books.extract(|owner, place| !look(owner, place));
        books.sifted.extend(sifted.into_iter().map(|(owner, _)| owner));
    }

    /// What was sifted out has gone, or was put back.
    pub(crate) fn settle(&self, owner: &Owner) {
        self.lock().sifted.remove(owner);
        self.settled.notify_waiters();
    }

    /// Waits until nothing of this claim is on its way out: a repeat could take a node for its own that is about to be
    /// deleted. Ends with the requests for that.
    pub(crate) async fn until_settled(&self, owner: &Owner) {
        loop {
            let settled = self.settled.notified(); // from here on, and so before the look
            if !self.lock().sifted.contains(owner) {
                return;
            }
            settled.await;
        }
    }

    pub(crate) fn clear(&self) {
        self.lock().extract(|_, _| true);
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        // Nothing in here can panic half way.
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    fn insert(&mut self, owner: Owner, place: Place) {
        self.queues.entry(place.lock.clone()).or_default().places += 1;
        if let Some(before) = self.places.insert(owner, place) {
            self.left(&before);
        }
    }

    fn remove(&mut self, owner: &Owner) -> Option<Place> {
        let place = self.places.remove(owner)?;
        self.left(&place);
        Some(place)
    }

    fn extract(&mut self, mut which: impl FnMut(&Owner, &mut Place) -> bool) -> Vec<(Owner, Place)> {
        let extracted: Vec<_> = self.places.extract_if(|owner, place| which(owner, place)).collect();
        extracted.iter().for_each(|(_, place)| self.left(place));
        extracted
    }

    fn left(&mut self, place: &Place) {
        if let Some(known) = self.queues.get_mut(&place.lock) {
            known.places -= 1;
            if known.places == 0 {
                self.queues.remove(&place.lock);
            }
        }
    }
}

/// Somebody asks for a claim, or awaits its turn. When he goes away without the lock, the claim is left alone, and the
/// sentry takes it out of the queue a moment later (C1).
#[derive(Debug)]
pub(crate) struct Attendance {
    places: Arc<Places>,
    owner: Owner,
}

impl Drop for Attendance {
    fn drop(&mut self) {
        let now = self.places.clock.now();
        if let Some(Place { standing: Standing::Coming { alone_since }, .. }) =
            self.places.lock().places.get_mut(&self.owner)
        {
            *alone_since = Some(now);
            self.places.changed.notify_one();
        }
    }
}

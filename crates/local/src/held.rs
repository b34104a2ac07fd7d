//! What this client holds, waits for and keeps open.

use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
};

use fencepost_core::{
    claim::{Claim, Grant, LossReason},
    name::LockName,
    owner::Owner,
};
use rustix::io::Errno;

use crate::{
    encode::Place,
    lockfile::{LockFile, inode_at},
    problem::{Outcome, Problem},
    queue::{EmptyQueue, Ticket},
    seats::Seat,
    store::Shared,
    watch::DirectoryWatch,
};

/// Files that are kept open for the next claim of the same lock. Opening and closing are half of what a lock costs.
const IDLE: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) held: HashMap<Owner, Held>,
    pub(crate) waiting: HashMap<Owner, Ticket>,
    /// Files of locks that were given back, kept open for the next claim.
    pub(crate) idle: HashMap<PathBuf, LockFile>,
    pub(crate) watch: Option<DirectoryWatch>,
    /// Those of directories in which we sit, once a hold has lasted.
    pub(crate) seat_watches: HashMap<PathBuf, DirectoryWatch>,
}

#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) keeps: Keeps,
    pub(crate) inode: u64,
    pub(crate) name: LockName,
    pub(crate) file: PathBuf,
    pub(crate) grant: Grant,
    /// Another process may have the descriptor, so that closing ours makes no event.
    pub(crate) shared_out: bool,
    pub(crate) lost: bool,
    /// Left to be removed, if it is empty, by whoever came from it.
    _queue: Option<EmptyQueue>,
}

/// What keeps a grant.
#[derive(Debug)]
pub(crate) enum Keeps {
    /// The lock of the file.
    Alone(LockFile),
    /// A seat beside others.
    Beside(Seat),
}

impl Held {
    fn new(place: &Place, keeps: Keeps, inode: u64, grant: Grant) -> Self {
        let (name, file) = (place.name.clone(), place.file.clone());
        Self { keeps, inode, name, file, grant, shared_out: false, lost: false, _queue: None }
    }
}

impl Shared {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics between two changes that belong together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock's file: the one that lies open from the last time, or opened now.
    pub(crate) fn open_lock(&self, place: &Place) -> Outcome<LockFile> {
        if let Some(lock) = self.state().idle.remove(&place.file) {
            return Ok(lock);
        }
        match LockFile::open(&self.directory, place) {
            Err(Problem::System { errno: Errno::MFILE | Errno::NFILE, .. }) => {
                let _idle = std::mem::take(&mut self.state().idle);
                LockFile::open(&self.directory, place)
            }
            opened => opened,
        }
    }

    /// Keeps a file open that is locked by nobody.
    pub(crate) fn keep(&self, file: PathBuf, lock: LockFile) {
        let mut state = self.state();
        if *self.closed.borrow() {
            return;
        }
        if state.idle.len() >= IDLE
            && let Some(other) = state.idle.keys().next().cloned()
        {
            state.idle.remove(&other);
        }
        state.idle.insert(file, lock);
    }

    /// Enters a grant that was just taken.
    pub(crate) fn hold(
        self: &Arc<Self>,
        claim: &Claim,
        place: &Place,
        keeps: Keeps,
        inode: u64,
        grant: Grant,
        removals: u64,
    ) {
        {
            let mut state = self.state();
            self.enter(&mut state, claim, Held::new(place, keeps, inode, grant), removals);
        }
        self.watch_if_it_lasts();
    }

    /// Enters a grant that was waited for, unless the place in the queue was given back meanwhile: then the grant goes.
    pub(crate) fn hold_from_queue(
        self: &Arc<Self>,
        claim: &Claim,
        place: &Place,
        keeps: Keeps,
        inode: u64,
        grant: Grant,
        removals: u64,
    ) -> Option<Grant> {
        let ticket = {
            let mut state = self.state();
            let mut ticket = state.waiting.remove(claim.owner())?;
            let held = Held { _queue: ticket.served(), ..Held::new(place, keeps, inode, grant.clone()) };
            self.enter(&mut state, claim, held, removals);
            ticket
        };
        // Its going wakes the next waiter, who then watches the lock.
        drop(ticket);
        self.watch_if_it_lasts();
        Some(grant)
    }

    fn enter(self: &Arc<Self>, state: &mut State, claim: &Claim, mut held: Held, removals: u64) {
        // An event that came before this entry found nobody to tell.
        if self.removals() != removals {
            self.look_after(claim.owner(), &mut held);
        }
        if state.watch.is_some() && matches!(held.keeps, Keeps::Beside(_)) {
            self.watch_seats(state, &self.place(claim.name()));
        }
        state.held.insert(*claim.owner(), held);
    }

    /// Tells the holder if its file is gone from the path.
    pub(crate) fn look_after(&self, owner: &Owner, held: &mut Held) {
        // What cannot be examined is not known to be removed.
        let mut gone = matches!(inode_at(&held.file), Ok(inode) if inode != Some(held.inode));
        if let Keeps::Beside(seat) = &held.keeps {
            gone = gone || !seat.in_place();
        }
        if gone && !held.lost {
            held.lost = true;
            if let Some(reporter) = self.reporter.get() {
                reporter.lost(*owner, LossReason::Deleted);
            }
        }
    }

    /// The number of the claim's ticket, as long as it waits.
    pub(crate) fn ticket_number(&self, owner: &Owner) -> Option<u64> {
        self.state().waiting.get(owner).map(|ticket| ticket.number)
    }

    pub(crate) fn granted(&self, owner: &Owner) -> Option<Grant> {
        self.state().held.get(owner).map(|held| held.grant.clone())
    }

    pub(crate) fn removals(&self) -> u64 {
        self.removals.load(Ordering::SeqCst)
    }
}

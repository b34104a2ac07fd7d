//! Telling a holder that its lock's file was removed (L1, L4).
//!
//! One watch on the directory serves every lock held through a store. It is not set up for a hold of milliseconds:
//! that would cost more than the hold. A hold that lasts [`SHORT`] brings it about, and what was removed before
//! the watch stood is found by one look at every file.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use fencepost_core::{
    clock::{self, BootClock},
    name::LockName,
};

use crate::{
    encode::Place,
    held::{Keeps, State},
    store::Shared,
    watch::DirectoryWatch,
};

/// Holds shorter than this are not watched.
const SHORT: Duration = Duration::from_millis(20);

/// How often held files are looked at where they cannot be watched.
const UNWATCHED: Duration = Duration::from_secs(1);

impl Shared {
    /// Sees to it that the directory is watched if a hold lasts.
    pub(crate) fn watch_if_it_lasts(self: &Arc<Self>) {
        if self.watch_is_due.swap(true, Ordering::SeqCst) {
            return;
        }
        let due = Due(Arc::downgrade(self));
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => {
                runtime.spawn(async move {
                    clock::sleep(&BootClock, SHORT).await;
                    due.watch();
                    due.look_now_and_then().await;
                });
            }
            Err(_) => due.watch(),
        }
    }

    /// Sees to it that the seats of a lock are watched, which we have one of.
    pub(crate) fn watch_seats(self: &Arc<Self>, state: &mut State, place: &Place) {
        let seats = place.seats();
        if state.seat_watches.contains_key(&seats) {
            return;
        }
        let (told, file) = (Arc::downgrade(self), place.file.clone());
        let watch = DirectoryWatch::of_seats(&seats, move || {
            if let Some(shared) = told.upgrade() {
                let mut state = shared.state();
                state.held.iter_mut().filter(|(_, held)| held.file == file).for_each(|(owner, held)| {
                    shared.look_after(owner, held);
                });
            }
        });
        if let Some(watch) = watch {
            state.seat_watches.insert(seats, watch);
        }
    }

    /// Ends that watch unless we still sit there.
    pub(crate) fn forget_seats(&self, place: &Place) {
        let _watch = {
            let mut state = self.state();
            let sits = state.held.values().any(|held| held.file == place.file);
            if sits { None } else { state.seat_watches.remove(&place.seats()) }
        };
    }

    /// Something was removed from the directory.
    fn removed(&self, file_name: Option<&[u8]>) {
        // Counted first: who is about to enter a grant looks at the count after entering it.
        self.removals.fetch_add(1, Ordering::SeqCst);
        let mut state = self.state();
        for (owner, held) in &mut state.held {
            let held_name = held.file.file_name().unwrap_or_default().as_encoded_bytes();
            if file_name.is_none_or(|name| name == held_name) {
                self.look_after(owner, held);
            }
        }
    }
}

/// A watch that is to be set up. Dropped before, as by a runtime that ends, it lets the next hold bring it about.
struct Due(std::sync::Weak<Shared>);

impl Due {
    fn watch(&self) {
        let Some(shared) = self.0.upgrade() else { return };
        {
            let mut state = shared.state();
            if state.watch.is_some() || state.held.is_empty() || *shared.closed.borrow() {
                return;
            }
            let told = Arc::downgrade(&shared);
            state.watch = DirectoryWatch::new(&shared.directory.path, move |file_name| {
                if let Some(shared) = told.upgrade() {
                    shared.removed(file_name);
                }
            });
            let beside = state.held.values().filter(|held| matches!(held.keeps, Keeps::Beside(_)));
            let names: Vec<LockName> = beside.map(|held| held.name.clone()).collect();
            for name in names {
                shared.watch_seats(&mut state, &shared.place(&name));
            }
        }
        shared.removed(None);
    }

    /// Where the kernel has no watch to give, as when the user's limit is reached, for as long as anything is held.
    async fn look_now_and_then(&self) {
        while let Some(shared) = self.0.upgrade() {
            {
                let state = shared.state();
                if state.watch.is_some() || state.held.is_empty() {
                    return;
                }
            }
            shared.removed(None);
            drop(shared);
            clock::sleep(&BootClock, UNWATCHED).await;
        }
    }
}

impl Drop for Due {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            let watched = shared.state().watch.is_some();
            shared.watch_is_due.store(watched, Ordering::SeqCst);
        }
    }
}

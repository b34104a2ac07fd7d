//! The cells of the memory store.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

use super::MemorySpace;
use crate::{
    cells::{Cell, Cells, Change, Changed, Version},
    clock::Moment,
    error::Error,
    name::LockName,
    owner::Owner,
    store::BoxFuture,
};

#[derive(Debug, Default)]
pub(super) struct Shelf(Mutex<HashMap<LockName, Place>>);

/// Where a cell is, or was: its version outlives it.
#[derive(Debug, Default)]
struct Place {
    version: u64,
    content: Option<Content>,
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct Content {
    value: Arc<[u8]>,
    by: Owner,
    expires: Option<Moment>,
}

impl Place {
    fn cell(&self, now: Moment) -> Option<Cell> {
        let content = self.content.as_ref().filter(|content| content.expires.is_none_or(|at| now < at))?;
        Some(Cell {
            value: content.value.clone(),
            version: Version(self.version),
            by: content.by,
            expires_in: content.expires.map(|at| at.since(now)),
        })
    }

    fn change(&mut self, now: Moment, change: &Change) -> Changed {
        let found = self.cell(now);
        if let Some(cell) = found.as_ref().filter(|cell| cell.by == change.by) {
            return Changed::Done(cell.version); // a repeat of a change whose answer was lost
        }
        if !change.expected.matches(found.as_ref()) {
            return Changed::Conflict(found);
        }
        self.content = change.value.clone().map(|value| Content {
            value,
            by: change.by,
            expires: change.ttl.map(|ttl| now.after(ttl.get())),
        });
        if self.content.is_some() {
            self.version += 1;
        }
        self.changed.notify_waiters();
        Changed::Done(Version(self.version))
    }
}

impl MemorySpace {
    fn places(&self) -> MutexGuard<'_, HashMap<LockName, Place>> {
        // A panic between two changes leaves whole places behind.
        self.shelf.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Cells for MemorySpace {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        let found = self.places().get(key).and_then(|place| place.cell(self.now()));
        Box::pin(std::future::ready(Ok(found)))
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(async move {
            let now = self.now();
            Ok(self.places().entry(change.key.clone()).or_default().change(now, change))
        })
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let bell = self.places().entry(key.clone()).or_default().changed.clone();
            let rung = bell.notified();
            tokio::pin!(rung);
            rung.as_mut().enable(); // first listen, then look (W1)
            let found = self.read(key).await?;
            if found.as_ref().map(|cell| cell.version) != seen {
                return Ok(());
            }
            match found.and_then(|cell| cell.expires_in) {
                Some(left) => tokio::select! {
                    () = rung => {}
                    () = self.clock.sleep_until(self.now().after(left)) => {}
                },
                None => rung.await,
            }
            Ok(())
        })
    }
}

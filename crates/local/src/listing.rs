//! Who holds and who waits.

use std::{collections::BTreeMap, fs, path::Path};

use fencepost_core::{
    claim::{Holder, LockState},
    name::LockName,
};

use crate::{
    encode::{LOCK_SUFFIX, Place, QUEUE_SUFFIX},
    floor::as_errno,
    lockfile::LockFile,
    problem::{Outcome, Problem},
    queue,
    record::{self, Seats},
    seats,
};

/// The locks that are held or waited for, sorted by name.
pub(crate) fn inspect(directory: &Path, only: Option<&LockName>) -> Outcome<Vec<LockState>> {
    let mut found = Found::default();
    if let Some(name) = only {
        let place = Place::of(directory, name);
        found.lock_file(&place.file)?;
        found.queue(&place.queue())?;
    } else {
        let system = |error: std::io::Error| Problem::system("listing", directory)(as_errno(&error));
        for entry in fs::read_dir(directory).map_err(system)? {
            let path = entry.map_err(system)?.path();
            let file_name = path.file_name().unwrap_or_default().as_encoded_bytes();
            if file_name.ends_with(LOCK_SUFFIX.as_bytes()) {
                found.lock_file(&path)?;
            } else if file_name.ends_with(QUEUE_SUFFIX.as_bytes()) {
                found.queue(&path)?;
            }
        }
    }
    Ok(found.0.into_values().collect())
}

/// The lock's holder at this moment, or one of them.
pub(crate) fn holder(place: &Place) -> Outcome<Option<Holder>> {
    let Some(lock) = LockFile::open_to_read(&place.file)? else { return Ok(None) };
    match lock.anyone_beside(place, record::seats_in(&lock.page(&place.file)?))? {
        Some(holder) => Ok(Some(holder)),
        None if lock.is_held(&place.file)? => lock.recorded(&place.file),
        None => Ok(None),
    }
}

#[derive(Default)]
struct Found(BTreeMap<LockName, LockState>);

impl Found {
    fn lock_file(&mut self, path: &Path) -> Outcome<()> {
        let Some(lock) = LockFile::open_to_read(path)? else { return Ok(()) };
        let held = lock.is_held(path)?;
        let page = lock.page(path)?;
        let seats = record::seats_in(&page);
        if page.is_empty() || !(held || seats != Seats::None) {
            return Ok(()); // free, or its first taker is at work
        }
        let Ok(name) = LockName::new(record::name_in(path, &page)?) else { return Ok(()) };
        if seats == Seats::None {
            self.lock(name).holders.extend(record::holder(&page));
            return Ok(());
        }
        // Whoever has the file locked now only looks at the seats, or is about to sit down.
        let place = Place { name, file: path.to_owned() };
        let mut holders: Vec<Holder> = seats::sitting(&place, lock.identity(path)?)?
            .into_iter()
            .map(|(_, sitting)| sitting.holder(seats))
            .collect();
        holders.sort_by_key(|holder| (holder.since_unix_ms, holder.slots.first().copied(), holder.owner));
        if !holders.is_empty() {
            self.lock(place.name).holders = holders;
        }
        Ok(())
    }

    fn queue(&mut self, path: &Path) -> Outcome<()> {
        for (name, waiter) in queue::waiters(path)? {
            self.lock(name).waiters.push(waiter);
        }
        Ok(())
    }

    fn lock(&mut self, name: LockName) -> &mut LockState {
        let empty = LockState { name: name.clone(), holders: Vec::new(), waiters: Vec::new() };
        self.0.entry(name).or_insert(empty)
    }
}

//! Holding a lock beside others: what a reader, or one who wants permits, does with the [seats](crate::seats).

use std::{
    collections::BTreeSet,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use fencepost_core::{
    claim::{Busy, Claim, Grant, Mode},
    clock::{Sent, wall_unix_ms},
    fence::Fence,
    name::LockName,
    refusal::Refusal,
};

use crate::{
    encode::Place,
    held::Keeps,
    lockfile::LockFile,
    problem::{Again, Outcome, Problem},
    queue,
    record::Seats,
    seats::{self, Gate, Seat, Sitting},
    store::{Attempt, Shared},
};

/// Whether somebody who wants a seat has waited for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comes {
    /// Gives way to those who wait.
    New,
    /// Is the first of those who wait.
    FromTheQueue,
}

/// What a try to sit down came to.
pub(crate) enum Tried {
    Seated(Seated),
    Busy(Busy),
}

/// A seat with all that goes with it.
pub(crate) struct Seated {
    pub(crate) seat: Seat,
    /// The number of the lock's file.
    pub(crate) inode: u64,
    pub(crate) grant: Grant,
    /// As counted before.
    pub(crate) removals: u64,
}

/// What a name is in use as.
enum Use {
    Lock,
    Semaphore { of: u32 },
}

/// The turns of this store's own tasks, a few locks sharing one. A thousand readers that come at once would otherwise find
/// each other at the gate again and again, and some of them take it for stuck.
#[derive(Debug, Default)]
pub(crate) struct Gates([tokio::sync::Mutex<()>; 16]);

impl Shared {
    /// Waits for the turn among this store's own tasks, first come first served. Cancel safe.
    pub(crate) async fn turn_at_gate(&self, place: &Place) -> tokio::sync::MutexGuard<'_, ()> {
        let mut hasher = DefaultHasher::new();
        place.file.hash(&mut hasher);
        let Gates(gates) = &self.gates;
        gates[hasher.finish() as usize % gates.len()].lock().await
    }

    /// Tries for one who has not waited.
    pub(crate) fn newcomer_beside(self: &Arc<Self>, claim: &Claim, place: &Place) -> Outcome<Attempt> {
        match self.sit(claim, place, Comes::New)? {
            Tried::Seated(Seated { seat, inode, grant, removals }) => {
                self.hold(claim, place, Keeps::Beside(seat), inode, grant.clone(), removals);
                Ok(Attempt::Granted(grant))
            }
            Tried::Busy(busy) => Ok(Attempt::Refused(busy)),
        }
    }

    /// Tries once to sit down.
    pub(crate) fn sit(&self, claim: &Claim, place: &Place, comes: Comes) -> Outcome<Tried> {
        let mode = claim.holding.wants()[0].mode;
        loop {
            let gate = Gate::enter(&self.directory, place)?;
            let lock = self.open_lock(place)?;
            let removals = self.removals();
            if !lock.try_lock(&place.file)? {
                if !lock.is_at(&place.file)? {
                    continue;
                }
                return self.held_alone(&lock, place, mode).map(Tried::Busy);
            }
            let sat = self.sit_down(claim, place, comes, &lock, removals);
            lock.unlock();
            drop(gate);
            // It stays open for the next one unless its closing is what waiters are told by.
            if matches!(&sat, Ok(Some(_)) if !lock.look(&place.file)?.may_have_waiters()) {
                self.keep(place.file.clone(), lock);
            }
            if let Some(tried) = sat? {
                return Ok(tried);
            }
        }
    }

    /// The lock's file is locked by somebody else.
    fn held_alone(&self, lock: &LockFile, place: &Place, mode: Mode) -> Outcome<Busy> {
        if lock.anyone_beside(place, lock.seats(place)?)?.is_some() {
            // Then nobody has it alone: somebody who wants to only finds that out.
            return Err(Problem::Again(Again::GateTaken(place.file.clone())));
        }
        // Who wants it alone gives way to those who wait for permits, and has it locked until then.
        if matches!(mode, Mode::Permits { .. }) && !matches!(queue::wanted(place)?, Some(Mode::Permits { .. })) {
            return Err(Problem::Refused(Refusal::LockInUse));
        }
        Ok(Busy { holder: lock.recorded(&place.file)?, ..Busy::default() })
    }

    /// With the gate and the lock's file locked, so that nobody else sits down, leaves aside. `None` when the file is not
    /// the one at its path any more.
    fn sit_down(
        &self,
        claim: &Claim,
        place: &Place,
        comes: Comes,
        lock: &LockFile,
        removals: u64,
    ) -> Outcome<Option<Tried>> {
        let mode = claim.holding.wants()[0].mode;
        let at = lock.identity(&place.file)?;
        let seats = lock.seats(place)?;
        let sitting = match (seats, mode) {
            (Seats::None, _) => Vec::new(),
            // All that a reader needs to know of the others is of which kind they are.
            (_, Mode::Shared) => seats::anyone(place, at)?.into_iter().collect(),
            _ => seats::sitting(place, at)?.into_iter().map(|(_, sitting)| sitting).collect(),
        };
        let waited_for =
            comes == Comes::New && lock.look(&place.file)?.may_have_waiters() && self.somebody_waits(lock, place)?;
        let used = in_use_as(seats, &sitting, comes, waited_for.then(|| queue::wanted(place)).transpose()?.flatten());
        let limit = limit_for(mode, used.as_ref(), comes)?;
        let holder = sitting.first().map(|sitting| sitting.holder(seats));
        if waited_for {
            let ahead = Some(queue::count_before(place, u64::MAX)?);
            return Ok(Some(Tried::Busy(Busy { holder, ahead, ..Busy::default() })));
        }
        let Some(slots) = free_slots(mode, limit, &sitting) else {
            return Ok(Some(Tried::Busy(Busy { holder, ..Busy::default() })));
        };
        let sent = Sent::now(&*self.clock);
        let json = self.claimant_json(&claim.claimant);
        let mut taker = self.taker(claim, &json);
        if let Seats::Permits(of) = &mut taker.seats {
            *of = limit;
        }
        let fence: Fence = lock.record_beside(&self.directory, place, taker)?;
        let particulars = Sitting::new(at, claim.owner(), &claim.claimant, taker.since_unix_ms, mode);
        let seat = Seat::take(&self.directory, place, &particulars.with(&slots, Some(fence)))?;
        let stands = lock.stands(&self.directory, place);
        if !matches!(stands, Ok(true)) {
            seat.leave(false);
            return stands.map(|_| None);
        }
        let grant = Grant { slots: slots.into(), ..Grant::new(sent, None, Some(fence)) };
        Ok(Some(Tried::Seated(Seated { seat, inode: at.inode, grant, removals })))
    }

    /// Makes a reader of one who has the lock alone, without a gap: the seat is taken before the lock is let go. False
    /// when nothing of the claim is held.
    pub(crate) fn become_reader(self: &Arc<Self>, claim: &Claim) -> Outcome<bool> {
        let place = self.place(claim.name());
        let mut state = self.state();
        let Some(held) = state.held.get_mut(claim.owner()) else { return Ok(false) };
        self.look_after(claim.owner(), held);
        if held.lost {
            return Ok(false);
        }
        let Keeps::Alone(lock) = &held.keeps else { return Ok(true) };
        let json = self.claimant_json(&claim.claimant);
        let mut taker = self.taker(claim, &json);
        taker.seats = Seats::Readers;
        let fence = lock.record_beside(&self.directory, &place, taker)?;
        let at = lock.identity(&place.file)?;
        let since = wall_unix_ms(&*self.clock);
        let sitting = Sitting::new(at, claim.owner(), &claim.claimant, since, Mode::Shared);
        let seat = Seat::take(&self.directory, &place, &sitting.with(&[], Some(fence)))?;
        let shared_out = std::mem::replace(&mut held.shared_out, false);
        let before = std::mem::replace(&mut held.keeps, Keeps::Beside(seat));
        if state.watch.is_some() {
            self.watch_seats(&mut state, &place);
        }
        drop(state);
        if let Keeps::Alone(lock) = before {
            lock.unlock();
            if shared_out {
                lock.nudge(); // to the readers who wait; otherwise the close tells them
            }
        }
        Ok(true)
    }

    /// Sets the limit of a semaphore in use, and answers the former one.
    pub(crate) fn set_limit(&self, name: &LockName, of: u32) -> Outcome<Option<u32>> {
        if of == 0 {
            return Err(Problem::Refused(Refusal::NoPermits));
        }
        let place = self.place(name);
        let _gate = Gate::enter(&self.directory, &place)?;
        let Some(lock) = LockFile::open_existing(&place)? else { return Ok(None) };
        let wanted = queue::wanted(&place)?;
        if !lock.try_lock(&place.file)? {
            self.held_alone(&lock, &place, Mode::Permits { count: 1, of })?;
            // Somebody who gives way to those who wait.
            return Err(Problem::Again(Again::GateTaken(place.file)));
        }
        let seats = lock.seats(&place)?;
        let sits = lock.anyone_beside(&place, seats)?;
        let before = match (seats, sits.map(|holder| holder.mode).or(wanted)) {
            (_, None) => Ok(None),
            (Seats::Permits(before), Some(Mode::Permits { .. })) | (_, Some(Mode::Permits { of: before, .. })) => {
                lock.record_limit(&place, of).map(|()| Some(before))
            }
            (_, Some(Mode::Exclusive | Mode::Shared)) => Err(Problem::Refused(Refusal::LockInUse)),
        };
        lock.unlock();
        lock.nudge(); // for more of them, the first who waits may have enough now
        before
    }
}

/// What the name is in use as, for somebody who comes so.
fn in_use_as(seats: Seats, sitting: &[Sitting], comes: Comes, wanted: Option<Mode>) -> Option<Use> {
    let stated = match (sitting.first().map(Sitting::mode), comes) {
        (Some(mode), _) => Some(mode),
        (None, Comes::New) => wanted,
        // He is one of those who use it, and the record still has the limit.
        (None, Comes::FromTheQueue) => match seats {
            Seats::Permits(of) => Some(Mode::Permits { count: 0, of }),
            Seats::None | Seats::Readers => None,
        },
    };
    match (stated?, seats) {
        (Mode::Permits { .. }, Seats::Permits(of)) | (Mode::Permits { of, .. }, _) => Some(Use::Semaphore { of }),
        (Mode::Exclusive | Mode::Shared, _) => Some(Use::Lock),
    }
}

/// How many permits there are, zero for a reader; or why he cannot have what he wants, however long he waits.
fn limit_for(mode: Mode, used: Option<&Use>, comes: Comes) -> Outcome<u32> {
    let refused = match (mode, used) {
        (Mode::Permits { count, .. }, Some(Use::Semaphore { of })) if comes == Comes::FromTheQueue => {
            if count <= *of {
                return Ok(*of);
            }
            Refusal::TooMany { count, of: *of }
        }
        (Mode::Permits { of, .. }, Some(Use::Semaphore { of: limit })) if of != *limit => {
            Refusal::SemaphoreInUse { of: *limit }
        }
        (Mode::Permits { of, .. }, Some(Use::Semaphore { .. }) | None) => return Ok(of),
        (Mode::Permits { .. }, Some(Use::Lock)) => Refusal::LockInUse,
        (Mode::Exclusive | Mode::Shared, Some(Use::Semaphore { of })) if comes == Comes::New => {
            Refusal::SemaphoreInUse { of: *of }
        }
        (Mode::Exclusive | Mode::Shared, _) => return Ok(0),
    };
    Err(Problem::Refused(refused))
}

/// The lowest slots that nobody has, none for a reader; `None` when there are too few.
fn free_slots(mode: Mode, limit: u32, sitting: &[Sitting]) -> Option<Vec<u32>> {
    let Mode::Permits { count, .. } = mode else { return Some(Vec::new()) };
    let taken: BTreeSet<u32> = sitting.iter().flat_map(Sitting::slots).copied().collect();
    // After the limit was made smaller there may be slots beyond it, and their holders count.
    if taken.len() + count as usize > limit as usize {
        return None;
    }
    Some((0..).filter(|slot| !taken.contains(slot)).take(count as usize).collect())
}

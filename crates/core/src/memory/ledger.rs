//! Who holds, who waits and which fence comes next: every rule of the memory store, without a clock of its own.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use tokio::sync::Notify;

use super::{CONFIRM_WITHIN, Client};
use crate::{
    claim::{
        Busy, Claim, Claimant, Forced, Holder, Holding, LockState, LossReason, Mode, Patience, Release, Waiter, Want,
    },
    clock::Moment,
    fence::Fence,
    name::LockName,
    owner::Owner,
    refusal::Refusal,
};

#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Never removed: a lock's fence outlives its holders (F4).
    locks: BTreeMap<LockName, Lock>,
    holds: HashMap<Owner, Hold>,
    queue: HashMap<Owner, Queued>,
    arrivals: u64,
}

#[derive(Debug, Default)]
struct Lock {
    fence: u64,
    /// The limit of a semaphore that is in use; nothing for a lock.
    limit: Option<u32>,
    holders: Vec<Owner>,
    waiters: BTreeSet<(u64, Owner)>,
    /// Whose grant ran out last, so that its renewal hears "expired" and not "deleted".
    lapsed: Option<Owner>,
}

#[derive(Debug)]
struct Hold {
    party: Party,
    given: Given,
    expires: Moment,
}

#[derive(Debug)]
struct Queued {
    party: Party,
    arrival: u64,
    offered: Arc<Notify>,
}

/// What is known of a claim while it holds or waits.
#[derive(Clone, Debug)]
struct Party {
    holding: Holding,
    claimant: Arc<Claimant>,
    since_unix_ms: u64,
    client: Arc<Client>,
}

/// What a grant gives beyond the time.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) fence: Option<Fence>,
    pub(super) slots: Arc<[u32]>,
}

pub(super) enum Answer {
    Granted(Given),
    Refused(Refusal),
    Busy(Busy),
    Queued(Busy),
}

pub(super) enum Turn {
    Granted(Given),
    /// Wait for `offered`, or look again when the holder in the way may have expired.
    Wait {
        offered: Arc<Notify>,
        look_again: Option<Moment>,
    },
    /// Neither held nor queued.
    Gone,
}

impl Ledger {
    pub(super) fn claim(
        &mut self,
        now: Moment,
        wall: u64,
        claim: &Claim,
        patience: Patience,
        client: &Arc<Client>,
    ) -> Answer {
        let holding = &claim.holding;
        self.settle_all(now, holding);
        if let Some(given) = self.confirm(now, claim) {
            return Answer::Granted(given); // a repeat of a claim whose answer was lost
        }
        if let Some(refusal) = self.refusal(holding) {
            self.leave_queue(now, &holding.owner);
            return Answer::Refused(refusal);
        }
        let arrival = self.queue.get(&holding.owner).map(|queued| queued.arrival);
        let busy = self.in_the_way(now, holding, arrival.unwrap_or(u64::MAX));
        match (arrival, patience) {
            (None, _) if self.admissible(holding, u64::MAX) => {
                let party = party(claim, wall, client);
                Answer::Granted(self.grant(party, now.after(claim.ttl.get())))
            }
            (Some(_), Patience::Queue) => Answer::Queued(busy),
            (None, Patience::Queue) => {
                self.enqueue(party(claim, wall, client));
                Answer::Queued(busy)
            }
            (_, Patience::Once) => {
                self.leave_queue(now, &holding.owner);
                Answer::Busy(busy)
            }
        }
    }

    /// Confirms an offer, or says what to wait for.
    pub(super) fn turn(&mut self, now: Moment, claim: &Claim) -> Turn {
        self.settle_all(now, &claim.holding);
        if let Some(given) = self.confirm(now, claim) {
            return Turn::Granted(given);
        }
        let Some(queued) = self.queue.get(claim.owner()) else { return Turn::Gone };
        let in_the_way = claim.holding.wants().iter().flat_map(|want| self.holders_of(&want.name));
        Turn::Wait { offered: queued.offered.clone(), look_again: in_the_way.map(|hold| hold.expires).min() }
    }

    /// Extends a hold; never creates one (O2).
    pub(super) fn renew(&mut self, now: Moment, claim: &Claim) -> Result<(), LossReason> {
        self.settle_all(now, &claim.holding);
        if self.confirm(now, claim).is_some() {
            return Ok(());
        }
        let in_the_way = |want: &Want| self.holders_of(&want.name).any(|hold| conflict(&hold.party.holding, want));
        let lapsed = |want: &Want| self.locks.get(&want.name).is_some_and(|lock| lock.lapsed == Some(*claim.owner()));
        Err(if claim.holding.wants().iter().any(in_the_way) {
            LossReason::TakenOver
        } else if claim.holding.wants().iter().any(lapsed) {
            LossReason::Expired
        } else {
            LossReason::Deleted
        })
    }

    /// Makes a writer a reader, and lets the readers behind it in.
    pub(super) fn downgrade(&mut self, now: Moment, claim: &Claim) -> Result<(), LossReason> {
        self.renew(now, claim)?;
        if let Some(hold) = self.holds.get_mut(claim.owner()) {
            hold.party.holding = hold.party.holding.shared();
        }
        claim.holding.wants().iter().for_each(|want| self.offer(now, &want.name));
        Ok(())
    }

    /// Sets the limit of a semaphore in use, and answers the former one.
    pub(super) fn resize(&mut self, now: Moment, name: &LockName, of: u32) -> Result<Option<u32>, Refusal> {
        self.settle(now, name);
        if of == 0 {
            return Err(Refusal::NoPermits);
        }
        let Some(lock) = self.locks.get_mut(name).filter(|lock| lock.in_use()) else { return Ok(None) };
        let Some(before) = lock.limit else { return Err(Refusal::LockInUse) };
        lock.limit = Some(of);
        let waiting: Vec<Owner> = lock.waiters.iter().map(|(_, owner)| *owner).collect();
        for owner in waiting {
            let wants = self.queue.get(&owner).map(|queued| permits_of(&queued.party.holding, name));
            if wants.is_some_and(|count| count > of)
                && let Some(queued) = self.dequeue(&owner)
            {
                queued.offered.notify_one(); // finds itself gone, and claims again
            }
        }
        self.offer(now, name);
        Ok(Some(before))
    }

    pub(super) fn release(&mut self, now: Moment, holding: &Holding) -> Release {
        self.settle_all(now, holding);
        if self.leave_queue(now, &holding.owner) {
            return Release::Released;
        }
        if self.holds.contains_key(&holding.owner) {
            self.drop_hold(now, &holding.owner);
            return Release::Released;
        }
        let held = holding.wants().iter().any(|want| self.holders_of(&want.name).next().is_some());
        if held { Release::HeldByOther } else { Release::AlreadyExpired }
    }

    pub(super) fn inspect(&mut self, now: Moment, only: Option<&LockName>) -> Vec<LockState> {
        let names: Vec<LockName> = only.map_or_else(|| self.locks.keys().cloned().collect(), |name| vec![name.clone()]);
        names.iter().for_each(|name| self.settle(now, name));
        let state = |name: &LockName| {
            let waiters = self.locks.get(name).into_iter().flat_map(|lock| &lock.waiters);
            LockState {
                name: name.clone(),
                holders: self.holders_of(name).map(|hold| shown(now, hold, name)).collect(),
                waiters: waiters
                    .filter_map(|(_, owner)| self.queue.get(owner))
                    .map(|queued| as_waiter(queued, name))
                    .collect(),
            }
        };
        names.iter().map(state).filter(|state| !state.holders.is_empty() || !state.waiters.is_empty()).collect()
    }

    pub(super) fn force(&mut self, now: Moment, name: &LockName, if_fence: Option<Fence>) -> Forced {
        self.settle(now, name);
        let Some(hold) = self.holders_of(name).next() else { return Forced::NotHeld };
        if if_fence.is_some() && if_fence != hold.given.fence {
            return Forced::OtherFence(hold.given.fence);
        }
        let broken = shown(now, hold, name);
        self.evict(now, name);
        Forced::Broken(Some(broken))
    }

    /// Takes a lock from all its holders and tells them.
    pub(super) fn evict(&mut self, now: Moment, name: &LockName) {
        let owners = self.locks.get(name).map(|lock| lock.holders.clone()).unwrap_or_default();
        for owner in owners {
            if let Some(hold) = self.drop_hold(now, &owner) {
                hold.party.client.tell(owner, LossReason::Deleted);
            }
        }
    }

    pub(super) fn records(&mut self, now: Moment) -> usize {
        let names: Vec<LockName> = self.locks.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(now, name));
        self.holds.len() + self.queue.len()
    }

    pub(super) fn wake_waiters_of(&self, client: &Arc<Client>) {
        let theirs = self.queue.values().filter(|queued| Arc::ptr_eq(&queued.party.client, client));
        theirs.for_each(|queued| queued.offered.notify_one());
    }

    /// Makes a hold last its TTL from now on, which also turns an offer into a hold.
    fn confirm(&mut self, now: Moment, claim: &Claim) -> Option<Given> {
        let hold = self.holds.get_mut(claim.owner())?;
        hold.expires = now.after(claim.ttl.get());
        Some(hold.given.clone())
    }

    /// Whether the claim could be granted if nobody stood in its way.
    fn refusal(&self, holding: &Holding) -> Option<Refusal> {
        holding.wants().iter().find_map(|want| {
            let lock = self.locks.get(&want.name).filter(|lock| lock.in_use());
            match (want.mode, lock.map(|lock| lock.limit)) {
                (mode, _) if Refusal::of(mode).is_some() => Refusal::of(mode),
                (Mode::Permits { of, .. }, Some(Some(limit))) if of != limit => {
                    Some(Refusal::SemaphoreInUse { of: limit })
                }
                (Mode::Permits { .. }, Some(None)) => Some(Refusal::LockInUse),
                (Mode::Exclusive | Mode::Shared, Some(Some(of))) => Some(Refusal::SemaphoreInUse { of }),
                _ => None,
            }
        })
    }

    fn settle_all(&mut self, now: Moment, holding: &Holding) {
        holding.wants().iter().for_each(|want| self.settle(now, &want.name));
    }

    /// Removes what has expired on one lock and offers it to whoever is next. Whatever frees a lock ends here, and an
    /// expiry is noticed here by whoever asks first.
    fn settle(&mut self, now: Moment, name: &LockName) {
        let expired = |hold: &&Hold| now >= hold.expires;
        let lapsed: Vec<Owner> = self.holders_of(name).filter(expired).map(|hold| hold.party.holding.owner).collect();
        for owner in lapsed {
            if let Some(lock) = self.locks.get_mut(name) {
                lock.lapsed = Some(owner);
            }
            self.drop_hold(now, &owner);
        }
        self.offer(now, name);
    }

    /// Offers a lock to the waiters that can have it now, first come first: one that wants it for itself, all readers
    /// before the next of those, or as many as there are permits for (W2).
    fn offer(&mut self, now: Moment, name: &LockName) {
        let waiters = self.locks.get(name).map(|lock| lock.waiters.clone()).unwrap_or_default();
        for (arrival, owner) in waiters {
            let Some(queued) = self.queue.get(&owner) else { continue };
            if self.admissible(&queued.party.holding, arrival) {
                let Some(queued) = self.dequeue(&owner) else { continue };
                self.grant(queued.party, now.after(CONFIRM_WITHIN));
                queued.offered.notify_one();
            } else if queued.party.holding.wants().iter().any(|want| want.name == *name && want.mode != Mode::Shared) {
                break; // everybody behind it waits for it (W3)
            }
        }
    }

    /// Whether nobody who holds, and nobody who came before `arrival`, stands in the way.
    fn admissible(&self, holding: &Holding, arrival: u64) -> bool {
        holding.wants().iter().all(|want| {
            let Some(lock) = self.locks.get(&want.name) else { return true };
            let earlier = lock.waiters.iter().take_while(|(number, _)| *number < arrival);
            let mut earlier = earlier.filter_map(|(_, owner)| self.queue.get(owner)).map(|queued| &queued.party);
            if earlier.any(|party| conflict(&party.holding, want)) {
                return false;
            }
            match want.mode {
                Mode::Permits { count, of } => {
                    let taken = self.holders_of(&want.name).map(|hold| permits_of(&hold.party.holding, &want.name));
                    taken.sum::<u32>().saturating_add(count) <= lock.limit.unwrap_or(of)
                }
                Mode::Exclusive | Mode::Shared => {
                    !self.holders_of(&want.name).any(|hold| conflict(&hold.party.holding, want))
                }
            }
        })
    }

    fn grant(&mut self, party: Party, expires: Moment) -> Given {
        let owner = party.holding.owner;
        let slots = self.free_slots(&party.holding);
        let writes = party.holding.wants().iter().any(|want| want.mode != Mode::Shared);
        // One number for all locks of the claim, above every one of them; readers never advance a fence (F3).
        let locks = party.holding.wants().iter().filter_map(|want| self.locks.get(&want.name));
        let highest = locks.map(|lock| lock.fence).max().unwrap_or_default();
        let number = highest + u64::from(writes);
        for want in party.holding.wants() {
            let lock = self.locks.entry(want.name.clone()).or_default();
            lock.join(want.mode);
            lock.holders.push(owner);
            if want.mode != Mode::Shared {
                lock.fence = number;
            }
        }
        let given = Given { fence: Fence::new(number), slots };
        self.holds.insert(owner, Hold { party, given: given.clone(), expires });
        given
    }

    /// The lowest slots that nobody has, as many as the claim wants permits.
    fn free_slots(&self, holding: &Holding) -> Arc<[u32]> {
        let [Want { name, mode: Mode::Permits { count, .. } }] = holding.wants() else { return Arc::default() };
        let taken: BTreeSet<u32> = self.holders_of(name).flat_map(|hold| hold.given.slots.iter().copied()).collect();
        (0..).filter(|slot| !taken.contains(slot)).take(*count as usize).collect()
    }

    fn drop_hold(&mut self, now: Moment, owner: &Owner) -> Option<Hold> {
        let hold = self.holds.remove(owner)?;
        for want in hold.party.holding.wants() {
            if let Some(lock) = self.locks.get_mut(&want.name) {
                lock.holders.retain(|holder| holder != owner);
                lock.leave();
            }
        }
        hold.party.holding.wants().iter().for_each(|want| self.offer(now, &want.name));
        Some(hold)
    }

    fn enqueue(&mut self, party: Party) {
        self.arrivals += 1;
        let (owner, arrival) = (party.holding.owner, self.arrivals);
        for want in party.holding.wants() {
            let lock = self.locks.entry(want.name.clone()).or_default();
            lock.join(want.mode);
            lock.waiters.insert((arrival, owner));
        }
        self.queue.insert(owner, Queued { party, arrival, offered: Arc::default() });
    }

    /// Gives a place in the queue up; whoever waited only for that one is offered the lock.
    fn leave_queue(&mut self, now: Moment, owner: &Owner) -> bool {
        let Some(queued) = self.dequeue(owner) else { return false };
        queued.party.holding.wants().iter().for_each(|want| self.offer(now, &want.name));
        true
    }

    fn dequeue(&mut self, owner: &Owner) -> Option<Queued> {
        let queued = self.queue.remove(owner)?;
        for want in queued.party.holding.wants() {
            if let Some(lock) = self.locks.get_mut(&want.name) {
                lock.waiters.remove(&(queued.arrival, *owner));
                lock.leave();
            }
        }
        Some(queued)
    }

    fn holders_of(&self, name: &LockName) -> impl Iterator<Item = &Hold> {
        let holders = self.locks.get(name).into_iter().flat_map(|lock| &lock.holders);
        holders.filter_map(|owner| self.holds.get(owner))
    }

    fn in_the_way(&self, now: Moment, holding: &Holding, arrival: u64) -> Busy {
        let several = holding.wants().len() > 1;
        let held = |want: &&Want| self.holders_of(&want.name).any(|hold| conflict(&hold.party.holding, want));
        let name = holding.wants().iter().find(held).map_or(holding.name(), |want| &want.name);
        let waiters = self.locks.get(name).into_iter().flat_map(|lock| &lock.waiters);
        Busy {
            lock: several.then(|| name.clone()),
            holder: self.holders_of(name).next().map(|hold| shown(now, hold, name)),
            ahead: Some(waiters.take_while(|(number, _)| *number < arrival).count() as u64),
        }
    }
}

impl Lock {
    fn in_use(&self) -> bool {
        !self.holders.is_empty() || !self.waiters.is_empty()
    }

    /// Whoever comes first says what the lock is; the others were compared with it.
    fn join(&mut self, mode: Mode) {
        if let (false, Mode::Permits { of, .. }) = (self.in_use(), mode) {
            self.limit = Some(of);
        }
    }

    fn leave(&mut self) {
        if !self.in_use() {
            self.limit = None;
        }
    }
}

/// Whether one that holds, or came before, stands in the way of `want`, permits that are free left aside.
fn conflict(other: &Holding, want: &Want) -> bool {
    let both_read = |mode: Mode| want.mode == Mode::Shared && mode == Mode::Shared;
    other.wants().iter().any(|other| other.name == want.name && !both_read(other.mode))
}

/// How many permits of `name` are wanted or held.
fn permits_of(holding: &Holding, name: &LockName) -> u32 {
    match mode_of(holding, name) {
        Mode::Permits { count, .. } => count,
        Mode::Exclusive | Mode::Shared => 0,
    }
}

fn mode_of(holding: &Holding, name: &LockName) -> Mode {
    holding.wants().iter().find(|want| want.name == *name).map(|want| want.mode).unwrap_or_default()
}

fn party(claim: &Claim, since_unix_ms: u64, client: &Arc<Client>) -> Party {
    Party { holding: claim.holding.clone(), claimant: claim.claimant.clone(), since_unix_ms, client: client.clone() }
}

fn shown(now: Moment, hold: &Hold, name: &LockName) -> Holder {
    Holder {
        claimant: (*hold.party.claimant).clone(),
        owner: Some(hold.party.holding.owner),
        mode: mode_of(&hold.party.holding, name),
        slots: hold.given.slots.iter().copied().collect(),
        fence: hold.given.fence,
        since_unix_ms: Some(hold.party.since_unix_ms),
        expires_in: Some(hold.expires.since(now)),
    }
}

fn as_waiter(queued: &Queued, name: &LockName) -> Waiter {
    Waiter {
        claimant: (*queued.party.claimant).clone(),
        mode: mode_of(&queued.party.holding, name),
        since_unix_ms: Some(queued.party.since_unix_ms),
    }
}

//! Giving back, and taking from a holder by force.

use std::{path::PathBuf, sync::Arc};

use fencepost_core::{
    claim::{Forced, Holding, Release},
    fence::Fence,
    name::LockName,
};

use crate::{
    encode::Place,
    held::{Held, Keeps},
    listing,
    lockfile::{LockFile, inode_at},
    problem::Outcome,
    record::Seats,
    seats,
    store::Shared,
};

impl Shared {
    pub(crate) async fn release(self: &Arc<Self>, holding: &Holding) -> Outcome<Release> {
        let (held, ticket) = {
            let mut state = self.state();
            (state.held.remove(&holding.owner), state.waiting.remove(&holding.owner))
        };
        if let Some(held) = held {
            return match held {
                Held { keeps: Keeps::Alone(lock), file, shared_out, lost, .. } => {
                    self.release_alone(lock, file, shared_out, lost, holding)
                }
                Held { keeps: Keeps::Beside(seat), inode, file, shared_out, lost, .. } => {
                    let ours = !lost && seat.in_place() && inode_at(&file)? == Some(inode);
                    seat.leave(shared_out);
                    self.forget_seats(&self.place(holding.name()));
                    if ours { Ok(Release::Released) } else { self.not_ours(&self.place(holding.name())) }
                }
            };
        }
        if ticket.is_some() {
            return Ok(Release::Released);
        }
        // Another process of ours may hold it: the owner value is what counts (O1).
        self.persist(|| self.release_elsewhere(holding)).await
    }

    fn release_alone(
        &self,
        lock: LockFile,
        file: PathBuf,
        shared_out: bool,
        lost: bool,
        holding: &Holding,
    ) -> Outcome<Release> {
        lock.unlock();
        if shared_out {
            lock.nudge();
        }
        // Looked at after the unlocking: whoever marks the file later than this finds it free, and who did before is
        // told by its being closed. What was removed in between is taken for removed before.
        let seen = if lost { None } else { lock.not_removed(&file)? };
        let Some(seen) = seen else { return self.not_ours(&self.place(holding.name())) };
        if !shared_out && !seen.may_have_waiters() {
            self.keep(file, lock);
        }
        Ok(Release::Released)
    }

    fn release_elsewhere(&self, holding: &Holding) -> Outcome<Release> {
        let place = self.place(holding.name());
        let Some(lock) = LockFile::open_existing(&place)? else { return Ok(Release::AlreadyExpired) };
        if seats::unseat(&place, lock.identity(&place.file)?, &holding.owner)? {
            return Ok(Release::Released);
        }
        let ours = || Ok(lock.recorded(&place.file)?.is_some_and(|holder| holder.owner == Some(holding.owner)));
        // Whoever sits is recorded too, and holds nothing of the lock's own.
        if lock.seats(&place)? == Seats::None
            && lock.is_held(&place.file)?
            && ours()?
            && lock.take_away(&self.directory, &place, ours)?
        {
            return Ok(Release::Released);
        }
        self.not_ours(&place)
    }

    fn not_ours(&self, place: &Place) -> Outcome<Release> {
        let held = listing::holder(place)?.is_some();
        Ok(if held { Release::HeldByOther } else { Release::AlreadyExpired })
    }

    pub(crate) fn force(&self, name: &LockName, if_fence: Option<Fence>) -> Outcome<Forced> {
        let place = self.place(name);
        let Some(lock) = LockFile::open_existing(&place)? else { return Ok(Forced::NotHeld) };
        let at = lock.identity(&place.file)?;
        let current = || match lock.seats(&place)? {
            Seats::None if lock.is_held(&place.file)? => lock.recorded(&place.file),
            seats => lock.anyone_beside(&place, seats),
        };
        let Some(holder) = current()? else { return Ok(Forced::NotHeld) };
        if if_fence.is_some() && holder.fence != if_fence {
            return Ok(Forced::OtherFence(holder.fence));
        }
        let still = || Ok(if_fence.is_none() || current()?.and_then(|holder| holder.fence) == if_fence);
        if !lock.take_away(&self.directory, &place, still)? {
            return Ok(Forced::OtherFence(current()?.and_then(|holder| holder.fence)));
        }
        // They count for the file that is gone. Their going wakes whoever waits for one of them.
        for (seat, _) in seats::sitting(&place, at)? {
            seats::remove(&seat)?;
        }
        Ok(Forced::Broken(Some(holder)))
    }
}

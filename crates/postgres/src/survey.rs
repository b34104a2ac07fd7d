//! Locks seen and changed from outside: the listing, a lock taken from its holder, a semaphore's limit.

use fencepost_core::{
    claim::{Forced, LockState},
    error::{Error, Operation},
    fence::Fence,
    name::LockName,
    refusal::Refusal,
};

use crate::{
    answers::{Seen, forced},
    claiming::limit,
    failure::Failure,
    store::{PostgresStore, refused},
};

impl PostgresStore {
    pub(crate) async fn list(&self, only: Option<&LockName>) -> Result<Vec<LockState>, Error> {
        let failed = |failure: Failure| failure.error(Operation::Inspect, only);
        let (room, name) = (&self.room, only.map(LockName::as_str));
        let answer = room.link.call(&room.link.statements.inspect, &[&room.namespace.as_str(), &name]).await;
        let mut states: Vec<LockState> = Vec::new();
        for row in &answer.map_err(failed)? {
            let seen = Seen::read(row).ok_or_else(Failure::puzzling).map_err(failed)?;
            if states.last().is_none_or(|state| state.name != seen.name) {
                states.push(LockState { name: seen.name.clone(), holders: Vec::new(), waiters: Vec::new() });
            }
            if let Some(state) = states.last_mut() {
                seen.add_to(state);
            }
        }
        Ok(states)
    }

    pub(crate) async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Error> {
        let (room, statement) = (&self.room, &self.room.link.statements.force);
        let fence = if_fence.map(|fence| fence.get() as i64); // 63 bits
        // Not repeated: by then a waiter may hold it, who would lose it too.
        let answer = room.link.call_once(statement, &[&room.namespace.as_str(), &name.as_str(), &fence]).await;
        let forced = answer.and_then(|rows| rows.first().and_then(forced).ok_or_else(Failure::puzzling));
        forced.map_err(|failure| failure.error(Operation::Force, Some(name)))
    }

    pub(crate) async fn change_limit(&self, name: &LockName, of: u32) -> Result<Option<u32>, Error> {
        if of == 0 {
            return Err(refused(Operation::Resize, Refusal::NoPermits, name));
        }
        let (room, statement, of) =
            (&self.room, &self.room.link.statements.resize, limit(Operation::Resize, of, name)?);
        // Not repeated: the former limit would be the new one by then.
        let answer = room.link.call_once(statement, &[&room.namespace.as_str(), &name.as_str(), &of]).await;
        let failed = |failure: Failure| failure.error(Operation::Resize, Some(name));
        let rows = answer.map_err(failed)?;
        let row = rows.first().ok_or_else(Failure::puzzling).map_err(failed)?;
        let former: Option<i32> = row.try_get(1).unwrap_or_default();
        match (row.try_get(0).ok(), former.and_then(|former| u32::try_from(former).ok())) {
            (Some("free"), _) => Ok(None),
            (Some("lock"), _) => Err(refused(Operation::Resize, Refusal::LockInUse, name)),
            (Some("resized"), Some(former)) => Ok(Some(former)),
            _ => Err(failed(Failure::puzzling())),
        }
    }
}

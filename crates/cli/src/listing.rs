//! Showing and breaking locks: `ls`, `who`, `break`, `watch`, `observe`.

mod changes;
mod leaders;
mod view;

use std::time::Duration;

use fencepost::{
    LockName,
    claim::{Forced, LockState},
    clock::{self, BootClock},
};

pub(crate) use self::leaders::observe;
use self::view::{Lock, Named};
use crate::{
    arguments::{Break, Global},
    exit::{self, Ending},
    take, when,
};

/// How often `watch` looks. Two looks a second are nothing to any store and quick enough for people.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Every lock that is held or waited for, and every group that has members.
pub(crate) fn list(global: &Global) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        let states = locks.store().inspect(None).await?;
        let groups = if locks.capabilities().cells { locks.groups().await? } else { Vec::new() };
        let all = Named::all(&states, &groups);
        Ok(if global.json {
            print_json(&all.iter().map(Lock::of).collect::<Vec<_>>())
        } else if all.is_empty() {
            Ending::done().saying("nothing is held and nobody waits")
        } else {
            crate::print(&view::table(&all))
        })
    })
}

/// One lock's holders and waiters, and the members of the group of that name.
pub(crate) fn who(global: &Global, name: &LockName) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        let state = look(&locks, name).await?;
        let members = if locks.capabilities().cells { locks.members_of(name.as_str()).await? } else { Vec::new() };
        let named = Named::one(&state, &members);
        Ok(if global.json {
            print_json(&Lock::of(&named))
        } else if named.is_free() {
            Ending::done().saying(format!("{name} is free"))
        } else {
            crate::print(&view::table(&[named]))
        })
    })
}

/// Takes a lock from its holder.
pub(crate) fn break_by_force(global: &Global, verb: &Break) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        let name = &verb.name;
        let ending = match locks.store().force(name, verb.if_fence).await? {
            Forced::Broken(holder) => {
                let from = holder.as_ref().map_or_else(|| "its holder".into(), when::holder);
                let fence = holder.and_then(|holder| holder.fence).map(|fence| fence.get());
                Ending { fence, ..Ending::coded("broken", 0).saying(format!("{name} was taken from {from}")) }
            }
            Forced::NotHeld => Ending::coded("not_held", 0).saying(format!("nobody holds {name}; nothing was changed")),
            Forced::OtherFence(fence) => {
                let held = fence.map_or_else(|| "without a fence".into(), |fence| format!("with fence {fence}"));
                Ending { fence: fence.map(|fence| fence.get()), ..Ending::coded("other_fence", exit::BUSY) }
                    .saying(format!("{name} is held {held}; nothing was changed"))
            }
        };
        locks.close().await;
        Ok(ending)
    })
}

/// Each change of one lock's holders and waiters, until interrupted or nobody reads.
pub(crate) fn watch(global: &Global, name: &LockName) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        let mut seen = LockState { name: name.clone(), holders: Vec::new(), waiters: Vec::new() };
        loop {
            let now = look(&locks, name).await?;
            for change in changes::between(&seen, &now) {
                let line = if global.json { to_json(&change) } else { change.to_string() };
                if !crate::write(&format!("{line}\n"))? {
                    return Ok(Ending::answered());
                }
            }
            seen = now;
            // Without a change nothing is written, and nothing would tell.
            if crate::nobody_reads() {
                return Ok(Ending::answered());
            }
            clock::sleep(&BootClock, LOOK_EVERY).await;
        }
    })
}

async fn look(locks: &fencepost::Locks, name: &LockName) -> Result<LockState, Ending> {
    let states = locks.store().inspect(Some(name)).await?;
    let free = || LockState { name: name.clone(), holders: Vec::new(), waiters: Vec::new() };
    Ok(states.into_iter().next().unwrap_or_else(free))
}

fn print_json(value: &impl serde::Serialize) -> Ending {
    crate::print(&format!("{}\n", to_json(value)))
}

pub(crate) fn to_json(value: &impl serde::Serialize) -> String {
    // Strings, numbers and lists of them always have a form in JSON.
    serde_json::to_string(value).unwrap_or_default()
}

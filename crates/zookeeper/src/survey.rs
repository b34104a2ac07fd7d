//! Looking at locks from outside: the listing, and breaking one by force.

use fencepost_core::{
    claim::{Forced, Holder, LockState, Mode, Waiter},
    fence::Fence,
    name::LockName,
};
use futures_util::future::try_join_all;

use crate::{
    failure::Failure,
    layout::Contender,
    notes::{self, Container},
    queue::{Leaving, Queue, remove},
    record::Record,
    session::Session,
    store::ZooKeeperStore,
    wire::{self, Children, Code, Request},
};

impl ZooKeeperStore {
    pub(crate) async fn list(&self, only: Option<&LockName>) -> Result<Vec<LockState>, Failure> {
        let session = self.any_session().await?;
        session.ask::<()>(Request::sync(self.layout.chroot())).await?;
        let mut names = match only {
            Some(name) => vec![name.clone()],
            None => match session.ask::<Children>(Request::children(&self.layout.namespace, false)).await {
                Ok(children) => children.names.iter().filter_map(|child| self.layout.name(child)).collect(),
                Err(failure) if failure.is(Code::NO_NODE) => Vec::new(),
                Err(failure) => return Err(failure),
            },
        };
        names.sort();
        let mut states = Vec::new();
        for name in names {
            let (state, _) = self.state_of(&session, name).await?;
            if !state.holders.is_empty() {
                states.push(state);
            }
        }
        Ok(states)
    }

    /// What is shown of a lock, and its holders' nodes.
    async fn state_of(&self, session: &Session, name: LockName) -> Result<(LockState, Vec<Contender>), Failure> {
        let lock = self.layout.lock(&name);
        let queue = Queue::read(&self.layout, session, &lock).await?;
        let asked = queue.contenders().iter().map(|c| Request::get(&format!("{lock}/{}", c.name), false)).collect();
        let mut nodes = Vec::new();
        for (contender, node) in queue.contenders().iter().zip(session.ask_all::<wire::Node>(asked).await) {
            match node {
                Ok(node) => nodes.push((contender, node)),
                Err(failure) if failure.is(Code::NO_NODE) => {} // gone meanwhile
                Err(failure) => return Err(failure),
            }
        }
        let container = match nodes.first() {
            Some((first, _)) if first.mode == Some(Mode::Shared) => Some(Container::read(session, &lock).await?),
            _ => None,
        };
        let mut state = LockState { name, holders: Vec::new(), waiters: Vec::new() };
        let (mut holders, mut waited) = (Vec::new(), false);
        for (contender, node) in &nodes {
            waited |= !holds(contender, node, &state.holders);
            if waited {
                state.waiters.push(Waiter {
                    claimant: Record::read(&node.data).claimant,
                    since_unix_ms: u64::try_from(node.stat.created_unix_ms).ok(),
                    mode: contender.mode.unwrap_or_default(),
                });
            } else {
                let before = state.holders.first().and_then(|first| first.fence);
                let carried = before.or_else(|| container.as_ref()?.fence().ok());
                state.holders.push(self.holder(contender, node, carried));
                holders.push((*contender).clone());
            }
        }
        Ok((state, holders))
    }

    /// A holder as its node shows it. A reader has the fence that it `carried`.
    pub(crate) fn holder(&self, contender: &Contender, node: &wire::Node, carried: Option<Fence>) -> Holder {
        let record = Record::read(&node.data);
        let (mode, fence) = match contender.mode.unwrap_or_default() {
            Mode::Exclusive if record.shared => (Mode::Shared, notes::fence(node.stat.created).ok()),
            Mode::Exclusive => (Mode::Exclusive, notes::fence(node.stat.created).ok()),
            Mode::Shared => (Mode::Shared, carried),
            permits @ Mode::Permits { .. } => (permits, notes::fence(node.stat.modified).ok()),
        };
        Holder {
            owner: contender.owner,
            fence,
            since_unix_ms: u64::try_from(node.stat.created_unix_ms).ok(),
            expires_in: record.ttl(),
            mode,
            slots: record.slots,
            claimant: record.claimant,
        }
    }

    /// Removes whoever holds, and nobody who waits.
    pub(crate) async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Failure> {
        let session = self.any_session().await?;
        let lock = self.layout.lock(name);
        session.ask::<()>(Request::sync(self.layout.chroot())).await?;
        loop {
            let (state, nodes) = self.state_of(&session, name.clone()).await?;
            let Some(first) = state.holders.first() else { return Ok(Forced::NotHeld) };
            if if_fence.is_some() && first.fence != if_fence {
                return Ok(Forced::OtherFence(first.fence));
            }
            let removals = state.holders.iter().zip(&nodes).map(|(holder, node)| evict(&session, &lock, holder, node));
            if try_join_all(removals).await?.contains(&true) {
                return Ok(Forced::Broken(state.holders.into_iter().next()));
            }
        }
    }
}

/// Whether a holder was there to be removed.
async fn evict(session: &Session, lock: &str, holder: &Holder, node: &Contender) -> Result<bool, Failure> {
    let (mode, slots) = (holder.mode, Some(&*holder.slots));
    match &node.owner {
        Some(owner) => Leaving { session, lock, owner, mode, node: None, slots }.leave_as(&node.name).await,
        None => remove(session, &format!("{lock}/{}", node.name)).await,
    }
}

/// Whether this one holds beside all those before it.
fn holds(contender: &Contender, node: &wire::Node, before: &[Holder]) -> bool {
    match contender.mode.unwrap_or_default() {
        Mode::Exclusive => before.is_empty(),
        Mode::Shared => before.iter().all(|holder| holder.mode == Mode::Shared),
        Mode::Permits { .. } => !Record::read(&node.data).slots.is_empty(),
    }
}

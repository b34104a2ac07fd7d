//! Looking at locks from outside: the listing, and breaking one by force.

use fencepost_core::{
    claim::{Forced, Holder, LockState, Mode, Waiter},
    fence::Fence,
    name::LockName,
};

use crate::{
    failure::Failure,
    queue::{Queue, remove},
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
            None => match session.ask::<Children>(Request::children(&self.layout.namespace)).await {
                Ok(children) => children.names.iter().filter_map(|child| self.layout.name(child)).collect(),
                Err(failure) if failure.is(Code::NO_NODE) => Vec::new(),
                Err(failure) => return Err(failure),
            },
        };
        names.sort();
        let mut states = Vec::new();
        for name in names {
            let state = self.state_of(&session, name).await?;
            if !state.holders.is_empty() {
                states.push(state);
            }
        }
        Ok(states)
    }

    async fn state_of(&self, session: &Session, name: LockName) -> Result<LockState, Failure> {
        let lock = self.layout.lock(&name);
        let queue = Queue::read(&self.layout, session, &lock).await?;
        let asked = queue.contenders().iter().map(|c| Request::get(&format!("{lock}/{}", c.name), false)).collect();
        let mut state = LockState { name, holders: Vec::new(), waiters: Vec::new() };
        for (contender, node) in queue.contenders().iter().zip(session.ask_all::<wire::Node>(asked).await) {
            match node {
                Ok(node) if state.holders.is_empty() => state.holders.push(self.holder(&contender.name, &node)),
                Ok(node) => state.waiters.push(Waiter {
                    claimant: Record::read(&node.data).claimant,
                    since_unix_ms: u64::try_from(node.stat.created_unix_ms).ok(),
                    mode: Mode::Exclusive,
                }),
                Err(failure) if failure.is(Code::NO_NODE) => {} // gone meanwhile
                Err(failure) => return Err(failure),
            }
        }
        Ok(state)
    }

    pub(crate) fn holder(&self, name: &str, node: &wire::Node) -> Holder {
        let record = Record::read(&node.data);
        Holder {
            owner: self.layout.contender(name.to_owned()).and_then(|contender| contender.owner),
            fence: u64::try_from(node.stat.created).ok().and_then(Fence::new),
            since_unix_ms: u64::try_from(node.stat.created_unix_ms).ok(),
            expires_in: record.ttl(),
            mode: Mode::Exclusive,
            slots: Box::default(),
            claimant: record.claimant,
        }
    }

    pub(crate) async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Failure> {
        let session = self.any_session().await?;
        let lock = self.layout.lock(name);
        session.ask::<()>(Request::sync(self.layout.chroot())).await?;
        loop {
            let queue = Queue::read(&self.layout, &session, &lock).await?;
            let Some(first) = queue.contenders().first() else { return Ok(Forced::NotHeld) };
            let path = format!("{lock}/{}", first.name);
            let holder = match session.ask::<wire::Node>(Request::get(&path, false)).await {
                Ok(node) => self.holder(&first.name, &node),
                Err(failure) if failure.is(Code::NO_NODE) => continue,
                Err(failure) => return Err(failure),
            };
            if if_fence.is_some() && holder.fence != if_fence {
                return Ok(Forced::OtherFence(holder.fence));
            }
            if remove(&session, &path).await? {
                return Ok(Forced::Broken(Some(holder)));
            }
        }
    }
}

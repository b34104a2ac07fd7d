//! Waiting for the turn: one watch, on the node before.

use std::sync::Arc;

use fencepost_core::{
    claim::{Claim, Grant},
    clock,
    error::ErrorKind,
};
use tokio::sync::oneshot;

use crate::{
    failure::Failure,
    places::Node,
    queue::Queue,
    session::{Session, Watcher},
    store::ZooKeeperStore,
    taking::outlives_everybody,
    wire::{Change, Code, Request, Stat},
};

/// What lies between a claim and its grant.
enum Ahead {
    Nobody,
    /// Somebody, and something changed there since.
    Changed,
    LostPlace,
}

impl ZooKeeperStore {
    pub(crate) async fn wait_for_turn(&self, claim: &Claim) -> Result<Grant, Failure> {
        let Some((place, _attendance)) = self.places.attend(claim.owner()) else { return Err(self.place_lost(claim)) };
        let Some(node) = &place.node else { return Err(self.place_lost(claim)) };
        let session = &place.session;
        let mut before = place.before.clone();
        loop {
            match self.look_ahead(session, &place.lock, node, before.take()).await {
                Ok(Ahead::Nobody) => return self.grant(claim, session),
                Ok(Ahead::Changed) => {}
                Ok(Ahead::LostPlace) => return Err(self.place_lost(claim)),
                Err(failure) if failure.kind != ErrorKind::Unavailable => return Err(failure),
                Err(_) if session.is_over() => return Err(self.place_lost(claim)),
                // Bridged: the session goes on by itself, or ends.
                Err(_) => clock::sleep(&*self.clock, session.timeout / 50).await,
            }
        }
    }

    /// Looks who is ahead, unless the claim has found out already, and waits until the one right before us changes.
    /// Everybody else may come and go unnoticed, so one release wakes one waiter (W2).
    async fn look_ahead(
        &self,
        session: &Session,
        lock: &str,
        node: &Node,
        before: Option<Arc<str>>,
    ) -> Result<Ahead, Failure> {
        let before = match before {
            Some(before) => before,
            None => {
                let queue = Queue::read(&self.layout, session, lock).await?;
                let position = queue.position(&node.name);
                if let (Some(_), Some(first)) = (position, queue.contenders().first()) {
                    self.places.is_first(lock, &first.name);
                }
                match position {
                    None => return Ok(Ahead::LostPlace),
                    Some(0) => return Ok(Ahead::Nobody),
                    Some(place) => queue.contenders()[place - 1].name.as_str().into(),
                }
            }
        };
        let (watcher, changed) = oneshot::channel();
        let gone = match session.watch(&format!("{lock}/{before}"), Watcher::Waiter(watcher)).await {
            Ok(found) if !found.stat.is_ephemeral() => return Err(outlives_everybody(&before)),
            // Without an answer the connection is gone, and the watch with it.
            Ok(_) => matches!(changed.await, Ok(Change::Deleted)),
            Err(failure) if failure.is(Code::NO_NODE) => true,
            Err(failure) => return Err(failure),
        };
        // Behind one that was the first stands nobody else. Any other may have left before its turn.
        if !gone || !self.places.was_first(lock, &before) {
            return Ok(Ahead::Changed);
        }
        match session.ask::<Stat>(Request::exists(&format!("{lock}/{}", node.name))).await {
            Ok(own) if own.session == session.id => Ok(Ahead::Nobody),
            Ok(_) => Ok(Ahead::LostPlace),
            Err(failure) if failure.is(Code::NO_NODE) => Ok(Ahead::LostPlace),
            Err(failure) => Err(failure),
        }
    }
}

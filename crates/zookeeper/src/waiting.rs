//! Waiting for the turn: one watch, on the node before.

use std::sync::Arc;

use fencepost_core::{
    claim::{Claim, Grant, Mode},
    clock,
    error::ErrorKind,
    fence::Fence,
};
use tokio::sync::oneshot;

use crate::{
    failure::Failure,
    notes::{self, Container},
    places::{Given, Node, Place},
    queue::Queue,
    session::Watcher,
    store::ZooKeeperStore,
    taking::{Bid, lets_in, outlives_everybody},
    wire::{Change, Code, Request, Stat},
};

/// What lies between a claim and its grant.
enum Ahead {
    Nobody,
    /// Somebody, and something changed there since.
    Changed,
    LostPlace,
}

/// A claim that waits.
struct Waiting<'a> {
    place: &'a Place,
    node: &'a Node,
    /// Whom it waits for, where that is known.
    before: Option<Arc<str>>,
    /// Of whom it waited for last.
    seen: Option<Fence>,
}

impl ZooKeeperStore {
    pub(crate) async fn wait_for_turn(&self, claim: &Claim) -> Result<Grant, Failure> {
        let Some((place, _attendance)) = self.places.attend(claim.owner()) else { return Err(self.place_lost(claim)) };
        let Some(node) = &place.node else { return Err(self.place_lost(claim)) };
        let bid = Bid { claim, session: &place.session, lock: &place.lock };
        let mut waiting = Waiting { place: &place, node, before: place.before.clone(), seen: None };
        let mut again = place.given.is_some();
        loop {
            let turn = match place.mode {
                Mode::Exclusive | Mode::Shared => self.wait_for_one(bid, &mut waiting).await,
                Mode::Permits { .. } => self.wait_for_permits(bid, &place, node, again).await.map(Some),
            };
            again = true;
            match turn {
                Ok(Some(grant)) => return Ok(grant),
                Ok(None) => {}
                Err(failure) if failure.is(Code::NO_NODE) => return Err(self.place_lost(claim)),
                Err(failure) if failure.kind != ErrorKind::Unavailable => return Err(failure),
                Err(_) if place.session.is_over() || self.places.get(claim.owner()).is_none() => {
                    return Err(self.place_lost(claim));
                }
                // Bridged: the session goes on by itself, or ends.
                Err(_) => clock::sleep(&*self.clock, place.session.timeout / 50).await,
            }
        }
    }

    /// Waits until whoever stands in the way goes. `None` when the queue is to be looked at again.
    async fn wait_for_one(&self, bid: Bid<'_>, waiting: &mut Waiting<'_>) -> Result<Option<Grant>, Failure> {
        let ahead = self.look_ahead(waiting).await?;
        let given = match (ahead, bid.mode()) {
            (Ahead::Changed, _) => return Ok(None),
            (Ahead::LostPlace, _) => return Err(self.place_lost(bid.claim)),
            (Ahead::Nobody, Mode::Exclusive) => self.writer(bid, waiting.node).await?,
            (Ahead::Nobody, _) => {
                let container = Container::read(bid.session, bid.lock).await?;
                Given::of(self.readers_fence(bid, waiting.node, Some(container), waiting.seen).await?)
            }
        };
        self.grant(bid, given).map(Some)
    }

    /// Looks who is in the way, unless the claim has found out already, and waits until that one changes. Everybody else may
    /// come and go unnoticed, so one release wakes those who can be granted then (W2).
    async fn look_ahead(&self, waiting: &mut Waiting<'_>) -> Result<Ahead, Failure> {
        let Place { session, lock, mode, .. } = waiting.place;
        let before = match waiting.before.take() {
            Some(before) => before,
            None => {
                let queue = Queue::read(&self.layout, session, lock).await?;
                let Some(position) = queue.position(&waiting.node.name) else { return Ok(Ahead::LostPlace) };
                self.places.is_first(lock, &queue.contenders()[0].name);
                match queue.in_the_way(position, *mode, None) {
                    None => return Ok(Ahead::Nobody),
                    Some(before) => queue.contenders()[before].name.as_str().into(),
                }
            }
        };
        let (watcher, changed) = oneshot::channel();
        let gone = match session.watch(&format!("{lock}/{before}"), Watcher::Waiter(watcher)).await {
            Ok(found) if !found.stat.is_ephemeral() => return Err(outlives_everybody(&before)),
            Ok(found) => {
                waiting.seen = Some(notes::fence(found.stat.created)?);
                // Only a writer that holds becomes a reader: nobody else stands before it.
                if lets_in(*mode, &found) {
                    return Ok(Ahead::Nobody);
                }
                // Without an answer the connection is gone, and the watch with it.
                matches!(changed.await, Ok(Change::Deleted))
            }
            Err(failure) if failure.is(Code::NO_NODE) => true,
            Err(failure) => return Err(failure),
        };
        // Behind one that was the first stands nobody else. Any other may have left before its turn.
        if !gone || !self.places.was_first(lock, &before) {
            return Ok(Ahead::Changed);
        }
        match session.ask::<Stat>(Request::exists(&format!("{lock}/{}", waiting.node.name))).await {
            Ok(own) if own.session == session.id => Ok(Ahead::Nobody),
            Ok(_) => Ok(Ahead::LostPlace),
            Err(failure) if failure.is(Code::NO_NODE) => Ok(Ahead::LostPlace),
            Err(failure) => Err(failure),
        }
    }
}

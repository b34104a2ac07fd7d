//! Taking a place in a lock's queue, which is the lock itself when nobody is before it.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Busy, Claim, Claimant, Claimed, Grant, Holding, Mode, Patience},
    refusal::Refusal,
};

use crate::{
    failure::Failure,
    notes::{self, Container},
    permits::Limit,
    places::{Given, Node},
    queue::{Leaving, Queue},
    record::Record,
    session::Session,
    store::{Particulars, ZooKeeperStore},
    wire::{self, Children, Code, Created, Lifetime, Request, Stat},
};

/// How often a claim is begun anew because the container vanished meanwhile: the servers remove empty ones.
const CONTAINERS_VANISH: usize = 5;

/// A claim on its way: what is asked for, on which session, and at which lock.
#[derive(Clone, Copy)]
pub(crate) struct Bid<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) session: &'a Arc<Session>,
    /// The container of the lock's nodes.
    pub(crate) lock: &'a str,
}

impl<'a> Bid<'a> {
    pub(crate) fn mode(self) -> Mode {
        mode(&self.claim.holding)
    }

    /// The whole path of a node in the lock's queue.
    pub(crate) fn path(self, node: &str) -> String {
        format!("{}/{node}", self.lock)
    }

    /// What leaves the queue with one node of the claim.
    fn leaving(self, node: &'a str, slots: Option<&'a [u32]>) -> Leaving<'a> {
        let Self { claim, session, lock } = self;
        Leaving { session, lock, owner: claim.owner(), mode: self.mode(), node: Some(node), slots }
    }
}

/// Where a claim's node stands.
#[derive(Clone, Copy)]
struct Stand<'a> {
    queue: &'a Queue,
    position: usize,
    /// Of a semaphore.
    limit: Option<u32>,
}

/// A claim's node, the queue in which it stands, and what else was read of the lock in the same go.
struct Arrival {
    node: Node,
    queue: Queue,
    /// Read for readers only.
    container: Option<Container>,
}

/// Whether it is a claim's turn.
enum Turn {
    Come(Given),
    /// This one of the queue is waited for.
    Behind(usize),
}

impl ZooKeeperStore {
    pub(crate) async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Failure> {
        let (session, lock) = (self.session(claim.ttl).await?, self.layout.lock(claim.name()));
        let bid = Bid { claim, session: &session, lock: &lock };
        self.places.until_settled(claim.owner()).await;
        if let Some((place, _attendance)) = self.places.attend(claim.owner())
            && let Some(node) = place.node
            && Arc::ptr_eq(&place.session, &session)
        {
            let queue = Queue::read(&self.layout, &session, &lock).await?;
            if queue.position(&node.name).is_some() {
                let given = match (place.given, place.mode) {
                    (None, Mode::Permits { .. }) => self.given_before(bid, &node).await?,
                    (given, _) => given,
                };
                return match given {
                    Some(given) => self.grant(bid, given).map(Claimed::Granted),
                    None => self.answer(bid, Arrival { node, queue, container: None }, patience).await,
                };
            }
            self.places.remove(claim.owner());
        }
        let _attendance = self.places.enter(*claim.owner(), &session, &lock, bid.mode());
        let arrival = self.arrive(bid).await?;
        self.places.set_node(claim.owner(), arrival.node.clone());
        self.answer(bid, arrival, patience).await
    }

    /// Makes the claim's node and reads the queue behind it, in one go. The container is made where it is missing.
    async fn arrive(&self, bid: Bid<'_>) -> Result<Arrival, Failure> {
        let Bid { claim, session, lock } = bid;
        let name = bid.path(&self.layout.node(claim.owner(), bid.mode()));
        let data = self.particulars(&claim.claimant, session.timeout);
        for _ in 0..CONTAINERS_VANISH {
            let create = Request::create(&name, &data, self.access, Lifetime::EphemeralSequential);
            let both = session.ask_both::<Created, Children>(create, Request::children(lock, false));
            let (both, container) = match bid.mode() {
                Mode::Shared => {
                    let container = session.ask::<wire::Node>(Request::get(lock, false));
                    // In this order, also where both have to wait for room: notes that were read before the node was there
                    // may lack those of a writer that has come and gone since.
                    let (both, container) = tokio::join!(biased; both, container);
                    (both, Some(container))
                }
                Mode::Exclusive | Mode::Permits { .. } => (both.await, None),
            };
            let (created, children) = both?;
            let created = match created {
                Ok(created) => created,
                Err(failure) if failure.is(Code::NO_NODE) => {
                    self.make_containers(session, lock).await?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            let queue = match children {
                Ok(children) => Queue::of(&self.layout, session, lock, children).await?,
                Err(_) => Queue::read(&self.layout, session, lock).await?,
            };
            let (node, mut queue) = self.only_one(bid, created, queue).await?;
            let container = container.transpose()?.map(|container| Container::of(&container)).transpose()?;
            let unmarked = container.as_ref().filter(|container| !container.notes.readers);
            let Some(unmarked) = unmarked else { return Ok(Arrival { node, queue, container }) };
            // A reader has no business in a semaphore, whose changed limit stands where the mark would.
            if let Some(of) = self.limit(session, lock, &mut queue).await? {
                self.leave(bid, &node).await?;
                return Err(Failure::mismatch(Refusal::SemaphoreInUse { of }));
            }
            self.mark(bid, &node, &unmarked.stat).await?;
        }
        Err(Failure::refused(Code::NO_NODE))
    }

    pub(crate) async fn make_containers(&self, session: &Session, path: &str) -> Result<(), Failure> {
        let create = |path: &str| Request::create(path, &[], self.access, Lifetime::Container);
        let parents = vec![create(&self.layout.namespace), create(path)];
        for made in session.ask_all::<Created>(parents).await {
            match made {
                Ok(_) => {}
                Err(failure) if failure.is(Code::NODE_EXISTS) => {}
                Err(failure) if failure.is(Code::NO_NODE) => {
                    return Err(match session.ask::<Stat>(Request::exists(self.layout.chroot())).await {
                        Err(gone) if gone.is(Code::NO_NODE) => Failure::no_chroot(self.layout.chroot()),
                        _ => failure,
                    });
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// One claim has one node. An earlier try whose answer was lost may have made another, which keeps its place if it is
    /// on this session; one of an earlier session must never be believed, and goes.
    async fn only_one(&self, bid: Bid<'_>, created: Created, mut queue: Queue) -> Result<(Node, Queue), Failure> {
        let Bid { claim, session, .. } = bid;
        let made = created.path.rsplit('/').next().unwrap_or_default();
        let mut ours = (made.to_owned(), created.stat);
        let all = queue.contenders().iter().filter(|c| c.owner.as_ref() == Some(claim.owner()) && c.name != made);
        let others: Vec<_> = all.map(|contender| contender.name.clone()).collect();
        for other in others {
            let doomed = match session.ask::<Stat>(Request::exists(&bid.path(&other))).await {
                Ok(stat) if stat.session == session.id && stat.created < ours.1.created => {
                    std::mem::replace(&mut ours, (other, stat)).0
                }
                Ok(_) => other,
                Err(failure) if failure.is(Code::NO_NODE) => other,
                Err(failure) => return Err(failure),
            };
            bid.leaving(&doomed, None).leave_as(&doomed).await?;
            queue.forget(&doomed);
        }
        let (name, created, noted) = (ours.0.into(), notes::fence(ours.1.created)?, queue.is_noted());
        Ok((Node { name, created, noted }, queue))
    }

    /// What a claim with this node is answered.
    async fn answer(&self, bid: Bid<'_>, arrival: Arrival, patience: Patience) -> Result<Claimed, Failure> {
        let Bid { claim, session, lock } = bid;
        let Arrival { node, mut queue, container } = arrival;
        loop {
            let limit = self.limit(session, lock, &mut queue).await?;
            let Some(position) = queue.position(&node.name) else { return Err(self.place_lost(claim)) };
            let stand = Stand { queue: &queue, position, limit };
            if let Err(failure) = fits(bid.mode(), stand) {
                self.leave(bid, &node).await?;
                return Err(failure);
            }
            let behind = match self.turn_of(bid, &node, stand, &container).await? {
                Turn::Come(given) => return self.grant(bid, given).map(Claimed::Granted),
                Turn::Behind(behind) => behind,
            };
            let first = &queue.contenders()[0].name;
            let holder = match session.ask::<wire::Node>(Request::get(&bid.path(first), false)).await {
                Ok(holder) => holder,
                Err(failure) if failure.is(Code::NO_NODE) => {
                    queue = Queue::read(&self.layout, session, lock).await?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if behind == 0 && lets_in(bid.mode(), &holder) {
                let seen = notes::fence(holder.stat.created)?;
                let fence = self.readers_fence(bid, &node, container, Some(seen)).await?;
                return self.grant(bid, Given::of(fence)).map(Claimed::Granted);
            }
            let queued = patience == Patience::Queue && holder.stat.is_ephemeral();
            if queued {
                self.places.is_first(lock, first);
                self.places.set_before(claim.owner(), &queue.contenders()[behind].name);
            } else {
                self.leave(bid, &node).await?;
            }
            if !holder.stat.is_ephemeral() {
                return Err(outlives_everybody(first));
            }
            let ahead = queue.waiting_before(position, limit) as u64;
            let holder = (position > 0).then(|| self.holder(&queue.contenders()[0], &holder, None));
            let busy = Busy { holder, ahead: Some(ahead), ..Busy::default() };
            return Ok(if queued { Claimed::Queued(busy) } else { Claimed::Busy(busy) });
        }
    }

    /// Whether the claim that stands there may have the lock; what it has of it, then.
    async fn turn_of(
        &self,
        bid: Bid<'_>,
        node: &Node,
        Stand { queue, position, limit }: Stand<'_>,
        container: &Option<Container>,
    ) -> Result<Turn, Failure> {
        if let Some(behind) = queue.in_the_way(position, bid.mode(), limit) {
            return Ok(Turn::Behind(behind));
        }
        Ok(match bid.mode() {
            Mode::Exclusive => Turn::Come(self.writer(bid, node).await?),
            Mode::Shared => Turn::Come(Given::of(self.readers_fence(bid, node, container.clone(), None).await?)),
            Mode::Permits { of, .. } => {
                let limit = Limit { of: limit.unwrap_or(of), version: queue.version() };
                match self.take_permits(bid, node, limit).await? {
                    Some(given) => Turn::Come(given),
                    None => Turn::Behind(position.saturating_sub(1)),
                }
            }
        })
    }

    /// It is the turn of the claim. The grant counts from what is proven of its session (T1).
    pub(crate) fn grant(&self, bid: Bid<'_>, given: Given) -> Result<Grant, Failure> {
        let Bid { claim, session, .. } = bid;
        let state = session.state();
        match self.places.hold(claim.owner(), state.proven, given) {
            Some(Given { fence, slots }) if state.over.is_none() => {
                Ok(Grant { slots, ..Grant::new(state.proven, Some(session.timeout), Some(fence)) })
            }
            _ => Err(self.place_lost(claim)),
        }
    }

    /// Our node is not there any more: the session is over, or somebody removed it.
    pub(crate) fn place_lost(&self, claim: &Claim) -> Failure {
        self.places.remove(claim.owner());
        Failure::unreachable("the place in the queue is gone")
    }

    async fn leave(&self, bid: Bid<'_>, node: &Node) -> Result<(), Failure> {
        if self.places.leaving(bid.claim.owner()).is_some() {
            bid.leaving(&node.name, Some(&[])).leave(&self.layout).await?;
            self.places.remove(bid.claim.owner());
        }
        Ok(())
    }

    fn particulars(&self, claimant: &Arc<Claimant>, timeout: Duration) -> Arc<[u8]> {
        let mut last = self.particulars.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(last) if Arc::ptr_eq(&last.claimant, claimant) && last.timeout == timeout => last.bytes.clone(),
            _ => {
                let bytes: Arc<[u8]> = Record::new(claimant, timeout).to_bytes().into();
                *last = Some(Particulars { claimant: claimant.clone(), timeout, bytes: bytes.clone() });
                bytes
            }
        }
    }
}

/// How the one lock of a claim is wanted.
pub(crate) fn mode(holding: &Holding) -> Mode {
    holding.wants().first().map(|want| want.mode).unwrap_or_default()
}

/// Whether a claim can be granted at all as the name is in use: as what its first user takes it for.
fn fits(mode: Mode, Stand { queue, position, limit }: Stand<'_>) -> Result<(), Failure> {
    let ahead = &queue.contenders()[..position];
    if let Some(unknown) = ahead.iter().find(|contender| contender.mode.is_none()) {
        return Err(Failure::later_version(&format!("the node {}", unknown.name)));
    }
    match (mode, limit) {
        _ if ahead.is_empty() => Ok(()),
        (Mode::Permits { .. }, None) => Err(Failure::mismatch(Refusal::LockInUse)),
        (Mode::Permits { of, .. }, Some(limit)) if of == limit => Ok(()),
        (_, Some(of)) => Err(Failure::mismatch(Refusal::SemaphoreInUse { of })),
        (_, None) => Ok(()),
    }
}

/// Whether this writer, the first in the queue, has become a reader that lets others in beside it.
pub(crate) fn lets_in(mode: Mode, first: &wire::Node) -> bool {
    mode == Mode::Shared && Record::read(&first.data).shared
}

pub(crate) fn outlives_everybody(name: &str) -> Failure {
    Failure::foreign(format!(
        "the node {name} stands in the queue and belongs to no session: nobody would ever release it"
    ))
}

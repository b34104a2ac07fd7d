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
    places::{Given, Node},
    queue::{self, Leaving, Queue},
    record::Record,
    session::Session,
    store::{Particulars, ZooKeeperStore},
    wire::{self, Children, Code, Created, Lifetime, Request, Stat},
};

/// How often a claim is begun anew because the container vanished meanwhile: the servers remove empty ones.
const CONTAINERS_VANISH: usize = 5;

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
        let (session, mode) = (self.session(claim.ttl).await?, mode(&claim.holding));
        let lock = self.layout.lock(claim.name());
        self.places.until_settled(claim.owner()).await;
        if let Some((place, attendance)) = self.places.attend(claim.owner())
            && let Some(node) = place.node
            && Arc::ptr_eq(&place.session, &session)
        {
            let queue = Queue::read(&self.layout, &session, &lock).await?;
            if queue.position(&node.name).is_some() {
                let given = match (place.given, place.mode) {
                    (None, Mode::Permits { .. }) => self.given_before(&session, &lock, &node).await?,
                    (given, _) => given,
                };
                let answer = match given {
                    Some(given) => self.grant(claim, &session, given).map(Claimed::Granted),
                    None => {
                        let arrival = Arrival { node, queue, container: None };
                        self.answer(claim, &session, &lock, arrival, patience).await
                    }
                };
                drop(attendance);
                return answer;
            }
            self.places.remove(claim.owner());
        }
        let attendance = self.places.enter(*claim.owner(), &session, &lock, mode);
        let arrival = self.arrive(claim, &session, &lock, mode).await?;
        self.places.set_node(claim.owner(), arrival.node.clone());
        let answer = self.answer(claim, &session, &lock, arrival, patience).await;
        drop(attendance);
        answer
    }

    /// Makes the claim's node and reads the queue behind it, in one go. The container is made where it is missing.
    async fn arrive(&self, claim: &Claim, session: &Session, lock: &str, mode: Mode) -> Result<Arrival, Failure> {
        let name = format!("{lock}/{}", self.layout.node(claim.owner(), mode));
        let data = self.particulars(&claim.claimant, session.timeout);
        for _ in 0..CONTAINERS_VANISH {
            let create = Request::create(&name, &data, self.access, Lifetime::EphemeralSequential);
            let both = session.ask_both::<Created, Children>(create, Request::children(lock, false));
            let (both, container) = match mode {
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
            let (node, mut queue) = self.only_one(claim, session, lock, created, queue).await?;
            let container = container.transpose()?.map(|container| Container::of(&container)).transpose()?;
            let unmarked = container.as_ref().filter(|container| !container.notes.readers);
            let Some(unmarked) = unmarked else { return Ok(Arrival { node, queue, container }) };
            // A reader has no business in a semaphore, whose changed limit stands where the mark would.
            if let Some(of) = self.limit(session, lock, &mut queue).await? {
                self.leave(claim, session, lock, &node).await?;
                return Err(Failure::mismatch(Refusal::SemaphoreInUse { of }));
            }
            self.mark(session, lock, &node, &unmarked.stat).await?;
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
    async fn only_one(
        &self,
        claim: &Claim,
        session: &Session,
        lock: &str,
        created: Created,
        mut queue: Queue,
    ) -> Result<(Node, Queue), Failure> {
        let made = created.path.rsplit('/').next().unwrap_or_default();
        let mut ours = (made.to_owned(), created.stat);
        let all = queue.contenders().iter().filter(|c| c.owner.as_ref() == Some(claim.owner()) && c.name != made);
        let others: Vec<_> = all.map(|contender| contender.name.clone()).collect();
        for other in others {
            let path = format!("{lock}/{other}");
            let doomed = match session.ask::<Stat>(Request::exists(&path)).await {
                Ok(stat) if stat.session == session.id && stat.created < ours.1.created => {
                    std::mem::replace(&mut ours, (other, stat)).0
                }
                Ok(_) => other,
                Err(failure) if failure.is(Code::NO_NODE) => other,
                Err(failure) => return Err(failure),
            };
            let leaving = Leaving { node: &doomed, slots: None };
            queue::leave_as(mode(&claim.holding), session, lock, leaving, claim.owner()).await?;
            queue.forget(&doomed);
        }
        let (name, created, noted) = (ours.0.into(), notes::fence(ours.1.created)?, queue.is_noted());
        Ok((Node { name, created, noted }, queue))
    }

    /// What a claim with this node is answered.
    async fn answer(
        &self,
        claim: &Claim,
        session: &Session,
        lock: &str,
        arrival: Arrival,
        patience: Patience,
    ) -> Result<Claimed, Failure> {
        let Arrival { node, mut queue, container } = arrival;
        loop {
            let limit = self.limit(session, lock, &mut queue).await?;
            let Some(position) = queue.position(&node.name) else { return Err(self.place_lost(claim)) };
            if let Err(failure) = fits(mode(&claim.holding), &queue, position, limit) {
                self.leave(claim, session, lock, &node).await?;
                return Err(failure);
            }
            let behind = match self.turn_of(claim, session, lock, &node, (&queue, position, limit), &container).await? {
                Turn::Come(given) => return self.grant(claim, session, given).map(Claimed::Granted),
                Turn::Behind(behind) => behind,
            };
            let first = &queue.contenders()[0].name;
            let holder = match session.ask::<wire::Node>(Request::get(&format!("{lock}/{first}"), false)).await {
                Ok(holder) => holder,
                Err(failure) if failure.is(Code::NO_NODE) => {
                    queue = Queue::read(&self.layout, session, lock).await?;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            if behind == 0 && lets_in(mode(&claim.holding), &holder) {
                let seen = notes::fence(holder.stat.created)?;
                let fence = self.readers_fence(session, lock, &node, container, Some(seen)).await?;
                return self.grant(claim, session, Given::of(fence)).map(Claimed::Granted);
            }
            let queued = patience == Patience::Queue && holder.stat.is_ephemeral();
            if queued {
                self.places.is_first(lock, first);
                self.places.set_before(claim.owner(), &queue.contenders()[behind].name);
            } else {
                self.leave(claim, session, lock, &node).await?;
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

    /// Whether the one at this position of the queue may have the lock; what it has of it, then.
    async fn turn_of(
        &self,
        claim: &Claim,
        session: &Session,
        lock: &str,
        node: &Node,
        (queue, position, limit): (&Queue, usize, Option<u32>),
        container: &Option<Container>,
    ) -> Result<Turn, Failure> {
        let mode = mode(&claim.holding);
        if let Some(behind) = queue.in_the_way(position, mode, limit) {
            return Ok(Turn::Behind(behind));
        }
        Ok(match mode {
            Mode::Exclusive => Turn::Come(self.writer(session, lock, node).await?),
            Mode::Shared => {
                let fence = self.readers_fence(session, lock, node, container.clone(), None).await?;
                Turn::Come(Given::of(fence))
            }
            Mode::Permits { of, .. } => {
                let limit = (limit.unwrap_or(of), queue.version());
                match self.take_permits(claim, session, lock, node, limit).await? {
                    Some(given) => Turn::Come(given),
                    None => Turn::Behind(position.saturating_sub(1)),
                }
            }
        })
    }

    /// It is the turn of the claim. The grant counts from what is proven of its session (T1).
    pub(crate) fn grant(&self, claim: &Claim, session: &Session, given: Given) -> Result<Grant, Failure> {
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

    async fn leave(&self, claim: &Claim, session: &Session, lock: &str, node: &Node) -> Result<(), Failure> {
        if let Some(place) = self.places.leaving(claim.owner()) {
            let known = Leaving { node: &node.name, slots: Some(&[]) };
            queue::leave(&self.layout, session, lock, (claim.owner(), place.mode), Some(known)).await?;
            self.places.remove(claim.owner());
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
fn fits(mode: Mode, queue: &Queue, position: usize, limit: Option<u32>) -> Result<(), Failure> {
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

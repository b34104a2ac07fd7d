//! Taking a place in a lock's queue, which is the lock itself when nobody is before it.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Busy, Claim, Claimant, Claimed, Grant, Patience},
    fence::Fence,
};

use crate::{
    failure::Failure,
    places::{Node, Place},
    queue::{Queue, remove},
    record::Record,
    session::Session,
    store::{Particulars, ZooKeeperStore},
    wire::{self, Children, Code, Created, Lifetime, Request, Stat},
};

/// How often a claim is begun anew because the container vanished meanwhile: the servers remove empty ones.
const CONTAINERS_VANISH: usize = 5;

impl ZooKeeperStore {
    pub(crate) async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Failure> {
        let session = self.session(claim.ttl).await?;
        let lock = self.layout.lock(claim.name());
        if let Some((place, attendance)) = self.places.attend(claim.owner())
            && let Some(node) = place.node
            && Arc::ptr_eq(&place.session, &session)
        {
            let queue = Queue::read(&self.layout, &session, &lock).await?;
            if queue.position(&node.name).is_some() {
                let answer = self.answer(claim, &session, &lock, queue, &node, patience).await;
                drop(attendance);
                return answer;
            }
            self.places.remove(claim.owner());
        }
        let attendance = self.places.enter(*claim.owner(), &session, &lock);
        let (node, queue) = self.make_node(claim, &session, &lock).await?;
        self.places.set_node(claim.owner(), node.clone());
        let answer = self.answer(claim, &session, &lock, queue, &node, patience).await;
        drop(attendance);
        answer
    }

    /// Makes the claim's node and reads the queue behind it, in one go. The container is made where it is missing.
    async fn make_node(&self, claim: &Claim, session: &Session, lock: &str) -> Result<(Node, Queue), Failure> {
        let name = format!("{lock}/{}", self.layout.node(claim.owner()));
        let data = self.particulars(&claim.claimant, session.timeout);
        for _ in 0..CONTAINERS_VANISH {
            let create = Request::create(&name, &data, self.access, Lifetime::EphemeralSequential);
            let (created, children) = session.ask_both::<Created, Children>(create, Request::children(lock)).await?;
            match created {
                Ok(created) => {
                    let queue = match children {
                        Ok(children) => Queue::of(&self.layout, session, lock, children).await?,
                        Err(_) => Queue::read(&self.layout, session, lock).await?,
                    };
                    return self.only_one(claim, session, lock, created, queue).await;
                }
                Err(failure) if failure.is(Code::NO_NODE) => self.make_containers(session, lock).await?,
                Err(failure) => return Err(failure),
            }
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
            remove(session, &format!("{lock}/{doomed}")).await?;
            queue.forget(&doomed);
        }
        let fence = u64::try_from(ours.1.created).ok().and_then(Fence::new).ok_or_else(Failure::puzzling)?;
        Ok((Node { name: ours.0.into(), fence }, queue))
    }

    /// What a claim with this node is answered.
    async fn answer(
        &self,
        claim: &Claim,
        session: &Session,
        lock: &str,
        mut queue: Queue,
        node: &Node,
        patience: Patience,
    ) -> Result<Claimed, Failure> {
        loop {
            let ahead = match queue.position(&node.name) {
                Some(0) => return self.grant(claim, session).map(Claimed::Granted),
                Some(ahead) => ahead,
                None => return Err(self.place_lost(claim)),
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
            let queued = patience == Patience::Queue && holder.stat.is_ephemeral();
            if queued {
                self.places.is_first(lock, first);
                self.places.set_before(claim.owner(), &queue.contenders()[ahead - 1].name);
            }
            if !queued && let Some(place) = self.places.leaving(claim.owner()) {
                self.leave(&place).await?;
                self.places.remove(claim.owner());
            }
            if !holder.stat.is_ephemeral() {
                return Err(outlives_everybody(first));
            }
            let busy = Busy { holder: Some(self.holder(first, &holder)), ahead: Some(ahead as u64), ..Busy::default() };
            return Ok(if queued { Claimed::Queued(busy) } else { Claimed::Busy(busy) });
        }
    }

    /// The node is the first of the queue. The grant counts from what is proven of its session (T1).
    pub(crate) fn grant(&self, claim: &Claim, session: &Session) -> Result<Grant, Failure> {
        let state = session.state();
        match self.places.hold(claim.owner(), state.proven) {
            Some(fence) if state.over.is_none() => Ok(Grant::new(state.proven, Some(session.timeout), Some(fence))),
            _ => Err(self.place_lost(claim)),
        }
    }

    /// Our node is not there any more: the session is over, or somebody removed it.
    pub(crate) fn place_lost(&self, claim: &Claim) -> Failure {
        self.places.remove(claim.owner());
        Failure::unreachable("the place in the queue is gone")
    }

    async fn leave(&self, place: &Place) -> Result<(), Failure> {
        match place.path() {
            Some(path) => remove(&place.session, &path).await.map(drop),
            None => Ok(()),
        }
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

pub(crate) fn outlives_everybody(name: &str) -> Failure {
    Failure::foreign(format!(
        "the node {name} stands in the queue and belongs to no session: nobody would ever release it"
    ))
}

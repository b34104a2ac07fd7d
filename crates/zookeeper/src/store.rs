//! The store over a ZooKeeper ensemble.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fencepost_core::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{
        Busy, Claim, Claimant, Claimed, Forced, Grant, Holder, Holding, LockState, LossReason, Mode, Patience, Release,
        Renewal, Waiter,
    },
    clock::{self, BootClock, Clock},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    limits::Ttl,
    name::{LockName, Namespace},
    purpose::{Correctness, TypedStore},
    store::{BoxFuture, Guard, LossReporter, Store},
};
use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::{
    config::{Access, ZooKeeperConfig},
    failure::Failure,
    guard::ZooKeeperGuard,
    layout::Layout,
    places::{Node, Place, Places, Standing},
    queue::{self, Left, Queue, remove},
    record::Record,
    sentry::Sentry,
    servers::Servers,
    session::{Session, Watcher},
    sessions::{OnEnd, Sessions},
    wire::{self, Change, Children, Code, Created, Lifetime, Request, Stat},
};

/// How often a claim is begun anew because the container vanished meanwhile: the servers remove empty ones.
const CONTAINERS_VANISH: usize = 5;

/// Locks in a ZooKeeper ensemble. Of the class [`Correctness`]: the fence is the transaction that made the lock's node.
///
/// Dropping it ends its background work; grants then end with their sessions.
pub struct ZooKeeperStore {
    pub(crate) layout: Layout,
    pub(crate) access: Access,
    sessions: Arc<Sessions>,
    places: Arc<Places>,
    sentry: Arc<Sentry>,
    on_end: OnEnd,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    /// As they were last written: one client's claims share one claimant.
    particulars: Mutex<Option<Particulars>>,
}

/// A claimant on a session with this timeout, as its nodes have it.
struct Particulars {
    claimant: Arc<Claimant>,
    timeout: Duration,
    bytes: Arc<[u8]>,
}

impl ZooKeeperStore {
    /// Connects with a session of the default TTL, and looks whether the chroot is there.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`], [`ErrorKind::PermissionDenied`] or [`ErrorKind::Misconfigured`], within the limits of
    /// `config`.
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open(config: &ZooKeeperConfig, namespace: &Namespace) -> Result<Self, Error> {
        Self::open_with_clock(config, namespace, BootClock::shared()).await
    }

    /// As [`open`](ZooKeeperStore::open), with leases counted on `clock`.
    ///
    /// # Errors
    /// As for [`open`](ZooKeeperStore::open).
    ///
    /// # Cancel safety
    /// Safe: nothing is claimed by opening.
    pub async fn open_with_clock(
        config: &ZooKeeperConfig,
        namespace: &Namespace,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, Error> {
        let sessions = Arc::new(Sessions::new(Servers::new(config)?, config.timeout, clock.clone()));
        let layout = Layout::new(&config.chroot, namespace, config.recipe);
        let places = Arc::new(Places::new(clock.clone()));
        let sentry = Sentry::start(layout.clone(), places.clone(), &sessions, clock.clone());
        let told = Arc::downgrade(&sentry);
        let on_end: OnEnd = Arc::new(move |id, end| {
            if let Some(sentry) = told.upgrade() {
                sentry.session_ended(id, &end);
            }
        });
        let store = Self {
            layout,
            access: config.access,
            sessions,
            places,
            sentry,
            on_end,
            clock,
            capabilities: crate::capabilities(),
            particulars: Mutex::default(),
        };
        store.greet().await.map_err(|failure| failure.error(Operation::Open, None))?;
        Ok(store)
    }

    async fn greet(&self) -> Result<(), Failure> {
        let session = self.session(Ttl::DEFAULT).await?;
        match session.ask::<Stat>(Request::exists(self.layout.chroot())).await {
            Err(failure) if failure.is(Code::NO_NODE) => Err(Failure::no_chroot(self.layout.chroot())),
            answer => answer.map(drop),
        }
    }

    async fn session(&self, ttl: Ttl) -> Result<Arc<Session>, Failure> {
        self.sessions.get(ttl, &self.on_end).await
    }

    /// A session for what needs no grant.
    pub(crate) async fn any_session(&self) -> Result<Arc<Session>, Failure> {
        match self.sessions.any() {
            Some(session) => Ok(session),
            None => self.session(Ttl::DEFAULT).await,
        }
    }

    async fn take(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Failure> {
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
    fn grant(&self, claim: &Claim, session: &Session) -> Result<Grant, Failure> {
        let state = session.state();
        match self.places.hold(claim.owner(), state.proven) {
            Some(fence) if state.over.is_none() => Ok(Grant::new(state.proven, Some(session.timeout), Some(fence))),
            _ => Err(self.place_lost(claim)),
        }
    }

    /// Our node is not there any more: the session is over, or somebody removed it.
    fn place_lost(&self, claim: &Claim) -> Failure {
        self.places.remove(claim.owner());
        Failure::unreachable("the place in the queue is gone")
    }

    async fn leave(&self, place: &Place) -> Result<(), Failure> {
        match place.path() {
            Some(path) => remove(&place.session, &path).await.map(drop),
            None => Ok(()),
        }
    }

    async fn wait_for_turn(&self, claim: &Claim) -> Result<Grant, Failure> {
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

    async fn give_back(&self, holding: &Holding) -> Result<Release, Failure> {
        let place = self.places.leaving(&holding.owner);
        let begun = AtomicBool::new(false);
        let given_back = on_another_connection(|| {
            let again = begun.swap(true, Ordering::Relaxed);
            self.remove_nodes(holding, place.as_ref(), again)
        });
        let answer = given_back.await?;
        self.places.remove(&holding.owner);
        Ok(answer)
    }

    async fn remove_nodes(&self, holding: &Holding, place: Option<&Place>, again: bool) -> Result<Release, Failure> {
        let lock = self.layout.lock(holding.name());
        let session = match place {
            Some(place) if !place.session.is_over() => place.session.clone(),
            _ => self.any_session().await?,
        };
        let known = place.and_then(Place::path);
        let left = queue::leave(&self.layout, &session, &lock, &holding.owner, known).await?;
        Ok(match left {
            Left { was_there: true, .. } => Release::Released,
            // While its session lives, only the try whose answer was lost can have removed it.
            _ if again && place.is_some_and(|place| place.node.is_some() && !place.session.is_over()) => {
                Release::Released
            }
            Left { others: true, .. } => Release::HeldByOther,
            Left { others: false, .. } => Release::AlreadyExpired,
        })
    }

    /// Nothing is written: a session keeps all its nodes alive. The answer is what its heartbeats prove, after every
    /// event that the ensemble had for us by now.
    async fn extend(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
        let mut by_session: HashMap<i64, (Arc<Session>, Vec<usize>)> = HashMap::new();
        let mut answers: Vec<Option<Result<Renewal, Failure>>> = claims.iter().map(|_| None).collect();
        for (number, claim) in claims.iter().enumerate() {
            match self.held(claim) {
                Some(session) => by_session.entry(session.id).or_insert((session, Vec::new())).1.push(number),
                None => answers[number] = Some(self.why_lost(claim).await.map(Renewal::Lost)),
            }
        }
        let sessions = by_session.into_values().map(|(session, numbers)| async move {
            let proven = self.prove(&session, numbers.iter().map(|number| &claims[*number])).await;
            (session, numbers, proven)
        });
        for (session, numbers, proven) in join_all(sessions).await {
            for number in numbers {
                let claim = &claims[number];
                answers[number] = Some(match (&proven, self.held(claim)) {
                    (_, None) => self.why_lost(claim).await.map(Renewal::Lost),
                    (Ok(proven), Some(_)) => {
                        self.places.told(claim.owner(), *proven);
                        Ok(Renewal::Renewed { counted_from: *proven, ttl: session.timeout })
                    }
                    (Err(failure), Some(_)) => Err(failure.clone()),
                });
            }
        }
        let named = answers.into_iter().zip(claims).map(|(answer, claim)| {
            let answer = answer.unwrap_or_else(|| Err(Failure::no_answer())); // each was given one above
            answer.map_err(|failure| failure.error(Operation::Renew, Some(claim.name())))
        });
        named.collect()
    }

    /// The session of a grant that is ours as far as we know.
    fn held(&self, claim: &Claim) -> Option<Arc<Session>> {
        let place = self.places.get(claim.owner())?;
        (matches!(place.standing, Standing::Held { .. }) && !place.session.is_over()).then_some(place.session)
    }

    /// Waits for proof that is newer than what the holders were told, unless that is fresh enough to rest on it until the
    /// next renewal.
    async fn prove(
        &self,
        session: &Session,
        claims: impl Iterator<Item = &Arc<Claim>> + Clone,
    ) -> Result<clock::Sent, Failure> {
        self.sentry.watch(self.places.to_watch(claims.clone().map(|claim| claim.owner()))).await;
        // What happened to a watched node before this is answered has been told before it.
        session.ask::<()>(Request::sync(self.layout.chroot())).await?;
        let told = claims.filter_map(|claim| match self.places.get(claim.owner())?.standing {
            Standing::Held { told, .. } => Some(told),
            Standing::Coming { .. } => None,
        });
        let Some(told) = told.max() else { return Ok(session.state().proven) }; // all of them are lost
        let fresh = |proven: clock::Sent| self.clock.now().since(proven.moment()) < session.timeout * 3 / 10;
        let newer = session.changed_since(|state| state.proven > told || fresh(state.proven));
        let limit = session.timeout * 3 / 10;
        tokio::select! {
            state = newer => match state.over {
                None => Ok(state.proven),
                Some(_) => Err(Failure::session_over()),
            },
            () = clock::sleep(&*self.clock, limit) => Err(Failure::no_answer()),
        }
    }

    async fn why_lost(&self, claim: &Claim) -> Result<LossReason, Failure> {
        if self.places.get(claim.owner()).is_some_and(|place| place.session.is_over()) {
            return Ok(LossReason::SessionExpired);
        }
        let session = self.any_session().await?;
        let queue = Queue::read(&self.layout, &session, &self.layout.lock(claim.name())).await?;
        match queue.contenders().first() {
            Some(first) if first.owner.as_ref() == Some(claim.owner()) => Err(Failure::another_session()),
            Some(_) => Ok(LossReason::TakenOver),
            None => Ok(LossReason::Deleted),
        }
    }

    async fn list(&self, only: Option<&LockName>) -> Result<Vec<LockState>, Failure> {
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

    fn holder(&self, name: &str, node: &wire::Node) -> Holder {
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

    async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Failure> {
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

    async fn end(&self) {
        let nothing_held = self.places.is_empty();
        for session in self.sessions.close() {
            // Grants are not given back by closing: their sessions run out by themselves.
            if nothing_held {
                session.close().await;
            }
        }
        self.places.sift(|_, _| false);
    }
}

/// How often a verb is begun anew after its connection broke: another server takes the session up, in a moment or not at
/// all.
const CONNECTIONS_BREAK: usize = 3;

/// Begins a verb anew when its connection broke under it. Every verb can be repeated: it finds what the first try left.
pub(crate) async fn on_another_connection<T, V>(verb: impl Fn() -> V) -> Result<T, Failure>
where
    V: Future<Output = Result<T, Failure>>,
{
    for _ in 1..CONNECTIONS_BREAK {
        match verb().await {
            Err(failure) if failure.broken => {}
            answer => return answer,
        }
    }
    verb().await
}

/// What lies between a claim and its grant.
enum Ahead {
    Nobody,
    /// Somebody, and something changed there since.
    Changed,
    LostPlace,
}

fn outlives_everybody(name: &str) -> Failure {
    Failure::foreign(format!(
        "the node {name} stands in the queue and belongs to no session: nobody would ever release it"
    ))
}

fn only_exclusive(holding: &Holding) -> Result<(), Error> {
    match holding.wants() {
        [want] if want.mode == Mode::Exclusive => Ok(()),
        _ => Err(Error::new(ErrorKind::Unsupported, Operation::Claim, "this store holds single locks, exclusively")
            .not_applied()
            .on_lock(holding.name())
            .in_store(crate::STORE)),
    }
}

impl Store for ZooKeeperStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move {
            only_exclusive(&claim.holding)?;
            let answer = on_another_connection(|| self.take(claim, patience)).await;
            answer.map_err(|failure| failure.error(Operation::Claim, Some(claim.name())))
        })
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(async move {
            let turn = self.wait_for_turn(claim).await;
            turn.map_err(|failure| failure.error(Operation::Wait, Some(claim.name())))
        })
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(self.extend(claims))
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(async move {
            let released = self.give_back(holding).await;
            released.map_err(|failure| failure.error(Operation::Release, Some(holding.name())))
        })
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(async move {
            let listed = on_another_connection(|| self.list(only)).await;
            listed.map_err(|failure| failure.error(Operation::Inspect, only))
        })
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(async move {
            let forced = on_another_connection(|| self.break_lock(name, if_fence)).await;
            forced.map_err(|failure| failure.error(Operation::Force, Some(name)))
        })
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn report_losses(&self, to: LossReporter) {
        self.sentry.report_losses(to);
    }

    fn guard(&self, holding: &Holding) -> Option<Guard> {
        let place = self.places.get(&holding.owner)?;
        let held = matches!(place.standing, Standing::Held { .. }) && !place.session.is_over();
        held.then(|| place.path()).flatten().map(|path| Box::new(ZooKeeperGuard { path }) as Guard)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.end())
    }
}

impl TypedStore for ZooKeeperStore {
    type Serves = Correctness;
}

impl fmt::Debug for ZooKeeperStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZooKeeperStore").field("layout", &self.layout).finish_non_exhaustive()
    }
}

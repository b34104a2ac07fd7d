//! The store over a ZooKeeper ensemble.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fencepost_core::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{Claim, Claimant, Claimed, Forced, Grant, Holding, LockState, Mode, Patience, Release, Renewal},
    clock::{self, BootClock, Clock},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    limits::Ttl,
    name::{LockName, Namespace},
    purpose::{Correctness, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, Guard, LossReporter, Store},
};

use crate::{
    config::{Access, ZooKeeperConfig},
    failure::Failure,
    guard::ZooKeeperGuard,
    layout::{Layout, Recipe},
    places::{Place, Places, Standing},
    queue::{Leaving, Left},
    sentry::Sentry,
    servers::Servers,
    session::Session,
    sessions::{OnEnd, Sessions},
    taking::mode,
    wire::{Code, Request, Stat},
};

/// Locks in a ZooKeeper ensemble. Of the class [`Correctness`]: the fence is the transaction that made the lock's node.
///
/// Dropping it ends its background work; grants then end with their sessions.
pub struct ZooKeeperStore {
    pub(crate) layout: Layout,
    pub(crate) access: Access,
    sessions: Arc<Sessions>,
    pub(crate) places: Arc<Places>,
    pub(crate) sentry: Arc<Sentry>,
    on_end: OnEnd,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    /// As they were last written: one client's claims share one claimant.
    pub(crate) particulars: Mutex<Option<Particulars>>,
}

/// A claimant on a session with this timeout, as its nodes have it.
pub(crate) struct Particulars {
    pub(crate) claimant: Arc<Claimant>,
    pub(crate) timeout: Duration,
    pub(crate) bytes: Arc<[u8]>,
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
        // Curator's mutex knows neither readers nor permits.
        let own = layout.recipe() == Recipe::Fencepost;
        let store = Self {
            layout,
            access: config.access,
            sessions,
            places,
            sentry,
            on_end,
            clock,
            capabilities: Capabilities { shared: own, permits: own, ..crate::capabilities() },
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

    pub(crate) async fn session(&self, ttl: Ttl) -> Result<Arc<Session>, Failure> {
        self.sessions.get(ttl, &self.on_end).await
    }

    /// A session for what needs no grant.
    pub(crate) async fn any_session(&self) -> Result<Arc<Session>, Failure> {
        match self.sessions.any() {
            Some(session) => Ok(session),
            None => self.session(Ttl::DEFAULT).await,
        }
    }

    /// Takes the lock or a place. What a name is in use for says the first one in its queue, and that may be a claim that was
    /// refused itself, and has not been removed yet when those go who were before it. So a refusal is looked at again.
    async fn take_unless_refused(&self, claim: &Claim, patience: Patience) -> Result<Claimed, Failure> {
        for pause in REFUSED_ONES_LEAVE {
            match on_another_connection(|| self.take(claim, patience)).await {
                Err(failure) if failure.is_refusal() => clock::sleep(&*self.clock, pause).await,
                answer => return answer,
            }
        }
        on_another_connection(|| self.take(claim, patience)).await
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
        let unknown = Leaving {
            session: &session,
            lock: &lock,
            owner: &holding.owner,
            mode: mode(holding),
            node: None,
            slots: None,
        };
        let known = place.map(|place| Leaving { session: &session, ..place.leaving(&holding.owner) });
        let left = known.unwrap_or(unknown).leave(&self.layout).await?;
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

    async fn end(&self) {
        let nothing_held = self.places.is_empty();
        for session in self.sessions.close() {
            // Grants are not given back by closing: their sessions run out by themselves.
            if nothing_held {
                session.close().await;
            }
        }
        self.places.clear();
    }
}

/// Before a refused claim is looked at again: two round trips, and some more.
const REFUSED_ONES_LEAVE: [Duration; 3] =
    [Duration::from_millis(20), Duration::from_millis(80), Duration::from_millis(200)];

/// How often a verb is begun anew after its connection broke: another server takes the session up, in a moment or not at
/// all.
const CONNECTIONS_BREAK: usize = 3;

/// Begins a verb anew when its connection broke under it. Every verb can be repeated: it finds what the first try left.
pub(crate) async fn on_another_connection<T, V>(verb: impl Fn() -> V) -> Result<T, Failure>
where
    V: Future<Output = Result<T, Failure>>,
{
    let mut broken = 0;
    loop {
        match verb().await {
            Err(failure) if failure.broken && broken + 1 < CONNECTIONS_BREAK => broken += 1,
            // What broke may have been applied before: that a later try failed does not undo that.
            Err(failure) if broken > 0 => return Err(failure.outcome_unknown()),
            answer => return answer,
        }
    }
}

fn supported(layout: &Layout, holding: &Holding) -> Result<(), Error> {
    let why = match (holding.wants(), layout.recipe()) {
        ([_], Recipe::Fencepost) => None,
        ([want], Recipe::Curator) if want.mode == Mode::Exclusive => None,
        ([_], Recipe::Curator) => Some("`recipe=curator` is that of a mutex: it has neither readers nor permits"),
        // Whether a place is the first one shows only when it is made, so no transaction can take several only if free.
        _ => Some("locks in ZooKeeper are taken one after the other"),
    };
    let refused = |why| Error::new(ErrorKind::Unsupported, Operation::Claim, why).not_applied().in_store(crate::STORE);
    why.map(|why| refused(why).on_lock(holding.name())).map_or(Ok(()), Err)
}

impl Store for ZooKeeperStore {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move {
            supported(&self.layout, &claim.holding)?;
            if let Some(refusal) = Refusal::of(mode(&claim.holding)) {
                return Err(refusal.error(Operation::Claim, claim.name()).in_store(crate::STORE));
            }
            let answer = self.take_unless_refused(claim, patience).await;
            answer.map_err(|failure| failure.error(Operation::Claim, Some(claim.name())))
        })
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(async move {
            let turn = tokio::select! {
                biased;
                // Its own hold on the session would let it wait on, and nobody would look after the place.
                () = self.sessions.closed() => Err(Failure::closed()),
                turn = self.wait_for_turn(claim) => turn,
            };
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
            // Never repeated: it could break the next holder's lock as well.
            let forced = self.break_lock(name, if_fence).await;
            forced.map_err(|failure| failure.error(Operation::Force, Some(name)))
        })
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(async move {
            supported(&self.layout, &claim.holding.shared())?;
            let shared = on_another_connection(|| self.become_reader(claim)).await;
            shared.map_err(|failure| failure.error(Operation::Renew, Some(claim.name())))
        })
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(async move {
            let changed = self.change_limit(&self.layout.lock(name), of).await;
            changed.map_err(|failure| failure.error(Operation::Resize, Some(name)))
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

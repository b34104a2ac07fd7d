//! The store: what each verb of the contract does with the files.
//!
//! Every verb but `turn` runs through without waiting, unless it needs the directory's floor just when another process
//! has it (see [`persist`](crate::persist)); the lock of a file is asked for and never waited for.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64},
    },
};

use fencepost_core::{
    capabilities::Capabilities,
    cells::Cells,
    claim::{
        Busy, Claim, Claimant, Claimed, Forced, Grant, Holding, LockState, LossReason, Mode, Patience, Release,
        Renewal, Want,
    },
    clock::{Clock, Sent, wall_unix_ms},
    error::{Error, ErrorKind, Operation},
    fence::Fence,
    name::{LockName, Namespace},
    purpose::{Correctness, TypedStore},
    refusal::Refusal,
    store::{BoxFuture, LossReporter, Store},
};
use tokio::sync::watch;

use crate::{
    STORE,
    beside::Gates,
    capabilities,
    config::DirectoryConfig,
    directory::Directory,
    encode::Place,
    held::{Keeps, State},
    listing,
    lockfile::{LockFile, Taker, Tried},
    problem::{Outcome, Problem},
    queue::{self, Ticket},
    record::{self, Seats},
};

/// Locks in a directory of this host. One handle is one client: two handles in one process exclude each other.
#[derive(Debug)]
pub struct DirectoryStore {
    pub(crate) shared: Arc<Shared>,
}

impl DirectoryStore {
    /// Opens the directory at `path`, which is made with mode 0700 when it is missing, and in it the one of
    /// `namespace`.
    ///
    /// # Errors
    /// [`ErrorKind::ForeignValue`] when something else lies there, [`ErrorKind::PermissionDenied`] when it cannot be
    /// written, [`ErrorKind::Misconfigured`] on a network file system that the config does not accept,
    /// [`ErrorKind::Corrupt`] when the directory's floor was removed.
    pub fn open(config: DirectoryConfig, namespace: &Namespace, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let directory = Directory::open(&config.path, namespace, config.network)?;
        let shared = Shared {
            directory,
            clock,
            capabilities: capabilities(),
            state: Mutex::default(),
            removals: AtomicU64::new(0),
            watch_is_due: AtomicBool::new(false),
            last_claimant: Mutex::default(),
            reporter: OnceLock::new(),
            gates: Default::default(),
            closed: watch::Sender::new(false),
        };
        Ok(Self { shared: Arc::new(shared) })
    }
}

impl TypedStore for DirectoryStore {
    type Serves = Correctness;
}

impl Store for DirectoryStore {
    fn capabilities(&self) -> &Capabilities {
        &self.shared.capabilities
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(self.shared.claim(claim, patience))
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(crate::turn::turn(&self.shared, claim))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move { claims.iter().map(|claim| self.shared.renew(claim)).collect() })
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        Box::pin(async move {
            let released = self.shared.release(holding).await;
            released.map_err(|problem| problem.into_error(Operation::Release, Some(holding.name())))
        })
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(async move {
            listing::inspect(&self.shared.directory.path, only).map_err(|p| p.into_error(Operation::Inspect, only))
        })
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(async move {
            let forced = self.shared.persist(|| self.shared.force(name, if_fence)).await;
            forced.map_err(|problem| problem.into_error(Operation::Force, Some(name)))
        })
    }

    fn downgrade<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Renewal, Error>> {
        Box::pin(async move {
            let sent = Sent::now(&*self.shared.clock);
            let downgraded = self.shared.persist(|| self.shared.become_reader(claim)).await;
            let downgraded = downgraded.map_err(|p| p.into_error(Operation::Renew, Some(claim.name())))?;
            Ok(match downgraded {
                // Ignored along with the TTL, since nothing expires here.
                true => Renewal::Renewed { counted_from: sent, ttl: claim.ttl.get() },
                false => Renewal::Lost(LossReason::Deleted),
            })
        })
    }

    fn resize<'a>(&'a self, name: &'a LockName, of: u32) -> BoxFuture<'a, Result<Option<u32>, Error>> {
        Box::pin(async move {
            let resized = self.shared.persist(|| self.shared.set_limit(name, of)).await;
            resized.map_err(|problem| problem.into_error(Operation::Resize, Some(name)))
        })
    }

    fn cells(&self) -> Option<&dyn Cells> {
        Some(self)
    }

    fn report_losses(&self, to: LossReporter) {
        // Called once, as the contract says.
        let _ = self.shared.reporter.set(to);
    }

    fn descriptor(&self, holding: &Holding) -> Option<std::io::Result<OwnedFd>> {
        let mut state = self.shared.state();
        let held = state.held.get_mut(&holding.owner)?;
        held.shared_out = true;
        let file = match &held.keeps {
            Keeps::Alone(lock) => &lock.file,
            Keeps::Beside(seat) => &seat.file,
        };
        Some(file.try_clone()) // closed on exec unless whoever gets it decides otherwise
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.closed.send_replace(true);
            let mut state = self.shared.state();
            let watches = (state.watch.take(), std::mem::take(&mut state.seat_watches));
            let files = (std::mem::take(&mut state.waiting), std::mem::take(&mut state.idle));
            drop(state);
            drop((watches, files));
        })
    }
}

/// A store's state, shared with the watcher's thread.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) directory: Directory,
    pub(crate) clock: Arc<dyn Clock>,
    capabilities: Capabilities,
    pub(crate) state: Mutex<State>,
    /// Counts what the watcher told, to notice a removal between the look at the path and the entry in `held`.
    pub(crate) removals: AtomicU64,
    pub(crate) watch_is_due: AtomicBool,
    /// The last claimant and its JSON: a client mostly claims as the same one.
    last_claimant: Mutex<Option<Written>>,
    pub(crate) reporter: OnceLock<LossReporter>,
    pub(crate) gates: Gates,
    pub(crate) closed: watch::Sender<bool>,
}

/// A claimant as it is written into files.
#[derive(Debug)]
struct Written {
    claimant: Arc<Claimant>,
    json: Arc<[u8]>,
}

/// What a try to take a lock came to.
pub(crate) enum Attempt {
    Granted(Grant),
    Refused(Busy),
}

impl Shared {
    async fn claim(self: &Arc<Self>, claim: &Claim, patience: Patience) -> Result<Claimed, Error> {
        let Want { name, mode } = only_one(claim)?;
        self.refuse_when_closed(Operation::Claim, name)?;
        if let Some(refusal) = Refusal::of(*mode) {
            return Err(refusal.error(Operation::Claim, name).in_store(STORE));
        }
        let claimed = self.claim_place(claim, &self.place(name), patience).await;
        claimed.map_err(|problem| problem.into_error(Operation::Claim, Some(name)))
    }

    async fn claim_place(self: &Arc<Self>, claim: &Claim, place: &Place, patience: Patience) -> Outcome<Claimed> {
        // A repeated claim answers as the first one did.
        let (grant, number) = {
            let state = self.state();
            let grant = state.held.get(claim.owner()).map(|held| held.grant.clone());
            (grant, state.waiting.get(claim.owner()).map(|ticket| ticket.number))
        };
        if let Some(grant) = grant {
            return Ok(Claimed::Granted(grant));
        }
        if let Some(number) = number {
            let holder = listing::holder(place)?;
            let ahead = Some(queue::count_before(place, number)?);
            return Ok(Claimed::Queued(Busy { holder, ahead, ..Busy::default() }));
        }
        let mode = claim.holding.wants()[0].mode;
        let tried = match mode {
            Mode::Exclusive => self.persist(|| self.newcomer(claim, place)).await,
            Mode::Shared | Mode::Permits { .. } => {
                let _turn = self.turn_at_gate(place).await;
                self.persist(|| self.newcomer_beside(claim, place)).await
            }
        };
        let busy = match tried? {
            Attempt::Granted(grant) => return Ok(Claimed::Granted(grant)),
            Attempt::Refused(busy) if patience == Patience::Once => return Ok(Claimed::Busy(busy)),
            Attempt::Refused(busy) => busy,
        };
        let since = wall_unix_ms(&*self.clock);
        let ticket = Ticket::take(&self.directory, place, claim, mode, since)?;
        let ahead = Some(queue::count_before(place, ticket.number)?);
        // Before our own next try, which is the first thing that `turn` does: whoever takes the lock after that
        // try sees the mark.
        let mark = || LockFile::open(&self.directory, place)?.mark_waiters(&self.directory, &place.file, true);
        self.persist(mark).await?;
        self.state().waiting.insert(*claim.owner(), ticket);
        Ok(Claimed::Queued(Busy { ahead, ..busy }))
    }

    /// Tries for one who has not waited, and gives way to those who do.
    fn newcomer(self: &Arc<Self>, claim: &Claim, place: &Place) -> Outcome<Attempt> {
        loop {
            let lock = self.open_lock(place)?;
            let removals = self.removals();
            let sent = Sent::now(&*self.clock);
            match lock.try_take(&self.directory, place, self.taker(claim, &self.claimant_json(&claim.claimant)))? {
                Tried::Stale => {}
                Tried::Held => {
                    let holder = lock.recorded(&place.file)?;
                    return Ok(Attempt::Refused(Busy { holder, ..Busy::default() }));
                }
                Tried::Seated(holder) => {
                    refuse_beside_permits(holder.mode)?;
                    return Ok(Attempt::Refused(Busy { holder: Some(*holder), ..Busy::default() }));
                }
                Tried::Taken { fence, inode, waiters } => {
                    let waits = waiters.then(|| self.somebody_waits(&lock, place)).transpose();
                    if !matches!(waits, Ok(None | Some(false))) {
                        // Closing alone would not do, as in `try_take`: the next try would find it held by this one.
                        lock.unlock();
                    }
                    if waits? == Some(true) {
                        refuse_beside_permits(queue::wanted(place)?.unwrap_or_default())?;
                        let ahead = Some(queue::count_before(place, u64::MAX)?);
                        return Ok(Attempt::Refused(Busy { ahead, ..Busy::default() }));
                    }
                    let grant = Grant::new(sent, None, Some(fence));
                    self.hold(claim, place, Keeps::Alone(lock), inode, grant.clone(), removals);
                    return Ok(Attempt::Granted(grant));
                }
            }
        }
    }

    /// Whether the mark that there may be waiters is true; clears it when it is not.
    pub(crate) fn somebody_waits(&self, lock: &LockFile, place: &Place) -> Outcome<bool> {
        if queue::anyone(place)? {
            return Ok(true);
        }
        lock.mark_waiters(&self.directory, &place.file, false)?;
        // Who came between the look and the clearing has set the mark in vain.
        if queue::anyone(place)? {
            lock.mark_waiters(&self.directory, &place.file, true)?;
            return Ok(true);
        }
        Ok(false)
    }

    fn renew(&self, claim: &Claim) -> Result<Renewal, Error> {
        let mut state = self.state();
        let Some(held) = state.held.get_mut(claim.owner()) else {
            return Ok(Renewal::Lost(LossReason::Deleted));
        };
        self.look_after(claim.owner(), held);
        if held.lost {
            return Ok(Renewal::Lost(LossReason::Deleted));
        }
        let said = "a lock in a directory does not expire, so there is nothing to renew";
        let error = Error::new(ErrorKind::Unsupported, Operation::Renew, said).not_applied();
        Err(error.on_lock(claim.name()).in_store(STORE).advise("it is held until it is released or its holder ends"))
    }

    pub(crate) fn place(&self, name: &LockName) -> Place {
        Place::of(&self.directory.path, name)
    }

    pub(crate) fn taker<'a>(&self, claim: &'a Claim, claimant: &'a [u8]) -> Taker<'a> {
        let seats = match claim.holding.wants()[0].mode {
            Mode::Exclusive => Seats::None,
            Mode::Shared => Seats::Readers,
            Mode::Permits { of, .. } => Seats::Permits(of),
        };
        Taker { owner: claim.owner(), claimant, since_unix_ms: wall_unix_ms(&*self.clock), seats }
    }

    pub(crate) fn claimant_json(&self, claimant: &Arc<Claimant>) -> Arc<[u8]> {
        let mut last = self.last_claimant.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some(written) if *written.claimant == **claimant => Arc::clone(&written.json),
            _ => {
                let json: Arc<[u8]> = record::claimant_json(claimant).into();
                *last = Some(Written { claimant: Arc::clone(claimant), json: Arc::clone(&json) });
                json
            }
        }
    }

    pub(crate) fn refuse_when_closed(&self, operation: Operation, name: &LockName) -> Result<(), Error> {
        if !*self.closed.borrow() {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Closed, operation, "the store was closed").not_applied();
        Err(error.on_lock(name).in_store(STORE))
    }
}

/// Whoever wants it alone cannot have it while it is a semaphore.
pub(crate) fn refuse_beside_permits(used: Mode) -> Outcome<()> {
    match used {
        Mode::Permits { of, .. } => Err(Problem::Refused(Refusal::SemaphoreInUse { of })),
        Mode::Exclusive | Mode::Shared => Ok(()),
    }
}

/// The one lock of a claim that this store can serve.
fn only_one(claim: &Claim) -> Result<&Want, Error> {
    match claim.holding.wants() {
        [want] => Ok(want),
        _ => {
            let said = "a directory gives one lock for each claim";
            let error = Error::new(ErrorKind::Unsupported, Operation::Claim, said).not_applied();
            Err(error.on_lock(claim.name()).in_store(STORE))
        }
    }
}

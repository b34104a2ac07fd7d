//! Asking for a lock and waiting for it.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::{Backoff, jitter},
    claim::{Busy, Claim, Claimed, Grant, Holding, Mode, Patience, Want},
    clock::{self, Moment},
    error::{Applied, Error, ErrorKind, Operation, Retry},
    limits::{Ttl, Wait},
    machine::{LeaseMachine, Upkeep},
    name::LockName,
    owner::Owner,
    purpose::Purpose,
};

pub use fencepost_core::claim::Attempt;

use crate::{
    cleaner::{Trace, UnderWay},
    client::Client,
    hold::{Exclusive, Hold},
    lease::Lease,
    locks::claimant_with,
};

/// For how long a waiter without a limit bears a store that does not answer.
pub const OUTAGE_LIMIT: Duration = Duration::from_secs(30);

/// A lock to be taken. Made by [`Locks::lock`](crate::Locks::lock).
#[derive(Debug)]
#[must_use = "nothing happens before `acquire`"]
pub struct LockRequest<P, H = Exclusive> {
    client: Arc<Client>,
    want: Result<Want, Error>,
    terms: Terms,
    /// Handed to the lease, where somebody counts leases.
    token: Option<Arc<()>>,
    kind: PhantomData<fn() -> (P, H)>,
}

/// On which terms something is asked for, whatever it is.
#[derive(Clone, Debug)]
pub(crate) struct Terms {
    pub(crate) ttl: Duration,
    pub(crate) wait: Wait,
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) upkeep: Upkeep,
}

impl Default for Terms {
    fn default() -> Self {
        Self { ttl: Ttl::DEFAULT.get(), wait: Wait::Forever, labels: Vec::new(), upkeep: Upkeep::default() }
    }
}

/// The setters of everything that is asked for on [`Terms`].
macro_rules! terms {
    () => {
        /// The TTL to ask for: 10 ms to 365 days, 30 s by default. Ignored by stores that do not expire.
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.terms.ttl = ttl;
            self
        }

        /// How long the acquire may take altogether; zero tries once. Without it, it waits as long as it takes.
        pub fn wait(mut self, limit: impl Into<Wait>) -> Self {
            self.terms.wait = limit.into();
            self
        }

        /// Attaches a label that people see in listings.
        pub fn label(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
            self.terms.labels.push((key.into(), value.into()));
            self
        }

        /// The longest time that the lease may be held altogether, renewals included.
        pub fn max_hold(mut self, limit: Duration) -> Self {
            self.terms.upkeep.max_hold = Some(limit);
            self
        }
    };
}
pub(crate) use terms;

impl<P: Purpose, H: Hold> LockRequest<P, H> {
    pub(crate) fn new(client: Arc<Client>, name: &str, mode: Mode) -> Self {
        let want = LockName::new(name).map(|name| Want { name, mode });
        Self { client, want, terms: Terms::default(), token: None, kind: PhantomData }
    }

    /// Refuses for a reason that was found before anything was asked.
    pub(crate) fn refused(mut self, error: Option<Error>) -> Self {
        if let (Ok(_), Some(error)) = (&self.want, error) {
            self.want = Err(error);
        }
        self
    }

    pub(crate) fn counted_by(mut self, token: Arc<()>) -> Self {
        self.token = Some(token);
        self
    }

    terms!();

    /// Leaves renewal to [`Lease::renew`]. Loss is watched all the same.
    pub fn manual_renewal(mut self) -> Self {
        self.terms.upkeep.manual = true;
        self
    }

    /// Takes the lock, waiting in its queue if need be.
    ///
    /// # Errors
    /// Never because another holds it: that is [`Attempt::Busy`]. [`ErrorKind::InvalidInput`] for the name or the
    /// TTL; [`ErrorKind::Unavailable`] when the store did not answer within the waiting time (with no limit:
    /// within [`OUTAGE_LIMIT`]); [`ErrorKind::Closed`] when the client is closed; [`ErrorKind::LateGrant`] when the
    /// answer took longer than the grant lasts. An outcome that is unknown is cleaned up in the background; the lock comes free after the TTL at the latest.
    ///
    /// # Cancel safety
    /// Safe: dropped at any point, it leaves neither a lock nor a place in the queue once the background clean-up
    /// is answered, at the latest after the TTL (C1). The place in the queue is lost.
    pub async fn acquire(self) -> Result<Attempt<Lease<P, H>>, Error> {
        let Self { client, want, terms, token, .. } = self;
        let want = want?;
        let attempt = obtain(client, terms, |owner| Holding::one(want, owner)).await?;
        Ok(match (attempt, token) {
            (Attempt::Acquired(lease), Some(token)) => Attempt::Acquired(lease.counted_by(token)),
            (attempt, _) => attempt,
        })
    }
}

/// Claims and waits, on the terms given.
pub(crate) async fn obtain<P: Purpose, H: Hold>(
    client: Arc<Client>,
    terms: Terms,
    holding: impl FnOnce(Owner) -> Holding,
) -> Result<Attempt<Lease<P, H>>, Error> {
    let claim = Claim {
        holding: holding(Owner::random()?),
        ttl: Ttl::new(terms.ttl)?,
        claimant: if terms.labels.is_empty() { client.claimant.clone() } else { Arc::new(claimant_with(terms.labels)) },
    };
    let pursuit = Pursuit::new(client, claim, terms.upkeep);
    let outcome = tokio::select! {
        biased;
        error = pursuit.client.closed() => Err(error),
        outcome = pursuit.pursue(terms.wait) => outcome,
        span = pursuit.end_of(terms.wait) => pursuit.out_of_time(span),
    };
    outcome.map(|attempt| match attempt {
        Attempt::Acquired((machine, grant)) => Attempt::Acquired(pursuit.into_lease(machine, grant)),
        Attempt::Busy(busy) => Attempt::Busy(busy),
    })
}

/// One claim on its way to a grant. Dropped before that, it is given back in the background (C1).
struct Pursuit {
    client: Arc<Client>,
    claim: Arc<Claim>,
    upkeep: Upkeep,
    progress: Mutex<Progress>,
    /// Dropped after the clean-up was handed on, so that a client that closes waits for both.
    _under_way: UnderWay,
}

#[derive(Debug, Default)]
struct Progress {
    /// What the store may hold of ours.
    trace: Option<Trace>,
    /// The last answer, for the end of the waiting time.
    last: Option<Result<Busy, Error>>,
}

impl Pursuit {
    fn new(client: Arc<Client>, claim: Claim, upkeep: Upkeep) -> Self {
        let _under_way = client.cleaner.begin();
        Self { client, claim: Arc::new(claim), upkeep, progress: Mutex::default(), _under_way }
    }

    async fn pursue(&self, wait: Wait) -> Result<Attempt<(LeaseMachine, Grant)>, Error> {
        let patience = if wait == Wait::Once { Patience::Once } else { Patience::Queue };
        let mut outage = Outage::default();
        loop {
            match self.claim_once(patience, &mut outage).await {
                Ok(Attempt::Acquired(grant)) => return self.believe(grant),
                Ok(Attempt::Busy(busy)) => return Ok(Attempt::Busy(busy)),
                Err(error) => {
                    let given_up = match wait {
                        Wait::Once => true,
                        Wait::AtMost(_) => false, // its end comes by itself
                        Wait::Forever => outage.is_over(self.client.clock.now()),
                    };
                    if given_up || error.retry() == Retry::AfterChange {
                        return Err(error);
                    }
                    self.note(|progress| progress.last = Some(Err(error)));
                    clock::sleep(&*self.client.clock, outage.backoff.pause()).await;
                }
            }
        }
    }

    /// One claim and, where it was queued, the wait for its turn.
    async fn claim_once(&self, patience: Patience, outage: &mut Outage) -> Result<Attempt<Grant>, Error> {
        let before = self.note(|progress| progress.trace.replace(Trace::Unclear));
        match self.client.store.claim(&self.claim, patience).await {
            Ok(Claimed::Granted(grant)) => Ok(Attempt::Acquired(grant)),
            Ok(Claimed::Busy(busy)) => {
                self.note(|progress| progress.trace = None);
                Ok(Attempt::Busy(busy))
            }
            Ok(Claimed::Queued(busy)) => {
                *outage = Outage::default();
                // The trace stays unclear: while it waits, a store may claim again by itself.
                self.note(|progress| progress.last = Some(Ok(busy)));
                self.client.store.turn(&self.claim).await.map(Attempt::Acquired)
            }
            Err(error) if error.applied() == Applied::No => {
                self.note(|progress| progress.trace = before);
                // That this try was refused says nothing of an earlier one, which may have been carried out.
                Err(if before.is_some() { error.outcome_unknown() } else { error })
            }
            Err(error) => Err(error),
        }
    }

    fn believe(&self, grant: Grant) -> Result<Attempt<(LeaseMachine, Grant)>, Error> {
        let now = self.client.clock.now();
        match LeaseMachine::begin(now, &grant, self.upkeep, jitter()) {
            Ok(machine) => Ok(Attempt::Acquired((machine, grant))),
            Err(late) => {
                let ttl = grant.ttl.unwrap_or_default();
                let said = format!("the grant took {:?} and lasts {ttl:?}: it was over on arrival", late.took);
                Err(Error::new(ErrorKind::LateGrant, Operation::Claim, said)
                    .on_lock(self.claim.name())
                    .in_store(self.client.store.capabilities().store)
                    .applied_in_full()
                    .advise("it is being given back; ask for a longer TTL"))
            }
        }
    }

    /// Completes at the end of the waiting time, and says how long that was.
    async fn end_of(&self, wait: Wait) -> Duration {
        match wait {
            Wait::AtMost(span) => {
                clock::sleep(&*self.client.clock, span).await;
                span
            }
            Wait::Once | Wait::Forever => std::future::pending().await,
        }
    }

    fn out_of_time<T>(&self, span: Duration) -> Result<Attempt<T>, Error> {
        match self.note(|progress| progress.last.take()) {
            Some(Ok(busy)) => Ok(Attempt::Busy(busy)),
            Some(Err(error)) => Err(error),
            None => {
                let said = format!("the store did not answer within the waiting time of {span:?}");
                Err(Error::new(ErrorKind::Unavailable, Operation::Claim, said)
                    .on_lock(self.claim.name())
                    .in_store(self.client.store.capabilities().store)
                    .advise("what it may still grant is given back in the background"))
            }
        }
    }

    fn into_lease<P: Purpose, H: Hold>(self, machine: LeaseMachine, grant: Grant) -> Lease<P, H> {
        let held = self.client.watchdog.add(machine, self.claim.clone());
        self.note(|progress| progress.trace = None); // from here on the guard gives it back
        Lease::new(self.client.clone(), held, grant)
    }

    fn note<T>(&self, change: impl FnOnce(&mut Progress) -> T) -> T {
        change(&mut self.progress.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Pursuit {
    fn drop(&mut self) {
        if let Some(trace) = self.note(|progress| progress.trace) {
            self.client.cleaner.give_back(self.claim.clone(), trace);
        }
    }
}

/// A stretch of time in which the store did not answer.
struct Outage {
    since: Option<Moment>,
    backoff: Backoff,
}

impl Default for Outage {
    fn default() -> Self {
        Self { since: None, backoff: Backoff::new(Duration::from_millis(20), Duration::from_secs(1)) }
    }
}

impl Outage {
    fn is_over(&mut self, now: Moment) -> bool {
        now.since(*self.since.get_or_insert(now)) >= OUTAGE_LIMIT
    }
}

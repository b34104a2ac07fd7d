//! Metrics and traces, by a store around a store.
//!
//! Metrics, through the `metrics` crate, each with the label `store`:
//!
//! | name | kind | what |
//! |---|---|---|
//! | `fencepost_acquired_total` | counter | grants |
//! | `fencepost_busy_total` | counter | claims answered "busy" or queued |
//! | `fencepost_waited_seconds` | histogram | time spent in a queue before a grant |
//! | `fencepost_held_seconds` | histogram | time from a grant to its release |
//! | `fencepost_renewals_total` | counter | renewals that extended a lease |
//! | `fencepost_lost_total` | counter | grants lost, with the label `reason` |
//! | `fencepost_errors_total` | counter | errors, with the labels `operation` and `kind` |
//!
//! Traces, through `tracing`, on the target `fencepost`: a span `claim`, `turn` and `release` for each call, with the
//! field `lock`. Neither ever carries an owner value.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fencepost_core::{
    claim::{Claim, Claimed, Forced, Grant, Holding, LockState, LossReason, Patience, Release, Renewal},
    clock::{Clock, Moment},
    error::Error,
    fence::Fence,
    layer::StoreLayer,
    name::LockName,
    owner::Owner,
    store::{BoxFuture, Store},
};
use tracing::Instrument;

/// A store whose every call is counted and traced.
#[derive(Debug)]
pub struct Observed {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    granted_at: Arc<Mutex<HashMap<Owner, Moment>>>,
}

impl Observed {
    /// Wraps `store`.
    pub fn new(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock, granted_at: Arc::default() }
    }

    fn label(&self) -> &'static str {
        self.store.capabilities().store
    }

    fn granted(&self, owner: &Owner) {
        self.open_grants().insert(*owner, self.clock.now());
        metrics::counter!("fencepost_acquired_total", "store" => self.label()).increment(1);
    }

    fn ended(&self, owner: &Owner, lost: Option<LossReason>) {
        let Some(since) = self.open_grants().remove(owner) else { return };
        let held = self.clock.now().since(since).as_secs_f64();
        metrics::histogram!("fencepost_held_seconds", "store" => self.label()).record(held);
        if let Some(reason) = lost {
            count_loss(self.label(), reason);
        }
    }

    fn failed(&self, error: &Error) {
        let operation = error.operation().to_string();
        let kind = format!("{:?}", error.kind());
        metrics::counter!("fencepost_errors_total", "store" => self.label(), "operation" => operation, "kind" => kind)
            .increment(1);
        tracing::debug!(target: "fencepost", %error, "the store answered with an error");
    }

    fn noted<T>(&self, answer: Result<T, Error>) -> Result<T, Error> {
        answer.inspect_err(|error| self.failed(error))
    }

    fn open_grants(&self) -> MutexGuard<'_, HashMap<Owner, Moment>> {
        self.granted_at.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl StoreLayer for Observed {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        let span = tracing::debug_span!(target: "fencepost", "claim", lock = %claim.name());
        let observed = async move {
            let answer = self.noted(self.store.claim(claim, patience).await)?;
            match &answer {
                Claimed::Granted(_) => self.granted(claim.owner()),
                Claimed::Busy(_) | Claimed::Queued(_) => {
                    metrics::counter!("fencepost_busy_total", "store" => self.label()).increment(1);
                }
            }
            Ok(answer)
        };
        Box::pin(observed.instrument(span))
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        let span = tracing::debug_span!(target: "fencepost", "turn", lock = %claim.name());
        let observed = async move {
            let since = self.clock.now();
            let grant = self.noted(self.store.turn(claim).await)?;
            let waited = self.clock.now().since(since).as_secs_f64();
            metrics::histogram!("fencepost_waited_seconds", "store" => self.label()).record(waited);
            self.granted(claim.owner());
            Ok(grant)
        };
        Box::pin(observed.instrument(span))
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let answers = self.store.renew(claims).await;
            for (claim, answer) in claims.iter().zip(&answers) {
                match answer {
                    Ok(Renewal::Renewed { .. }) => {
                        metrics::counter!("fencepost_renewals_total", "store" => self.label()).increment(1);
                    }
                    Ok(Renewal::Lost(reason)) => self.ended(claim.owner(), Some(*reason)),
                    Err(error) => self.failed(error),
                }
            }
            answers
        })
    }

    fn release<'a>(&'a self, holding: &'a Holding) -> BoxFuture<'a, Result<Release, Error>> {
        let span = tracing::debug_span!(target: "fencepost", "release", lock = %holding.name());
        let observed = async move {
            let answer = self.noted(self.store.release(holding).await)?;
            let lost = match answer {
                Release::Released => None,
                Release::AlreadyExpired => Some(LossReason::Expired),
                Release::HeldByOther => Some(LossReason::TakenOver),
            };
            self.ended(&holding.owner, lost);
            Ok(answer)
        };
        Box::pin(observed.instrument(span))
    }

    fn inspect<'a>(&'a self, only: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<LockState>, Error>> {
        Box::pin(async move { self.noted(self.store.inspect(only).await) })
    }

    fn force<'a>(&'a self, name: &'a LockName, if_fence: Option<Fence>) -> BoxFuture<'a, Result<Forced, Error>> {
        Box::pin(async move { self.noted(self.store.force(name, if_fence).await) })
    }
}

fn count_loss(store: &'static str, reason: LossReason) {
    let reason = format!("{reason:?}");
    metrics::counter!("fencepost_lost_total", "store" => store, "reason" => reason).increment(1);
}

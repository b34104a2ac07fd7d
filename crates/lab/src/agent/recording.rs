//! A store around the store that writes down what the library asked and was answered.

use std::{
    collections::HashMap,
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Claim, Claimed, Grant, Patience, Renewal},
    error::Error,
    layer::StoreLayer,
    machine::drift_allowance,
    purpose::{Purpose, TypedStore},
    store::{BoxFuture, Store},
};
use fencepost_history::{Answer, Verb, What};

use super::{LABEL, paced::PacedClock, tell, tell_at};

#[derive(Debug)]
pub(super) struct Recording<P> {
    store: Arc<dyn Store>,
    /// Renewals are asked for in the background, beside whatever the client asks itself.
    by: String,
    grants: Grants,
    clock: Arc<PacedClock>,
    purpose: PhantomData<fn() -> P>,
}

/// What the store answered last, by the names of the grants.
pub(super) type Grants = Arc<Mutex<HashMap<String, Grant>>>;

impl<P> Recording<P> {
    pub(super) fn around(store: Arc<dyn Store>, name: &str, grants: Grants, clock: Arc<PacedClock>) -> Self {
        Self { store, by: format!("{name}'s watchdog"), grants, clock, purpose: PhantomData }
    }

    fn keep(&self, claim: &Claim, grant: &Grant) {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner).insert(named(claim), grant.clone());
    }

    fn renewed(&self, claim: &Claim, asked: u64, answer: &Result<Renewal, Error>) {
        let (lock, grant) = (claim.name().to_string(), named(claim));
        tell_at(asked, &self.by, What::asks(Verb::Renew, lock, grant));
        tell(
            &self.by,
            match answer {
                Ok(Renewal::Renewed { counted_from, ttl }) => {
                    let from = counted_from.moment();
                    // The rule of the lease machine (T1).
                    let until = from.after(ttl.saturating_sub(drift_allowance(*ttl)));
                    What::Ok {
                        answer: Answer::Renewed,
                        fence: None,
                        ttl: promised(&*self.store, Some(*ttl)),
                        from: Some(self.clock.truly(from).as_nanos()),
                        until: Some(self.clock.truly(until).as_nanos()),
                        slots: None,
                    }
                }
                Ok(Renewal::Lost(_)) => What::says(Answer::NotHeld),
                Err(error) => What::Unknown { why: error.to_string() },
            },
        );
    }
}

impl<P: Purpose> StoreLayer for Recording<P> {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    fn claim<'a>(&'a self, claim: &'a Claim, patience: Patience) -> BoxFuture<'a, Result<Claimed, Error>> {
        Box::pin(async move {
            let answer = self.store.claim(claim, patience).await?;
            if let Claimed::Granted(grant) = &answer {
                self.keep(claim, grant);
            }
            Ok(answer)
        })
    }

    fn turn<'a>(&'a self, claim: &'a Claim) -> BoxFuture<'a, Result<Grant, Error>> {
        Box::pin(async move {
            let grant = self.store.turn(claim).await?;
            self.keep(claim, &grant);
            Ok(grant)
        })
    }

    fn renew<'a>(&'a self, claims: &'a [Arc<Claim>]) -> BoxFuture<'a, Vec<Result<Renewal, Error>>> {
        Box::pin(async move {
            let asked = super::now();
            let answers = self.store.renew(claims).await;
            for (claim, answer) in claims.iter().zip(&answers) {
                self.renewed(claim, asked, answer);
            }
            answers
        })
    }
}

impl<P: Purpose> TypedStore for Recording<P> {
    type Serves = P;
}

/// The TTL in nanoseconds, where grants expire: what lives by its connection is not promised beyond that.
pub(super) fn promised(store: &dyn Store, ttl: Option<Duration>) -> Option<u64> {
    let ttl = ttl.filter(|_| store.capabilities().expires)?;
    u64::try_from(ttl.as_nanos()).ok()
}

fn named(claim: &Claim) -> String {
    let label = claim.claimant.labels.iter().find(|(key, _)| key == LABEL);
    label.map(|(_, value)| value.clone()).unwrap_or_default()
}

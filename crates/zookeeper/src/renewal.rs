//! Renewals: what a session's heartbeats prove, told to its holders.

use std::{collections::HashMap, sync::Arc};

use fencepost_core::{
    claim::{Claim, LossReason, Mode, Renewal},
    clock,
    error::{Error, Operation},
};
use futures_util::future::join_all;

use crate::{
    failure::Failure, places::Standing, queue::Queue, session::Session, store::ZooKeeperStore, taking::mode,
    wire::Request,
};

impl ZooKeeperStore {
    /// Nothing is written: a session keeps all its nodes alive. The answer is what its heartbeats prove, after every
    /// event that the ensemble had for us by now.
    pub(crate) async fn extend(&self, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
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
        let unwatched = self.places.to_watch(claims.clone().map(|claim| claim.owner()));
        if !unwatched.is_empty() {
            // Whatever it was told of the nodes is taken down by itself.
            let _ = self.sentry.clone().watch(unwatched).await;
        }
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

    pub(crate) async fn why_lost(&self, claim: &Claim) -> Result<LossReason, Failure> {
        if self.places.get(claim.owner()).is_some_and(|place| place.session.is_over()) {
            return Ok(LossReason::SessionExpired);
        }
        let session = self.any_session().await?;
        let queue = Queue::read(&self.layout, &session, &self.layout.lock(claim.name())).await?;
        let ours = queue.contenders().iter().position(|contender| contender.owner.as_ref() == Some(claim.owner()));
        match (ours, queue.contenders().first(), mode(&claim.holding)) {
            (Some(0), ..) | (Some(_), _, Mode::Shared | Mode::Permits { .. }) => Err(Failure::another_session()),
            (_, None, _) => Ok(LossReason::Deleted),
            (_, Some(first), Mode::Shared) if first.mode == Some(Mode::Shared) => Ok(LossReason::Deleted),
            _ => Ok(LossReason::TakenOver),
        }
    }
}

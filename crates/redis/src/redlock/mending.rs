//! Putting the record of a lease back at servers that lost it, or never had it, while a quorum has it.
//!
//! Otherwise every server that comes back empty during a hold is one record fewer for good, until no quorum is left.
//!
//! # Why that is safe
//!
//! A record is only put back after a renewal by a quorum, and only where no other has confirmed one. That quorum has promised
//! the lock to nobody else, so nobody else can have one, and one record more takes nothing from anybody. It is no vote in
//! the renewal that found it missing. In later ones it is a vote like any other, under the restart guard: a server that
//! may have forgotten a promise is not counted before every such promise is over, whatever it was told since.
//!
//! What a renewal may not do is bring back what was given up (O2). So a lease that is given back while its renewal is under
//! way is marked, and nothing of it is put back. A release by another process, or a put-back that arrives long after it
//! was given up for lost, can leave records at a minority: until the next renewal finds the lease gone, or for one TTL.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use fencepost_core::{claim::Claim, error::Applied, owner::Owner};

use super::{debts::Due, node::Node};

/// The leases whose renewal is under way.
#[derive(Debug, Default)]
pub(super) struct Renewals(Mutex<HashMap<Owner, UnderWay>>);

#[derive(Debug, Default)]
struct UnderWay {
    renewals: usize,
    given_back: bool,
}

/// Some of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Renewing {
    all: Arc<Renewals>,
    claims: Vec<Arc<Claim>>,
}

impl Renewals {
    /// Before the first request leaves.
    pub(super) fn begin(self: &Arc<Self>, claims: &[Arc<Claim>]) -> Renewing {
        let mut under_way = self.lock();
        claims.iter().for_each(|claim| under_way.entry(*claim.owner()).or_default().renewals += 1);
        drop(under_way);
        Renewing { all: self.clone(), claims: claims.to_vec() }
    }

    /// Before the first request to give back leaves.
    pub(super) fn given_back(&self, owner: &Owner) {
        if let Some(under_way) = self.lock().get_mut(owner) {
            under_way.given_back = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Owner, UnderWay>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Renewing {
    /// Puts records back that a server lacks, one after the other: there may be thousands, and the server has just come
    /// back. `places` are those of the leases that a quorum renewed.
    pub(super) async fn put_back(&self, node: &Arc<Node>, places: &[usize], round: u64) {
        for claim in places.iter().map(|place| &self.claims[*place]) {
            if self.was_given_back(claim) {
                continue;
            }
            let answer = node.put_back(claim, round).await;
            if self.was_given_back(claim) {
                let unclear = answer.is_err_and(|failure| failure.applied() != Applied::No);
                node.owe(claim.name(), claim.owner(), Due::Everything, claim.ttl.get(), unclear);
            } else if let Err(failure) = answer {
                tracing::debug!(lock = %claim.name(), node = %node.address, reason = %failure.message(), "not put back");
                return; // the next renewal tries again
            }
        }
    }

    fn was_given_back(&self, claim: &Claim) -> bool {
        self.all.lock().get(claim.owner()).is_none_or(|under_way| under_way.given_back)
    }
}

impl Drop for Renewing {
    fn drop(&mut self) {
        let mut under_way = self.all.lock();
        for claim in &self.claims {
            if let Some(of_this) = under_way.get_mut(claim.owner()) {
                of_this.renewals -= 1;
                if of_this.renewals == 0 {
                    under_way.remove(claim.owner());
                }
            }
        }
    }
}

//! What a script does with a grant that it has: `renew`, `check` and `release`.

use std::sync::Arc;

use fencepost::{
    Locks,
    claim::{Claim, Claimant, Holding, Release, Renewal},
};

use crate::{
    arguments::{Global, Grant, Renew},
    exit::{self, Ending},
    take,
};

/// Extends a grant by its TTL from now.
pub(crate) fn renew(global: &Global, verb: &Renew) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        if !locks.capabilities().expires {
            // It lasts anyway: all there is to know is whether it is still held.
            return look_for(&locks, &verb.grant).await;
        }
        let claim = Claim { holding: holding(&verb.grant), ttl: verb.ttl, claimant: Arc::new(Claimant::here()) };
        let answer = locks.store().renew(&[Arc::new(claim)]).await.pop();
        let ending = match answer {
            Some(Ok(Renewal::Renewed { .. })) => Ending::done(),
            Some(Ok(Renewal::Lost(reason))) => lost(&verb.grant, &reason.to_string()),
            Some(Err(error)) => error.into(),
            None => Ending::internal("the store gave no answer"),
        };
        locks.close().await;
        Ok(ending)
    })
}

/// Tells whether a grant is still held.
pub(crate) fn check(global: &Global, grant: &Grant) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        look_for(&locks, grant).await
    })
}

async fn look_for(locks: &Locks, grant: &Grant) -> Result<Ending, Ending> {
    let states = locks.store().inspect(Some(&grant.name)).await?;
    let mut holders = states.iter().flat_map(|state| &state.holders);
    Ok(match holders.find(|holder| holder.owner == Some(grant.owner)) {
        Some(holder) => Ending { fence: holder.fence.map(|fence| fence.get()), ..Ending::done() },
        None => lost(grant, "it is free, or another holds it"),
    })
}

/// Gives a grant back.
pub(crate) fn release(global: &Global, grant: &Grant) -> Ending {
    crate::log(global.verbose);
    crate::block_on(async {
        let locks = take::browse(global).await?;
        let ending = match locks.store().release(&holding(grant)).await {
            Ok(Release::Released) => Ending::done(),
            Ok(Release::AlreadyExpired) => lost(grant, "it had expired, or was released before"),
            Ok(Release::HeldByOther) => lost(grant, "another holds it; nothing was changed"),
            Err(error) => error.into(),
        };
        locks.close().await;
        Ok(ending)
    })
}

fn holding(grant: &Grant) -> Holding {
    Holding::exclusive(grant.name.clone(), grant.owner)
}

fn lost(grant: &Grant, why: &str) -> Ending {
    Ending::coded("lost", exit::LOST).saying(format!("lock {:?}: the lease is lost: {why}", grant.name))
}

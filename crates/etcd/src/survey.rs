//! Looking without changing: the listing of locks.

use std::{collections::BTreeMap, time::Duration};

use fencepost_core::{
    claim::{LockState, LossReason},
    name::LockName,
    owner::Owner,
};
use futures_util::future::join_all;

use crate::{
    api::{KeyValue, LeaseClient, LeaseTimeToLiveRequest, RangeRequest, below, revision},
    failure::{Failure, Sort},
    queue::Queue,
    record::Record,
};

/// Claims read at once.
const PAGE: i64 = 1000;

/// Every lock that is held or waited for, sorted by name; or just `only`.
pub(crate) async fn inspect(queue: &Queue, only: Option<&LockName>) -> Result<Vec<LockState>, Failure> {
    let mut locks: BTreeMap<LockName, Vec<KeyValue>> = BTreeMap::new();
    let prefix = only.map_or_else(|| queue.keys.all(), |name| queue.keys.lock(name));
    for kv in all_below(queue, &prefix).await? {
        if let Some(name) = queue.keys.name(&kv.key).filter(|name| only.is_none_or(|only| only == name)) {
            locks.entry(name).or_default().push(kv);
        }
    }
    let mut states = Vec::new();
    for (name, mut claims) in locks {
        claims.sort_by_key(|kv| kv.create_revision);
        match state(queue, &name, &claims) {
            Ok(state) => states.push((state, claims[0].lease)),
            Err(failure) if only.is_some() => return Err(failure),
            Err(_) => tracing::warn!(lock = %name, "a key of the lock in etcd holds something that is not a lock"),
        }
    }
    let left = time_left(queue, states.iter().map(|(_, lease)| *lease)).await?;
    let with_expiry = states.into_iter().map(|(mut state, lease)| {
        for holder in &mut state.holders {
            holder.expires_in = left.get(&lease).copied().flatten();
        }
        state
    });
    Ok(with_expiry.collect())
}

fn state(queue: &Queue, name: &LockName, claims: &[KeyValue]) -> Result<LockState, Failure> {
    let (mut holders, mut waiters) = (Vec::new(), Vec::new());
    for (place, kv) in claims.iter().enumerate() {
        let record = Record::read(kv, queue.recipe)?;
        if place == 0 {
            holders.push(record.holder(kv));
        } else {
            waiters.push(record.waiter());
        }
    }
    Ok(LockState { name: name.clone(), holders, waiters })
}

/// In pages, all of one revision.
async fn all_below(queue: &Queue, prefix: &[u8]) -> Result<Vec<KeyValue>, Failure> {
    let mut page = RangeRequest { limit: PAGE, ..below(prefix) };
    let mut all = Vec::new();
    loop {
        let read = queue.link.range(page.clone()).await?;
        page.revision = revision(&read.header).min(if page.revision > 0 { page.revision } else { i64::MAX });
        all.extend(read.kvs);
        match all.last() {
            Some(last) if read.more => {
                page.key.clone_from(&last.key);
                page.key.push(0);
            }
            _ => return Ok(all),
        }
    }
}

/// For how long yet each lease lasts at most, unless it is kept alive. etcd tells whole seconds and rounds down.
async fn time_left(
    queue: &Queue,
    leases: impl Iterator<Item = i64>,
) -> Result<BTreeMap<i64, Option<Duration>>, Failure> {
    let mut each: Vec<_> = leases.filter(|lease| *lease != 0).collect();
    each.sort_unstable();
    each.dedup();
    let mut left = BTreeMap::new();
    for some in each.chunks(64) {
        let asked = some.iter().map(|lease| async move { (*lease, time_left_of(queue, *lease).await) });
        for (lease, answer) in join_all(asked).await {
            left.insert(lease, answer?);
        }
    }
    Ok(left)
}

pub(crate) async fn time_left_of(queue: &Queue, lease: i64) -> Result<Option<Duration>, Failure> {
    let asked = LeaseTimeToLiveRequest { id: lease, keys: false };
    let answer = queue.link.ask(|connection| async move {
        let request = connection.request(asked);
        LeaseClient::new(connection.channel).lease_time_to_live(request).await
    });
    match answer.await {
        Ok(answer) => {
            let answer = answer.message;
            let at_most = (answer.ttl + 1).min(answer.granted_ttl);
            Ok(u64::try_from(at_most).ok().filter(|_| answer.ttl >= 0).map(Duration::from_secs))
        }
        // It ended since the keys were read.
        Err(failure) if failure.sort == Sort::SessionGone => Ok(None),
        Err(failure) => Err(failure),
    }
}

impl Queue {
    /// The oldest claim of a lock, which holds it.
    pub(crate) async fn first(&self, name: &LockName) -> Result<Option<KeyValue>, Failure> {
        let prefix = self.keys.lock(name);
        let oldest = self.link.range(below(&prefix).oldest(1)).await?.kvs.into_iter().next();
        match oldest {
            Some(kv) if !self.keys.is_claim(&prefix, &kv.key) => {
                let all = self.link.range(below(&prefix).oldest(0)).await?;
                Ok(all.kvs.into_iter().find(|kv| self.keys.is_claim(&prefix, &kv.key)))
            }
            oldest => Ok(oldest),
        }
    }

    /// The claim of an owner whom another client, or another process, has taken down.
    pub(crate) async fn claim_of(&self, name: &LockName, owner: &Owner) -> Result<Option<KeyValue>, Failure> {
        let all = all_below(self, &self.keys.lock(name)).await?;
        let theirs = |kv: &KeyValue| Record::read(kv, self.recipe).is_ok_and(|record| record.owner() == Some(*owner));
        Ok(all.into_iter().find(|kv| self.keys.name(&kv.key).as_ref() == Some(name) && theirs(kv)))
    }

    /// How a lock was lost whose claim is not in the store.
    pub(crate) async fn who_has_it_now(&self, name: &LockName) -> Result<LossReason, Failure> {
        Ok(if self.first(name).await?.is_some() { LossReason::TakenOver } else { LossReason::Deleted })
    }
}

//! Looking at locks as a whole: the listing, and taking a lock from its holders by force.

use std::{collections::BTreeMap, time::Duration};

use fencepost_core::{
    claim::{Forced, Holder, Holding, LockState, LossReason, Mode, Waiter},
    fence::Fence,
    name::LockName,
    owner::Owner,
};
use futures_util::future::join_all;

use crate::{
    api::{KeyValue, LeaseClient, LeaseTimeToLiveRequest, RangeRequest, below, revision},
    failure::{Failure, Sort},
    keys::Kind,
    queue::Queue,
    record::Record,
};

/// Claims read at once.
const PAGE: i64 = 1000;

/// Requests that are under way at once.
const AT_ONCE: usize = 64;

/// Every lock that is held or waited for, sorted by name; or just `only`.
pub(crate) async fn inspect(queue: &Queue, only: Option<&LockName>) -> Result<Vec<LockState>, Failure> {
    let mut locks: BTreeMap<LockName, Vec<KeyValue>> = BTreeMap::new();
    let prefix = only.map_or_else(|| queue.keys.all(), |name| queue.keys.lock(name));
    for kv in all_below(queue, &prefix).await? {
        if let Some((name, _)) = queue.keys.parsed(&kv.key).filter(|(name, _)| only.is_none_or(|only| only == name)) {
            locks.entry(name).or_default().push(kv);
        }
    }
    let mut states = Vec::new();
    for (name, claims) in locks {
        match Line::read(queue, claims) {
            Ok(line) => states.push((name, line)),
            Err(failure) if only.is_some() => return Err(failure),
            Err(_) => tracing::warn!(lock = %name, "a key of the lock in etcd holds something that is not a lock"),
        }
    }
    let mut leases = Vec::new();
    for (_, line) in &states {
        leases.extend(line.holders.iter().map(|(kv, _)| kv.lease));
    }
    let left = time_left(queue, leases).await?;
    let shown = states.into_iter().map(|(name, line)| {
        let holders = line.holders.into_iter().map(|(kv, record)| {
            let expires_in = left.get(&kv.lease).copied().flatten();
            Holder { expires_in, ..holder(&kv, record) }
        });
        LockState { name, holders: holders.collect(), waiters: line.waiters }
    });
    Ok(shown.collect())
}

/// A reader's number is known to itself alone.
fn holder(kv: &KeyValue, record: Record) -> Holder {
    let reads = record.mode == Mode::Shared;
    let holder = record.holder(kv);
    Holder { fence: holder.fence.filter(|_| !reads), ..holder }
}

/// The claims on one lock, as they stand.
struct Line {
    holders: Vec<(KeyValue, Record)>,
    waiters: Vec<Waiter>,
}

impl Line {
    fn read(queue: &Queue, mut claims: Vec<KeyValue>) -> Result<Self, Failure> {
        claims.sort_by_key(|kv| kv.create_revision);
        let mut line = Self { holders: Vec::new(), waiters: Vec::new() };
        for kv in claims {
            let record = Record::read(&kv, queue.recipe)?;
            // Whoever waits is passed by nobody, except that permits are a queue of their own.
            let holds = match record.mode {
                Mode::Permits { .. } => !record.slots.is_empty(),
                Mode::Shared => {
                    line.waiters.is_empty() && line.holders.iter().all(|(_, before)| before.mode == Mode::Shared)
                }
                Mode::Exclusive => line.waiters.is_empty() && line.holders.is_empty(),
            };
            if holds {
                line.holders.push((kv, record));
            } else {
                line.waiters.push(record.waiter());
            }
        }
        Ok(line)
    }
}

/// Takes a lock from all its holders; answers what the first of them was.
pub(crate) async fn force(queue: &Queue, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Failure> {
    loop {
        let line = line(queue, name).await?;
        let Some((first, record)) = line.holders.first() else { return Ok(Forced::NotHeld) };
        let broken = holder(first, record.clone());
        if if_fence.is_some() && if_fence != broken.fence {
            return Ok(Forced::OtherFence(broken.fence));
        }
        // On condition of what was read: the next holder must not lose it.
        if remove_all(queue, line.holders.iter().map(|(kv, _)| kv)).await? {
            return Ok(Forced::Broken(Some(broken)));
        }
    }
}

/// Removes the claims of an owner whom another client, or another process, has taken down; whether there was any.
pub(crate) async fn remove_all_of(queue: &Queue, holding: &Holding) -> Result<bool, Failure> {
    let mut theirs = Vec::new();
    for want in holding.wants() {
        let claims = claims_on(queue, &want.name).await?.into_iter();
        theirs.extend(
            claims
                .filter(|kv| Record::read(kv, queue.recipe).is_ok_and(|record| record.owner() == Some(holding.owner))),
        );
    }
    remove_all(queue, theirs.iter()).await
}

/// Whether any was still there.
async fn remove_all(queue: &Queue, claims: impl Iterator<Item = &KeyValue>) -> Result<bool, Failure> {
    let claims: Vec<_> = claims.collect();
    let mut removed = false;
    for some in claims.chunks(AT_ONCE) {
        for one in join_all(some.iter().map(|kv| queue.remove(kv))).await {
            removed |= one?;
        }
    }
    Ok(removed)
}

/// The claim by which an owner holds a lock whom another client, or another process, has taken down.
pub(crate) async fn held_by(queue: &Queue, name: &LockName, owner: &Owner) -> Result<Option<KeyValue>, Failure> {
    let holders = line(queue, name).await?.holders.into_iter();
    Ok(holders.filter(|(_, record)| record.owner() == Some(*owner)).map(|(kv, _)| kv).next())
}

async fn line(queue: &Queue, name: &LockName) -> Result<Line, Failure> {
    Line::read(queue, claims_on(queue, name).await?)
}

async fn claims_on(queue: &Queue, name: &LockName) -> Result<Vec<KeyValue>, Failure> {
    let mut claims = all_below(queue, &queue.keys.lock(name)).await?;
    claims.retain(|kv| queue.keys.parsed(&kv.key).is_some_and(|(parsed, _)| parsed == *name));
    Ok(claims)
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
async fn time_left(queue: &Queue, mut each: Vec<i64>) -> Result<BTreeMap<i64, Option<Duration>>, Failure> {
    each.retain(|lease| *lease != 0);
    each.sort_unstable();
    each.dedup();
    let mut left = BTreeMap::new();
    for some in each.chunks(AT_ONCE) {
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

    /// How a grant was lost of which a key is not in the store.
    pub(crate) async fn who_has_it_now(&self, holding: &Holding) -> Result<LossReason, Failure> {
        let ours = self.ledger.keys(&holding.owner);
        let several = holding.wants().len() > 1;
        for want in holding.wants() {
            match self.first(&want.name).await? {
                // Of several, this one is not the one that is missing.
                Some(first) if several && ours.contains(&first.key) => {}
                Some(first) if !beside(want.mode, self.keys.parsed(&first.key)) => return Ok(LossReason::TakenOver),
                _ => return Ok(LossReason::Deleted),
            }
        }
        Ok(LossReason::Deleted)
    }
}

/// Whether one that wants it so would hold beside this one.
fn beside(mode: Mode, first: Option<(LockName, Kind)>) -> bool {
    mode == Mode::Shared && first.is_some_and(|(_, kind)| kind == Kind::Shared)
}

//! Renewals: one keep-alive for a session, and one read of the keys that are to be renewed.
//!
//! A keep-alive proves that the session lives, as far as the member that answered knows; a stuck leader answers for one
//! that is gone. The read goes through the cluster's majority and proves that the claim is there. Both are wanted (L4).

use std::{collections::BTreeMap, sync::Arc};

use fencepost_core::{
    claim::{Claim, LossReason, Renewal},
    clock::Sent,
    error::{Error, Operation},
    name::LockName,
};

use crate::{
    api::{KeyValue, MAX_TXN_OPS, TxnRequest, exactly, revision},
    failure::{Failure, Sort},
    queue::Queue,
    session::Session,
    survey,
};

/// Keys that are read in one transaction. The client renews twice as many claims at once.
pub(crate) const AT_ONCE: usize = MAX_TXN_OPS - 3;

/// One answer for each claim, in order.
pub(crate) async fn renew(queue: &Queue, claims: &[Arc<Claim>]) -> Vec<Result<Renewal, Error>> {
    let sessions: Vec<_> = claims.iter().map(|claim| queue.ledger.session(claim.owner())).collect();
    let (read, kept) = tokio::join!(read(queue, claims), keep_all(queue, &sessions));
    let read = match read {
        Ok(read) => read,
        Err(failure) => return claims.iter().map(|claim| Err(failed(&failure, claim.name()))).collect(),
    };
    let mut answers = Vec::with_capacity(claims.len());
    for ((claim, session), keys) in claims.iter().zip(sessions).zip(read) {
        let answer = answer(queue, claim, session, keys, &kept).await;
        answers.push(answer.map_err(|failure| failed(&failure, claim.name())));
    }
    answers
}

async fn answer(
    queue: &Queue,
    claim: &Claim,
    session: Option<Arc<Session>>,
    keys: Option<Vec<KeyValue>>,
    kept: &BTreeMap<i64, Result<(), Failure>>,
) -> Result<Renewal, Failure> {
    let Some(session) = session else { return of_another_client(queue, claim).await };
    let Some(keys) = keys else { return Ok(Renewal::Lost(queue.who_has_it_now(&claim.holding).await?)) };
    // Somebody wrote to it who is not of this session.
    if keys.iter().any(|key| session.id != key.lease) {
        return Ok(Renewal::Lost(LossReason::TakenOver));
    }
    match kept.get(&session.id) {
        Some(Ok(())) => {
            let (counted_from, ttl) = session.granted();
            queue.ledger.renewed(claim.owner(), counted_from.moment().after(ttl));
            Ok(Renewal::Renewed { counted_from, ttl })
        }
        Some(Err(failure)) if failure.sort == Sort::SessionGone => Ok(Renewal::Lost(LossReason::SessionExpired)),
        Some(Err(failure)) => Err(failure.clone()),
        None => Err(Failure::puzzling()),
    }
}

/// A grant of which only the owner value is known here, as a script has it. Its session is kept alive as a whole.
async fn of_another_client(queue: &Queue, claim: &Claim) -> Result<Renewal, Failure> {
    let Some(theirs) = survey::held_by(queue, claim.name(), claim.owner()).await? else {
        return queue.who_has_it_now(&claim.holding).await.map(Renewal::Lost);
    };
    match queue.sessions.keep_alive(theirs.lease).await? {
        Some((counted_from, ttl)) => Ok(Renewal::Renewed { counted_from, ttl }),
        None => Ok(Renewal::Lost(LossReason::SessionExpired)),
    }
}

/// The keys of each claim as the cluster has them now; `None` where one of them is missing.
async fn read(queue: &Queue, claims: &[Arc<Claim>]) -> Result<Vec<Option<Vec<KeyValue>>>, Failure> {
    // A claim that nobody here has made, or that was given up, has no key.
    let held: Vec<_> = claims.iter().map(|claim| queue.ledger.held(claim.owner())).collect();
    let reads = held.iter().flatten().flat_map(|(keys, _)| keys).map(|key| exactly(key).bare().op());
    let txn = TxnRequest { success: reads.collect(), ..Default::default() };
    let answer = queue.link.txn(txn).await?.message;
    let seen = revision(&answer.header);
    let mut read = answer.firsts();
    let mut answers = Vec::with_capacity(claims.len());
    for (claim, held) in claims.iter().zip(held) {
        let Some((keys, created)) = held else {
            answers.push(None);
            continue;
        };
        let mut there = Vec::with_capacity(keys.len());
        for _ in &keys {
            let key = read.next().ok_or_else(Failure::puzzling)?;
            there.extend(key.filter(|key| key.create_revision == created));
        }
        let whole = there.len() == keys.len();
        if whole {
            queue.ledger.seen(claim.owner(), seen);
        }
        answers.push(whole.then_some(there));
    }
    Ok(answers)
}

async fn keep_all(queue: &Queue, sessions: &[Option<Arc<Session>>]) -> BTreeMap<i64, Result<(), Failure>> {
    let each: BTreeMap<_, _> = sessions.iter().flatten().map(|session| (session.id, session.clone())).collect();
    let since = Sent::now(&*queue.clock).moment();
    let mut kept = BTreeMap::new();
    for (id, session) in each {
        // Batches of one session come together: a keep-alive of a moment ago serves them all.
        let ttl = session.granted().1;
        let recent = fencepost_core::clock::Moment::from_nanos(
            since.as_nanos().saturating_sub(u64::try_from((ttl / 60).as_nanos()).unwrap_or(u64::MAX)),
        );
        kept.insert(id, queue.sessions.kept(&session, recent).await);
    }
    kept
}

fn failed(failure: &Failure, name: &LockName) -> Error {
    failure.error(Operation::Renew, Some(name))
}

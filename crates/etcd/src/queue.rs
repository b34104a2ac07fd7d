//! Taking a place in a lock's queue and looking whose turn it is.
//!
//! A lock's claims are ordered by the revisions that created their keys; the oldest holds. Nothing else decides, so a
//! claim holds exactly when it is in the store and no older one is.

use std::sync::Arc;

use fencepost_core::{
    claim::{Busy, Claim, Mode},
    clock::{Clock, wall_unix_ms},
    name::LockName,
    owner::Owner,
};

use crate::{
    api::{KeyValue, RangeRequest, TxnRequest, below, changed_by, delete, exactly, none_below, put, revision},
    config::Recipe,
    failure::{Failure, Sort},
    keys::Keys,
    ledger::Ledger,
    link::Link,
    record::Record,
    session::{Session, Sessions},
    survey, sweep,
};

/// The queues of all locks, as one client sees them.
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) link: Arc<Link>,
    pub(crate) keys: Keys,
    pub(crate) recipe: Recipe,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Where a claim stands.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Standing {
    /// It is in the store and no older claim is: it holds, by this key, as of this revision.
    First { own: KeyValue, seen: i64 },
    /// An older one is before it.
    Behind(Place),
    /// It is not in the store.
    Gone,
}

/// A place behind another.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// The revision that created our key.
    pub(crate) created: i64,
    /// The claim just before ours.
    pub(crate) before: Vec<u8>,
    /// The revision as of which that was so.
    pub(crate) seen: i64,
}

/// What a claim came to.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) standing: Standing,
    pub(crate) session: Arc<Session>,
    /// Who stands in the way.
    pub(crate) busy: Busy,
}

impl Queue {
    /// Takes a lock if nobody holds it or waits for it, else leaves nothing behind: one transaction.
    pub(crate) async fn take_if_free(&self, claim: &Claim) -> Result<Taken, Failure> {
        let (key, prefix) = (self.keys.claim(claim.name(), claim.owner()), self.keys.lock(claim.name()));
        loop {
            let session = self.sessions.with(claim.ttl).await?;
            let barrier = session.barrier_revision();
            let txn = TxnRequest {
                compare: vec![none_below(&prefix), changed_by(&session.barrier, barrier)],
                success: vec![put(&key, &self.record(claim), session.id), exactly(&key).bare().op()],
                failure: vec![
                    exactly(&key).bare().op(),
                    below(&prefix).oldest(1).op(),
                    exactly(&session.barrier).bare().op(),
                ],
            };
            let asking = self.ledger.ask(claim.owner(), &key, &session, self.clock.now())?;
            sweep::begin(&self.sessions);
            let answer = match self.link.txn(txn).await {
                Err(failure) if failure.sort == Sort::SessionGone => {
                    self.sessions.lose(&session);
                    continue;
                }
                Err(failure) => {
                    if failure.applied == fencepost_core::error::Applied::No {
                        asking.answered(false);
                    }
                    return Err(failure);
                }
                Ok(answer) => answer,
            };
            let answer_unclear = answer.unclear;
            asking.answered(answer_unclear);
            let (succeeded, seen) = (answer.message.succeeded, revision(&answer.message.header));
            let mut reads = answer.message.ranges().map(|range| range.kvs);
            let own = reads.next().and_then(|kvs| kvs.into_iter().next());
            if succeeded {
                let standing = Standing::First { own: own.ok_or_else(Failure::puzzling)?, seen };
                return Ok(Taken { standing, session, busy: Busy::default() });
            }
            let oldest = reads.next().and_then(|kvs| kvs.into_iter().next());
            let raised = reads.next().and_then(|kvs| kvs.into_iter().next()).map_or(0, |kv| kv.mod_revision);
            if own.is_some() {
                // A repeat of a claim that was applied: it stands where it stands.
                let mut standing = self.look(claim.name(), claim.owner(), None).await?;
                if let Standing::Behind(_) = standing {
                    self.leave(claim).await?;
                    standing = Standing::Gone;
                }
                return Ok(Taken { standing, session, busy: Busy::default() });
            }
            match oldest {
                Some(kv) if self.keys.is_claim(&prefix, &kv.key) => {
                    if answer_unclear {
                        // An earlier try may still be carried out, and take the lock for nobody.
                        self.leave(claim).await?;
                    } else {
                        self.ledger.forget(claim.owner());
                    }
                    let mut holder = Record::read(&kv, self.recipe)?.holder(&kv);
                    // For people, who can do without it when the cluster does not tell.
                    holder.expires_in = survey::time_left_of(self, kv.lease).await.ok().flatten();
                    let busy = Busy { holder: Some(holder), ..Busy::default() };
                    return Ok(Taken { standing: Standing::Gone, session, busy });
                }
                // Only strays lie there: the queue decides.
                Some(_) => return self.take_and_leave(claim).await,
                None if raised != barrier => self.follow_barrier(&session, raised).await?,
                // Comparison and reads are of one revision: one of them must be the reason.
                None => return Err(Failure::puzzling()),
            }
        }
    }

    /// Takes a place in the queue, which is the lock itself when nobody is before it: one transaction. A repeat finds
    /// the place that the first try took.
    pub(crate) async fn take_place(&self, claim: &Claim) -> Result<Taken, Failure> {
        let (key, prefix) = (self.keys.claim(claim.name(), claim.owner()), self.keys.lock(claim.name()));
        loop {
            let session = self.sessions.with(claim.ttl).await?;
            let barrier = session.barrier_revision();
            let txn = TxnRequest {
                compare: vec![changed_by(&session.barrier, barrier)],
                // Just created, ours is the youngest, and the one before it the next youngest. For a repeat it need not
                // be; then a second look finds out.
                success: vec![
                    put(&key, &self.record(claim), session.id),
                    below(&prefix).youngest(2).bare().op(),
                    below(&prefix).oldest(1).op(),
                ],
                failure: vec![exactly(&session.barrier).bare().op()],
            };
            let asking = self.ledger.ask(claim.owner(), &key, &session, self.clock.now())?;
            sweep::begin(&self.sessions);
            let answer = match self.link.txn(txn).await {
                Err(failure) if failure.sort == Sort::SessionGone => {
                    self.sessions.lose(&session);
                    continue;
                }
                Err(failure) => {
                    if failure.applied == fencepost_core::error::Applied::No {
                        asking.answered(false);
                    }
                    return Err(failure);
                }
                Ok(answer) => answer,
            };
            asking.answered(answer.unclear);
            let (succeeded, seen) = (answer.message.succeeded, revision(&answer.message.header));
            let mut reads = answer.message.ranges();
            if !succeeded {
                let raised = reads.next().and_then(|read| read.kvs.into_iter().next()).map_or(0, |kv| kv.mod_revision);
                self.follow_barrier(&session, raised).await?;
                continue;
            }
            let (Some(youngest), Some(oldest)) = (reads.next(), reads.next()) else { return Err(Failure::puzzling()) };
            let count = youngest.count;
            let mut youngest = youngest.kvs.into_iter();
            let standing = match (youngest.next(), youngest.next()) {
                (Some(own), None) if own.key == key => Standing::First { own, seen },
                (Some(own), Some(before)) if own.key == key && self.keys.is_claim(&prefix, &before.key) => {
                    Standing::Behind(Place { created: own.create_revision, before: before.key, seen })
                }
                // A repeat, or a stray among them.
                _ => self.look(claim.name(), claim.owner(), None).await?,
            };
            let oldest = oldest.kvs.into_iter().next();
            let holder = oldest.filter(|kv| self.keys.is_claim(&prefix, &kv.key) && kv.key != key);
            let holder =
                match holder.map(|kv| Record::read(&kv, self.recipe).map(|record| record.holder(&kv))).transpose() {
                    Ok(holder) => holder,
                    // What holds the lock is not ours and may stay for ever: no place behind it.
                    Err(failure) => {
                        let left = self.leave(claim).await;
                        return Err(failure.after_unclear(left.is_err()));
                    }
                };
            let busy = Busy { holder, ahead: u64::try_from(count - 2).ok(), ..Busy::default() };
            return Ok(Taken { standing, session, busy });
        }
    }

    /// Where a claim stands now, as the cluster has it: read, not remembered. `created` is the revision of our key where
    /// it is known, which saves reading the whole queue.
    pub(crate) async fn look(&self, name: &LockName, owner: &Owner, created: Option<i64>) -> Result<Standing, Failure> {
        let (key, prefix) = (self.keys.claim(name, owner), self.keys.lock(name));
        if let Some(created) = created {
            let before = RangeRequest { max_create_revision: created - 1, ..below(&prefix).youngest(1).bare() };
            let txn = TxnRequest { success: vec![exactly(&key).bare().op(), before.op()], ..Default::default() };
            let answer = self.link.txn(txn).await?.message;
            let seen = revision(&answer.header);
            let mut reads = answer.ranges().map(|read| read.kvs.into_iter().next());
            let (own, before) = (reads.next().flatten(), reads.next().flatten());
            match (own, before) {
                (None, _) => return Ok(Standing::Gone),
                (Some(own), None) if own.create_revision == created => return Ok(Standing::First { own, seen }),
                (Some(own), Some(before))
                    if own.create_revision == created && self.keys.is_claim(&prefix, &before.key) =>
                {
                    return Ok(Standing::Behind(Place { created, before: before.key, seen }));
                }
                _ => {} // created anew, or a stray before it
            }
        }
        let all = self.link.range(below(&prefix).oldest(0).bare()).await?;
        let seen = revision(&all.header);
        let mut before = None;
        for kv in all.kvs {
            if kv.key == key {
                return Ok(match before {
                    None => Standing::First { own: kv, seen },
                    Some(before) => Standing::Behind(Place { created: kv.create_revision, before, seen }),
                });
            }
            if self.keys.is_claim(&prefix, &kv.key) {
                before = Some(kv.key);
            }
        }
        Ok(Standing::Gone)
    }

    /// Whether a claim and the one before it are both there yet; cheaper than a look, and enough for who was not called.
    pub(crate) async fn is_still_behind(&self, name: &LockName, owner: &Owner, place: &Place) -> Result<bool, Failure> {
        let reads = vec![exactly(&self.keys.claim(name, owner)).bare().op(), exactly(&place.before).bare().op()];
        let answer = self.link.txn(TxnRequest { success: reads, ..Default::default() }).await?.message;
        let mut reads = answer.ranges().map(|read| read.kvs.into_iter().next());
        let (own, before) = (reads.next().flatten(), reads.next().flatten());
        Ok(own.is_some_and(|own| own.create_revision == place.created) && before.is_some())
    }

    /// For a lock with strays: takes a place, and leaves it again when it is not the first.
    async fn take_and_leave(&self, claim: &Claim) -> Result<Taken, Failure> {
        let mut taken = Box::pin(self.take_place(claim)).await?;
        if let Standing::Behind(_) = taken.standing {
            self.leave(claim).await?;
            taken.standing = Standing::Gone;
        }
        Ok(taken)
    }

    async fn leave(&self, claim: &Claim) -> Result<(), Failure> {
        if let Some(leaving) = self.ledger.leave(claim.owner(), self.clock.now()) {
            self.sessions.delete(&leaving).await?;
            self.ledger.forget(claim.owner());
        }
        Ok(())
    }

    /// The barrier was raised for another claim of ours. When it is gone, somebody deleted it by hand or its session
    /// ended; the former is mended, the latter found out.
    async fn follow_barrier(&self, session: &Arc<Session>, raised: i64) -> Result<(), Failure> {
        if raised > 0 {
            session.barrier_is_at(raised);
            return Ok(());
        }
        let mend = TxnRequest { success: vec![put(&session.barrier, b"", session.id)], ..Default::default() };
        match self.link.txn(mend).await {
            Ok(answer) => session.barrier_is_at(revision(&answer.message.header)),
            Err(failure) if failure.sort == Sort::SessionGone => self.sessions.lose(session),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn record(&self, claim: &Claim) -> Vec<u8> {
        Record::new(Mode::Exclusive, &claim.claimant, wall_unix_ms(&*self.clock)).to_json()
    }

    /// Removes a claim of anybody's, on condition of the revision that created it.
    pub(crate) async fn remove(&self, kv: &KeyValue) -> Result<bool, Failure> {
        let txn = TxnRequest {
            compare: vec![crate::api::created_by(&kv.key, kv.create_revision)],
            success: vec![delete(&kv.key)],
            ..Default::default()
        };
        let answer = self.link.txn(txn).await?;
        // After a try of unknown outcome, that it is gone is our doing as likely as not.
        Ok(answer.message.succeeded || answer.unclear)
    }
}

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
    api::{KeyValue, RangeRequest, TxnRequest, below, changed_by, delete, exactly, inner, none_below, put, revision},
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
    pub(crate) before: Before,
    /// The revision as of which that was so.
    pub(crate) seen: i64,
}

/// A claim before another: its key, and the revision that created it, since a key can be used again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Before {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
}

impl Before {
    fn of(kv: KeyValue) -> Self {
        Self { key: kv.key, created: kv.create_revision }
    }

    fn is(&self, kv: &KeyValue) -> bool {
        self.key == kv.key && self.created == kv.create_revision
    }
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
        let prefix = self.keys.lock(claim.name());
        loop {
            let session = self.sessions.with(claim.ttl).await?;
            let barrier = session.barrier_revision();
            let asking = self.ledger.ask(claim, &session, self.clock.now())?;
            let key = asking.key.clone();
            let txn = TxnRequest {
                compare: vec![none_below(&prefix), changed_by(&session.barrier, barrier)],
                success: vec![put(&key, &self.record(claim), session.id)],
                failure: vec![
                    exactly(&key).bare().op(),
                    below(&prefix).oldest(1).op(),
                    exactly(&session.barrier).bare().op(),
                ],
            };
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
            if succeeded {
                return Ok(self.taken_alone(claim, &key, session, seen));
            }
            let mut reads = answer.message.ranges().map(|range| range.kvs);
            let own = reads.next().and_then(|kvs| kvs.into_iter().next());
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
        let prefix = self.keys.lock(claim.name());
        loop {
            let session = self.sessions.with(claim.ttl).await?;
            let barrier = session.barrier_revision();
            let asking = self.ledger.ask(claim, &session, self.clock.now())?;
            let key = asking.key.clone();
            let record = self.record(claim);
            let place = TxnRequest {
                compare: vec![none_below(&prefix)],
                success: vec![put(&key, &record, session.id)],
                // Just created, ours is the youngest, and the one before it the next youngest. For a repeat it need not
                // be; then a second look finds out.
                failure: vec![
                    put(&key, &record, session.id),
                    below(&prefix).youngest(2).bare().op(),
                    below(&prefix).oldest(1).op(),
                ],
            };
            let txn = TxnRequest {
                compare: vec![changed_by(&session.barrier, barrier)],
                success: vec![inner(place)],
                failure: vec![exactly(&session.barrier).bare().op()],
            };
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
            if !succeeded {
                let raised = answer
                    .message
                    .ranges()
                    .next()
                    .and_then(|read| read.kvs.into_iter().next())
                    .map_or(0, |kv| kv.mod_revision);
                self.follow_barrier(&session, raised).await?;
                continue;
            }
            let place = answer.message.inner().ok_or_else(Failure::puzzling)?;
            if place.succeeded {
                return Ok(self.taken_alone(claim, &key, session, seen));
            }
            let mut reads = place.ranges();
            let (Some(youngest), Some(oldest)) = (reads.next(), reads.next()) else { return Err(Failure::puzzling()) };
            let count = youngest.count;
            let mut youngest = youngest.kvs.into_iter();
            let standing = match (youngest.next(), youngest.next()) {
                (Some(own), None) if *own.key == *key => {
                    self.ledger.is_first(claim.name(), own.create_revision);
                    Standing::First { own, seen }
                }
                (Some(own), Some(before)) if *own.key == *key && self.keys.is_claim(&prefix, &before.key) => {
                    Standing::Behind(Place { created: own.create_revision, before: Before::of(before), seen })
                }
                // A repeat, or a stray among them.
                _ => self.look(claim.name(), claim.owner(), None).await?,
            };
            let oldest = oldest.kvs.into_iter().next();
            if let Some(oldest) = oldest.as_ref().filter(|kv| self.keys.is_claim(&prefix, &kv.key)) {
                self.ledger.is_first(claim.name(), oldest.create_revision);
            }
            let holder = oldest.filter(|kv| self.keys.is_claim(&prefix, &kv.key) && *kv.key != *key);
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

    /// A transaction has found no claim and made ours, so that it is the one that created our key: here, and nowhere else,
    /// the revision of the answer is the key's own.
    fn taken_alone(&self, claim: &Claim, key: &[u8], session: Arc<Session>, revision: i64) -> Taken {
        self.ledger.is_first(claim.name(), revision);
        let own = KeyValue { key: key.to_vec(), create_revision: revision, lease: session.id, ..Default::default() };
        Taken { standing: Standing::First { own, seen: revision }, session, busy: Busy::default() }
    }

    /// Where a claim stands now, as the cluster has it: read, not remembered. What is known of its place saves reading the
    /// whole queue.
    pub(crate) async fn look(
        &self,
        name: &LockName,
        owner: &Owner,
        place: Option<&Place>,
    ) -> Result<Standing, Failure> {
        let Some(key) = self.ledger.key(owner) else { return Ok(Standing::Gone) };
        let Some(place) = place else { return self.look_at_all(name, &key).await };
        let prefix = self.keys.lock(name);
        let created = place.created;
        // Behind one that was the first stands nobody else, so that it alone needs looking for. Any other may have left
        // before its turn; whoever is before us then, the cluster has to find among all claims.
        let before = if self.ledger.was_first(name, place.before.created) {
            exactly(&place.before.key)
        } else {
            RangeRequest { max_create_revision: created - 1, ..below(&prefix).youngest(1) }
        };
        let txn = TxnRequest { success: vec![exactly(&key).bare().op(), before.bare().op()], ..Default::default() };
        let answer = self.link.txn(txn).await?.message;
        let seen = revision(&answer.header);
        let mut reads = answer.ranges().map(|read| read.kvs.into_iter().next());
        let (own, before) = (reads.next().flatten(), reads.next().flatten());
        // A key that was used again is another claim, and behind ours.
        let before = before.filter(|before| before.create_revision < created);
        match (own, before) {
            (None, _) => Ok(Standing::Gone),
            (Some(own), None) if own.create_revision == created => {
                self.ledger.is_first(name, created);
                Ok(Standing::First { own, seen })
            }
            (Some(own), Some(before)) if own.create_revision == created && self.keys.is_claim(&prefix, &before.key) => {
                Ok(Standing::Behind(Place { created, before: Before::of(before), seen }))
            }
            _ => self.look_at_all(name, &key).await, // created anew, or a stray before it
        }
    }

    async fn look_at_all(&self, name: &LockName, key: &[u8]) -> Result<Standing, Failure> {
        let prefix = self.keys.lock(name);
        let all = self.link.range(below(&prefix).oldest(0).bare()).await?;
        let seen = revision(&all.header);
        let mut before = None;
        for kv in all.kvs.into_iter().filter(|kv| self.keys.is_claim(&prefix, &kv.key)) {
            let created = kv.create_revision;
            let is_ours = kv.key == key;
            match before {
                None => {
                    self.ledger.is_first(name, created);
                    if is_ours {
                        return Ok(Standing::First { own: kv, seen });
                    }
                }
                Some(before) if is_ours => return Ok(Standing::Behind(Place { created, before, seen })),
                Some(_) => {}
            }
            before = Some(Before::of(kv));
        }
        Ok(Standing::Gone)
    }

    /// Whether a claim and the one before it are both there yet; cheaper than a look, and enough for who was not called.
    pub(crate) async fn is_still_behind(&self, owner: &Owner, place: &Place) -> Result<bool, Failure> {
        let Some(key) = self.ledger.key(owner) else { return Ok(false) };
        let reads = vec![exactly(&key).bare().op(), exactly(&place.before.key).bare().op()];
        let answer = self.link.txn(TxnRequest { success: reads, ..Default::default() }).await?.message;
        let mut reads = answer.ranges().map(|read| read.kvs.into_iter().next());
        let (own, before) = (reads.next().flatten(), reads.next().flatten());
        Ok(own.is_some_and(|own| own.create_revision == place.created) && before.is_some_and(|kv| place.before.is(&kv)))
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
        Record::new(claim.owner(), Mode::Exclusive, &claim.claimant, wall_unix_ms(&*self.clock)).to_json()
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

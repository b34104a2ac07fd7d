//! Locks for one holder: the oldest claim holds.

use fencepost_core::{
    claim::{Busy, Claim, Mode, Patience},
    name::LockName,
};

use crate::{
    api::{Compare, KeyValue, TxnRequest, below, exactly, inner, none_below, put, revision},
    failure::Failure,
    queue::{Asked, Before, Held, Place, Queue, Standing, Taken, Until},
};

impl Queue {
    /// Takes a lock if nobody holds it or waits for it, else leaves nothing behind: one transaction.
    pub(crate) async fn take_if_free(&self, claim: &Claim) -> Result<Taken, Failure> {
        let prefix = self.keys.lock(claim.name());
        let record = self.record(claim, Mode::Exclusive).to_json();
        let asked = self.ask(claim, |key, lease| TxnRequest {
            compare: vec![none_below(&prefix)],
            success: vec![put(key, &record, lease)],
            failure: vec![exactly(key).bare().op(), below(&prefix).oldest(1).op()],
        });
        let mut asked = asked.await?;
        if asked.answer.succeeded {
            self.ledger.is_first(claim.name(), asked.seen);
            return Ok(asked.alone());
        }
        let mut reads = std::mem::take(&mut asked.answer).firsts();
        let (own, oldest) = (reads.next().flatten(), reads.next().flatten());
        if own.is_some() {
            // A repeat of a claim that was applied: it stands where it stands.
            let standing = self.look(claim, None).await?;
            return self.leave_unless_held(claim, Patience::Once, asked.stands(standing, Busy::default())).await;
        }
        // Comparison and reads are of one revision: something lies there.
        let oldest = oldest.ok_or_else(Failure::puzzling)?;
        if !self.keys.is_claim(&prefix, &oldest.key) {
            // Only strays, as far as that tells: the queue decides.
            return Box::pin(self.take_place_once(claim)).await;
        }
        match self.misfit(&prefix, &oldest)? {
            Some(refusal) => {
                self.not_placed(claim, asked.unclear).await?;
                Ok(asked.stands(Standing::Refused(refusal), Busy::default()))
            }
            None => self.busy(claim, asked, &oldest).await,
        }
    }

    async fn take_place_once(&self, claim: &Claim) -> Result<Taken, Failure> {
        let taken = self.take_place(claim).await?;
        self.leave_unless_held(claim, Patience::Once, taken).await
    }

    /// Takes the lock, or a place in its queue. One transaction when it is free, or busy as far as this client knows; when it
    /// turns out to be busy, a second one: to carry what only a busy lock needs would cost every free one more.
    pub(crate) async fn take_lock_or_place(&self, claim: &Claim) -> Result<Taken, Failure> {
        if self.ledger.is_claimed(claim.name()) {
            return Box::pin(self.take_place(claim)).await;
        }
        let prefix = self.keys.lock(claim.name());
        let record = self.record(claim, Mode::Exclusive).to_json();
        let asked = self.ask(claim, |key, lease| TxnRequest {
            compare: vec![none_below(&prefix)],
            success: vec![put(key, &record, lease)],
            failure: Vec::new(),
        });
        let asked = asked.await?;
        if asked.answer.succeeded {
            self.ledger.is_first(claim.name(), asked.seen);
            return Ok(asked.alone());
        }
        Box::pin(self.take_place(claim)).await
    }

    /// Takes a place in the queue, which is the lock itself when nobody is before it: one transaction. A repeat finds
    /// the place that the first try took. In a semaphore's queue it takes none: its users must not meet it there.
    pub(crate) async fn take_place(&self, claim: &Claim) -> Result<Taken, Failure> {
        match self.take_place_if(claim, &self.no_permits(claim.name())).await? {
            Some(taken) => Ok(taken),
            // Among its permits lie strays alone, or claims behind those of a lock.
            None => self.take_place_if(claim, &[]).await?.ok_or_else(Failure::puzzling),
        }
    }

    /// `None` when the conditions are not met, and the name is not in use for a semaphore either.
    async fn take_place_if(&self, claim: &Claim, conditions: &[Compare]) -> Result<Option<Taken>, Failure> {
        let prefix = self.keys.lock(claim.name());
        let record = self.record(claim, Mode::Exclusive).to_json();
        let asked = self.ask(claim, |key, lease| {
            let place = TxnRequest {
                compare: vec![none_below(&prefix)],
                success: vec![put(key, &record, lease)],
                // Just created, ours is the youngest, and the one before it the next youngest. For a repeat it need not
                // be; then a second look finds out.
                failure: vec![
                    put(key, &record, lease),
                    below(&prefix).youngest(2).bare().op(),
                    below(&prefix).oldest(1).op(),
                ],
            };
            TxnRequest {
                compare: conditions.to_vec(),
                success: vec![inner(place)],
                failure: vec![exactly(key).bare().op(), below(&prefix).oldest(1).op()],
            }
        });
        let mut asked = asked.await?;
        if !asked.answer.succeeded {
            return self.not_among_permits(claim, asked).await;
        }
        let place = std::mem::take(&mut asked.answer).inner().ok_or_else(Failure::puzzling)?;
        if place.succeeded {
            self.ledger.is_first(claim.name(), asked.seen);
            return Ok(Some(asked.alone()));
        }
        let mut reads = place.ranges();
        let (Some(youngest), Some(oldest)) = (reads.next(), reads.next()) else { return Err(Failure::puzzling()) };
        let ahead = u64::try_from(youngest.count - 2).ok();
        let oldest = match oldest.kvs.into_iter().next() {
            Some(kv) if !self.keys.is_claim(&prefix, &kv.key) => self.first(claim.name()).await?,
            oldest => oldest,
        };
        if let Some(oldest) = &oldest {
            self.ledger.is_first(claim.name(), oldest.create_revision);
            if let Some(refusal) = self.misfit(&prefix, oldest)? {
                self.leave(claim).await?;
                return Ok(Some(asked.stands(Standing::Refused(refusal), Busy::default())));
            }
        }
        let standing = match self.placed(&prefix, &asked, youngest.kvs) {
            Some(standing) => standing,
            None => self.look(claim, None).await?,
        };
        let in_the_way = oldest.filter(|kv| *kv.key != *asked.key);
        let busy = self.shown(claim, in_the_way).await?;
        Ok(Some(asked.stands(standing, Busy { ahead, ..busy })))
    }

    /// Where a claim stands that was just made, by the two youngest keys; `None` for a repeat, or with a stray among them.
    fn placed(&self, prefix: &[u8], asked: &Asked, youngest: Vec<KeyValue>) -> Option<Standing> {
        let mut youngest = youngest.into_iter();
        let own = youngest.next().filter(|own| *own.key == *asked.key)?;
        let created = own.create_revision;
        Some(match youngest.next() {
            None => Standing::Holds(Held::by(own, asked.seen)),
            Some(before) if self.keys.is_claim(prefix, &before.key) => {
                Standing::Behind(Place { created, before: Before::of(before), seen: asked.seen, until: Until::Gone })
            }
            Some(_) => return None,
        })
    }

    pub(crate) async fn look_exclusive(
        &self,
        claim: &Claim,
        key: &[u8],
        place: Option<&Place>,
    ) -> Result<Standing, Failure> {
        let name = claim.name();
        let Some(place) = place else { return self.look_at_all(name, key).await };
        let prefix = self.keys.lock(name);
        let created = place.created;
        // Behind one that was the first stands nobody else, so that it alone needs looking for. Any other may have left
        // before its turn; whoever is before us then, the cluster has to find among all claims.
        let before = if self.ledger.was_first(name, place.before.created) {
            exactly(&place.before.key)
        } else {
            below(&prefix).before(created).youngest(1)
        };
        let txn = TxnRequest { success: vec![exactly(key).bare().op(), before.bare().op()], ..Default::default() };
        let answer = self.link.txn(txn).await?.message;
        let seen = revision(&answer.header);
        let mut reads = answer.firsts();
        let (own, before) = (reads.next().flatten(), reads.next().flatten());
        // A key that was used again is another claim, and behind ours.
        let before = before.filter(|before| before.create_revision < created);
        match (own, before) {
            (None, _) => Ok(Standing::Gone),
            (Some(own), None) if own.create_revision == created => {
                self.ledger.is_first(name, created);
                Ok(Standing::Holds(Held::by(own, seen)))
            }
            (Some(own), Some(before)) if own.create_revision == created && self.keys.is_claim(&prefix, &before.key) => {
                Ok(Standing::Behind(Place { created, before: Before::of(before), seen, until: Until::Gone }))
            }
            _ => self.look_at_all(name, key).await, // created anew, or a stray before it
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
                        return Ok(Standing::Holds(Held::by(kv, seen)));
                    }
                }
                Some(before) if is_ours => {
                    return Ok(Standing::Behind(Place { created, before, seen, until: Until::Gone }));
                }
                Some(_) => {}
            }
            before = Some(Before::of(kv));
        }
        Ok(Standing::Gone)
    }
}

//! Readers: they hold beside each other, and no writer holds beside them.
//!
//! A reader holds when no writer is before it. It waits for the last of those before it alone, so that one release wakes
//! exactly the readers behind that writer. A writer waits for whoever is just before it, as always.
//!
//! A writer that becomes a reader keeps its key, and with it its place and its fence: only what the key says is changed.
//! Nobody else is before it, since it held alone; so a reader that finds it to be the last writer before itself holds too.

use fencepost_core::{
    claim::{Busy, Claim, Holding, LossReason, Mode, Patience, Renewal},
    name::LockName,
    refusal::Refusal,
};

use crate::{
    api::{Compare, KeyValue, TxnRequest, below, created_by, exactly, none_below, none_in, put, revision},
    failure::{Failure, Sort},
    queue::{Before, Held, Place, Queue, Standing, Taken, Until},
    record::Record,
};

impl Queue {
    /// Takes a place among the readers, which is the lock itself when no writer is before it: one transaction. Whoever asks
    /// once leaves nothing behind when there is one.
    pub(crate) async fn take_shared(&self, claim: &Claim, patience: Patience) -> Result<Taken, Failure> {
        if patience == Patience::Queue {
            return self.take_shared_place(claim, patience).await;
        }
        let name = claim.name();
        let (prefix, writers) = (self.keys.lock(name), self.keys.writers(name));
        let record = self.record(claim, Mode::Shared).to_json();
        let asked = self.ask(claim, |key, lease| TxnRequest {
            compare: vec![none_in(&writers), none_below(&self.keys.permits(name))],
            success: vec![put(key, &record, lease), exactly(key).bare().op()],
            failure: vec![exactly(key).bare().op(), writers.clone().youngest(1).op(), below(&prefix).oldest(1).op()],
        });
        let mut asked = asked.await?;
        let succeeded = asked.answer.succeeded;
        let mut reads = std::mem::take(&mut asked.answer).firsts();
        let own = reads.next().flatten();
        match (own, reads.next().flatten(), reads.next().flatten()) {
            (Some(own), ..) if succeeded => {
                let seen = asked.seen;
                Ok(asked.stands(Standing::Holds(Held::by(own, seen)), Busy::default()))
            }
            // A repeat of a claim that was applied: it stands where it stands.
            (Some(_), ..) => {
                let standing = self.look(claim, None).await?;
                self.leave_unless_held(claim, patience, asked.stands(standing, Busy::default())).await
            }
            (None, writer, Some(oldest)) => {
                if let Some(refusal) = self.misfit(&prefix, &oldest)? {
                    self.not_placed(claim, asked.unclear).await?;
                    return Ok(asked.stands(Standing::Refused(refusal), Busy::default()));
                }
                match writer.filter(|kv| self.keys.is_claim(&prefix, &kv.key)) {
                    Some(writer) if !self.reads(&writer)? => self.busy(claim, asked, &oldest).await,
                    // It reads by now, or nothing but strays lies there: the queue decides.
                    _ => self.take_shared_place(claim, patience).await,
                }
            }
            // Comparison and reads are of one revision: something lies there.
            (None, _, None) => Err(Failure::puzzling()),
        }
    }

    async fn take_shared_place(&self, claim: &Claim, patience: Patience) -> Result<Taken, Failure> {
        let taken = match self.take_shared_place_if(claim, &self.no_permits(claim.name())).await? {
            Some(taken) => taken,
            // Among the permits lie strays alone, or claims behind those of a lock.
            None => self.take_shared_place_if(claim, &[]).await?.ok_or_else(Failure::puzzling)?,
        };
        self.leave_unless_held(claim, patience, taken).await
    }

    /// `None` when the conditions are not met, and the name is not in use for a semaphore either.
    async fn take_shared_place_if(&self, claim: &Claim, conditions: &[Compare]) -> Result<Option<Taken>, Failure> {
        let name = claim.name();
        let prefix = self.keys.lock(name);
        let record = self.record(claim, Mode::Shared).to_json();
        let asked = self.ask(claim, |key, lease| TxnRequest {
            compare: conditions.to_vec(),
            success: vec![
                put(key, &record, lease),
                exactly(key).bare().op(),
                self.keys.writers(name).youngest(1).op(),
                below(&prefix).oldest(1).op(),
                below(&self.keys.permits(name)).oldest(1).op(),
            ],
            failure: vec![exactly(key).bare().op(), below(&prefix).oldest(1).op()],
        });
        let mut asked = asked.await?;
        if !asked.answer.succeeded {
            return self.not_among_permits(claim, asked).await;
        }
        let mut reads = std::mem::take(&mut asked.answer).firsts();
        let own = reads.next().flatten().ok_or_else(Failure::puzzling)?;
        let (writer, oldest, permits) =
            (reads.next().flatten(), reads.next().flatten(), reads.next().flatten().is_some());
        // Just created, every writer is before it.
        let standing = if own.create_revision == asked.seen && !permits {
            self.behind_writer(name, own, writer, asked.seen, 0).await?
        } else {
            self.look(claim, None).await?
        };
        let in_the_way = oldest.filter(|kv| *kv.key != *asked.key && self.keys.is_claim(&prefix, &kv.key));
        let busy = match &standing {
            Standing::Holds(_) | Standing::Behind(_) => self.shown(claim, in_the_way).await?,
            _ => Busy::default(),
        };
        Ok(Some(asked.stands(standing, busy)))
    }

    /// Why a reader may not hold, by the claims for permits that are before it.
    async fn misfit_before(&self, name: &LockName, created: i64) -> Result<Option<Refusal>, Failure> {
        let (prefix, permits) = (self.keys.lock(name), self.keys.permits(name));
        let older = self.link.range(below(&permits).before(created).oldest(0)).await?;
        let claim = older.kvs.iter().find(|kv| self.keys.is_claim(&prefix, &kv.key));
        Ok(claim.map(|kv| self.misfit(&prefix, kv)).transpose()?.flatten())
    }

    pub(crate) async fn look_shared(
        &self,
        name: &LockName,
        key: &[u8],
        place: Option<&Place>,
    ) -> Result<Standing, Failure> {
        let created = match place {
            Some(place) => place.created,
            None => {
                let own = self.link.range(exactly(key).bare()).await?.kvs.into_iter().next();
                let Some(own) = own else { return Ok(Standing::Gone) };
                if let Some(refusal) = self.misfit_before(name, own.create_revision).await? {
                    return Ok(Standing::Refused(refusal));
                }
                own.create_revision
            }
        };
        let reads = vec![exactly(key).bare().op(), self.keys.writers(name).before(created).youngest(1).op()];
        let answer = self.link.txn(TxnRequest { success: reads, ..Default::default() }).await?.message;
        let seen = revision(&answer.header);
        let mut reads = answer.firsts();
        let own = reads.next().flatten().filter(|own| own.create_revision == created);
        let Some(own) = own else { return Ok(Standing::Gone) };
        let written = match place.map(|place| place.until) {
            Some(Until::NoWriter { written }) => written,
            _ => 0,
        };
        self.behind_writer(name, own, reads.next().flatten(), seen, written).await
    }

    /// Where a reader stands, by the last writer before it.
    ///
    /// Its number is the youngest writer's that was seen before it. Where none is left to be seen, it is that of the reader's
    /// own key: not below the last writer's, and below that of every later one, which is all that a resource compares.
    async fn behind_writer(
        &self,
        name: &LockName,
        own: KeyValue,
        writer: Option<KeyValue>,
        seen: i64,
        written: i64,
    ) -> Result<Standing, Failure> {
        let (prefix, created) = (self.keys.lock(name), own.create_revision);
        let writer = match writer {
            Some(kv) if !self.keys.is_claim(&prefix, &kv.key) => {
                let all = self.link.range(self.keys.writers(name).before(created).youngest(0)).await?;
                all.kvs.into_iter().find(|kv| self.keys.is_claim(&prefix, &kv.key))
            }
            writer => writer,
        };
        let written = writer.as_ref().map_or(0, |kv| kv.create_revision).max(written);
        match writer {
            Some(writer) if !self.reads(&writer)? => {
                let until = Until::NoWriter { written };
                Ok(Standing::Behind(Place { created, before: Before::of(writer), seen, until }))
            }
            _ => {
                let fence = if written > 0 { written } else { created };
                Ok(Standing::Holds(Held { fence, ..Held::by(own, seen) }))
            }
        }
    }

    /// Whether a writer has become a reader.
    fn reads(&self, writer: &KeyValue) -> Result<bool, Failure> {
        Ok(Record::read(writer, self.recipe)?.mode == Mode::Shared)
    }

    /// Makes a writer a reader: one transaction, and a keep-alive beside it.
    pub(crate) async fn downgrade(&self, claim: &Claim) -> Result<Renewal, Failure> {
        let (held, session) = (self.ledger.held(claim.owner()), self.ledger.session(claim.owner()));
        let (Some((keys, created)), Some(session)) = (held, session) else { return self.lost(&claim.holding).await };
        let record = self.record(claim, Mode::Shared).to_json();
        let txn = TxnRequest {
            compare: keys.iter().map(|key| created_by(key, created)).collect(),
            success: keys.iter().map(|key| put(key, &record, session.id)).collect(),
            ..Default::default()
        };
        let now = self.clock.now();
        let (answer, kept) = tokio::join!(self.link.txn(txn), self.sessions.kept(&session, now));
        match answer.and_then(|answer| kept.map(|()| answer.message.succeeded)) {
            Ok(true) => {
                let (counted_from, ttl) = session.granted();
                self.ledger.renewed(claim.owner(), counted_from.moment().after(ttl));
                Ok(Renewal::Renewed { counted_from, ttl })
            }
            Ok(false) => self.lost(&claim.holding).await,
            Err(failure) if failure.sort == Sort::SessionGone => Ok(Renewal::Lost(LossReason::SessionExpired)),
            Err(failure) => Err(failure),
        }
    }

    async fn lost(&self, holding: &Holding) -> Result<Renewal, Failure> {
        Ok(Renewal::Lost(self.who_has_it_now(holding).await?))
    }
}

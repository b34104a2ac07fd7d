//! Permits of a semaphore: they are given out in the order of the claims.
//!
//! A claim has its permits when its key names their slots. It takes them when everybody before it has theirs and there are
//! enough left; so those who have some are the oldest claims without a gap, and of all that wait only the first can take
//! slots. That one waits for any permit to come back, each other one for the claim just before it to have its own.
//!
//! Grants come in the order in which claims were created, so the revision that created a claim is above that of whoever had
//! its slots before (F3).
//!
//! The limit is what the oldest claim states, and all others state the same.

use std::collections::BTreeSet;

use fencepost_core::{
    claim::{Busy, Claim, Mode, Patience},
    error::{Applied, ErrorKind},
    name::LockName,
    refusal::Refusal,
};

use crate::{
    api::{
        Compare, KeyValue, MAX_TXN_OPS, RequestOp, TxnRequest, below, changed_by, created_by, exactly, inner,
        none_below, none_in, put, put_again, revision, unchanged_below,
    },
    failure::Failure,
    keys::Kind,
    queue::{Asked, Before, Held, Place, Queue, Standing, Taken, Until},
    record::Record,
};

/// Tries to come in beside others before a claim takes a place.
const TRIES: usize = 3;

/// Claims whose limit is changed in one transaction: a transaction inside it for each, with one write.
const AT_ONCE: usize = MAX_TXN_OPS / 2 - 4;

/// Rounds in which a limit is changed, since claims come and go meanwhile.
const ROUNDS: usize = 50;

/// The claims for permits of one semaphore, oldest first: all of them, or the oldest.
struct Line(Vec<Standee>);

struct Standee {
    kv: KeyValue,
    record: Record,
}

impl Standee {
    /// Changes the limit that it states, if it is still what was read.
    fn with_limit(&self, of: u32) -> TxnRequest {
        let Self { kv, record } = self;
        TxnRequest {
            compare: vec![changed_by(&kv.key, kv.mod_revision)],
            success: vec![put_again(&kv.key, &record.clone().with_limit(of).to_json())],
            ..Default::default()
        }
    }
}

impl Line {
    /// How many permits there are.
    fn limit(&self) -> Option<u32> {
        self.0.first().map(|first| first.record.permits().1)
    }

    /// The slots for `count` permits behind all of these, if everybody has its own and enough are left.
    fn room_for(&self, count: u32, limit: u32) -> Option<Vec<u32>> {
        if self.0.iter().any(|standee| standee.record.slots.is_empty()) {
            return None;
        }
        let taken: BTreeSet<u32> = self.0.iter().flat_map(|standee| standee.record.slots.iter().copied()).collect();
        let left = limit.saturating_sub(u32::try_from(taken.len()).unwrap_or(u32::MAX));
        (count <= left).then(|| (0..).filter(|slot| !taken.contains(slot)).take(count as usize).collect())
    }

    fn waiting(&self) -> u64 {
        self.0.iter().filter(|standee| standee.record.slots.is_empty()).count() as u64
    }
}

impl Queue {
    /// Takes permits, or a place in the queue for them. One transaction when nobody else has any, two when there are enough
    /// beside others or none are left.
    pub(crate) async fn take_permits(
        &self,
        claim: &Claim,
        count: u32,
        of: u32,
        patience: Patience,
    ) -> Result<Taken, Failure> {
        let name = claim.name();
        let prefix = self.keys.lock(name);
        let record = self.record(claim, Mode::Permits { count, of });
        for _ in 0..TRIES {
            let first: Vec<u32> = (0..count).collect();
            let alone = record.clone().with_slots(&first).to_json();
            let asked = self.ask(claim, |key, lease| TxnRequest {
                compare: vec![none_below(&prefix)],
                success: vec![put(key, &alone, lease)],
                failure: self.survey(name, key, of),
            });
            let mut asked = asked.await?;
            if asked.answer.succeeded {
                return Ok(with_slots(asked.alone(), &first));
            }
            let Seen { own, line, refusal, oldest } = self.seen(name, of, &mut asked).await?;
            if own.is_some() {
                // A repeat of a claim that was applied: it stands where it stands.
                let standing = self.look(claim, None).await?;
                let taken = fitting(asked.stands(standing, Busy::default()), refusal);
                return self.leave_unless_held(claim, patience, taken).await;
            }
            if let Some(refusal) = refusal {
                self.not_placed(claim, asked.unclear).await?;
                return Ok(asked.stands(Standing::Refused(refusal), Busy::default()));
            }
            match (line.room_for(count, of), oldest) {
                (Some(slots), _) => {
                    let seen = asked.seen;
                    let beside = record.clone().with_slots(&slots).to_json();
                    let asked = self.ask(claim, |key, lease| TxnRequest {
                        compare: vec![unchanged_below(&prefix, seen)],
                        success: vec![put(key, &beside, lease)],
                        ..Default::default()
                    });
                    let asked = asked.await?;
                    if asked.answer.succeeded {
                        return Ok(with_slots(asked.alone(), &slots));
                    }
                }
                (None, Some(oldest)) if patience == Patience::Once => {
                    let ahead = Some(line.waiting());
                    let taken = self.busy(claim, asked, &oldest).await?;
                    return Ok(Taken { busy: Busy { ahead, ..taken.busy }, ..taken });
                }
                _ => break,
            }
        }
        // Others are quicker, or no permits are left: the queue decides.
        let no_lock = [none_in(&self.keys.writers(name)), none_below(&self.keys.readers(name))];
        let taken = match self.take_permits_place_if(claim, &no_lock, &record, of).await? {
            Some(taken) => taken,
            // Strays that look like claims of a lock.
            None => self.take_permits_place_if(claim, &[], &record, of).await?.ok_or_else(Failure::puzzling)?,
        };
        self.leave_unless_held(claim, patience, taken).await
    }

    /// `None` when the conditions are not met, and the name is not in use for a lock either.
    async fn take_permits_place_if(
        &self,
        claim: &Claim,
        conditions: &[Compare],
        record: &Record,
        of: u32,
    ) -> Result<Option<Taken>, Failure> {
        let waiting = record.to_json();
        let asked = self.ask(claim, |key, lease| {
            // Only once: what a repeat would write anew may have its slots by now.
            let place = TxnRequest {
                compare: vec![created_by(key, 0)],
                success: vec![put(key, &waiting, lease)],
                ..Default::default()
            };
            let mut success = vec![inner(place)];
            success.extend(self.survey(claim.name(), key, of));
            TxnRequest { compare: conditions.to_vec(), success, failure: self.survey(claim.name(), key, of) }
        });
        let mut asked = asked.await?;
        let placed = asked.answer.succeeded;
        let Seen { own, line, refusal, oldest } = self.seen(claim.name(), of, &mut asked).await?;
        let own = match (own, refusal) {
            (Some(own), _) => own,
            (None, _) if placed => return Err(Failure::puzzling()),
            (None, Some(refusal)) => {
                self.not_placed(claim, asked.unclear).await?;
                return Ok(Some(asked.stands(Standing::Refused(refusal), Busy::default())));
            }
            (None, None) => return Ok(None),
        };
        if own.lease != asked.session.id {
            // It hangs on a session that is over, or on somebody else's lease, and would end with that.
            self.leave(claim).await?;
            return Ok(Some(asked.stands(Standing::Gone, Busy::default())));
        }
        let ahead = line.0.iter().take_while(|standee| standee.kv.create_revision < own.create_revision);
        let ahead = ahead.filter(|standee| standee.record.slots.is_empty()).count() as u64;
        let busy = self.shown(claim, oldest.filter(|kv| kv.key != own.key)).await?;
        let has_slots = !Record::read(&own, self.recipe)?.slots.is_empty();
        let standing = match refusal {
            // Before it takes any: what it does not fit need not be in its line.
            Some(refusal) if !has_slots => Standing::Refused(refusal),
            _ => match self.standing(own, line, asked.seen).await? {
                Some(standing) => standing,
                None => self.look(claim, None).await?,
            },
        };
        Ok(Some(fitting(asked.stands(standing, Busy { ahead: Some(ahead), ..busy }), refusal)))
    }

    /// What has to be read to see where a claim stands.
    fn survey(&self, name: &LockName, key: &[u8], of: u32) -> Vec<RequestOp> {
        vec![
            exactly(key).op(),
            below(&self.keys.permits(name)).oldest(i64::from(of) + 1).op(),
            below(&self.keys.lock(name)).counted().op(),
        ]
    }

    async fn seen(&self, name: &LockName, of: u32, asked: &mut Asked) -> Result<Seen, Failure> {
        let prefix = self.keys.lock(name);
        let mut reads = std::mem::take(&mut asked.answer).ranges();
        let mut next = || reads.next().unwrap_or_default();
        let (own, permits, all) = (next().kvs.into_iter().next(), next(), next().count);
        let only_permits = permits.count == all && permits.kvs.iter().all(|kv| self.keys.is_claim(&prefix, &kv.key));
        // With anything else among them, the oldest say too little: strays are passed over, and claims of a lock looked for
        // wherever they stand. What has changed since is found out by who writes on condition of what was seen first.
        let kvs = if only_permits { permits.kvs } else { self.link.range(below(&prefix).oldest(0)).await?.kvs };
        let oldest = kvs.iter().find(|kv| self.keys.is_claim(&prefix, &kv.key)).cloned();
        let before = own.as_ref().map_or(i64::MAX, |own| own.create_revision);
        let in_a_lock = self.is_in_a_lock(&prefix, &kvs, before).then_some(Refusal::LockInUse);
        let line = self.line(&prefix, kvs)?;
        let other = line.limit().filter(|limit| *limit != of).map(|of| Refusal::SemaphoreInUse { of });
        Ok(Seen { own, line, refusal: in_a_lock.or(other), oldest })
    }

    /// Whether any of these that is older is a claim of a lock.
    fn is_in_a_lock(&self, prefix: &[u8], kvs: &[KeyValue], created: i64) -> bool {
        let mut older = kvs.iter().filter(|kv| kv.create_revision < created);
        older.any(|kv| matches!(self.keys.kind(prefix, &kv.key), Some(Kind::Exclusive | Kind::Shared)))
    }

    fn line(&self, prefix: &[u8], kvs: Vec<KeyValue>) -> Result<Line, Failure> {
        let claims = kvs.into_iter().filter(|kv| self.keys.kind(prefix, &kv.key) == Some(Kind::Permits));
        let read = claims.map(|kv| Ok(Standee { record: Record::read(&kv, self.recipe)?, kv }));
        Ok(Line(read.collect::<Result<_, Failure>>()?))
    }

    pub(crate) async fn look_permits(
        &self,
        name: &LockName,
        key: &[u8],
        place: Option<&Place>,
    ) -> Result<Standing, Failure> {
        let (prefix, permits) = (self.keys.lock(name), self.keys.permits(name));
        let created = match place {
            Some(place) => place.created,
            None => {
                let all = self.link.range(below(&prefix).oldest(0).bare()).await?.kvs;
                let Some(own) = all.iter().find(|kv| kv.key == key) else { return Ok(Standing::Gone) };
                if self.is_in_a_lock(&prefix, &all, own.create_revision) {
                    return Ok(Standing::Refused(Refusal::LockInUse));
                }
                own.create_revision
            }
        };
        // Whoever is not the first of those who wait needs to know no more than that.
        if place.is_none_or(|place| place.until == Until::Next) {
            let reads = vec![exactly(key).op(), below(&permits).before(created).youngest(1).op()];
            let answer = self.link.txn(TxnRequest { success: reads, ..Default::default() }).await?.message;
            let seen = revision(&answer.header);
            let mut reads = answer.firsts();
            let own = reads.next().flatten().filter(|own| own.create_revision == created);
            let Some(own) = own else { return Ok(Standing::Gone) };
            let before = self.line(&prefix, reads.next().flatten().into_iter().collect())?;
            let waits = Record::read(&own, self.recipe)?.slots.is_empty();
            if let Some(before) = before.0.into_iter().next()
                && waits
                && before.record.slots.is_empty()
            {
                let before = Before::of(before.kv);
                return Ok(Standing::Behind(Place { created, before, seen, until: Until::Next }));
            }
        }
        loop {
            let all = self.link.range(below(&permits).before(created + 1).oldest(0)).await?;
            let seen = revision(&all.header);
            let line = self.line(&prefix, all.kvs)?;
            let own = line.0.last().filter(|last| last.kv.key == key && last.kv.create_revision == created);
            let Some(own) = own.map(|own| own.kv.clone()) else { return Ok(Standing::Gone) };
            if let Some(standing) = self.standing(own, line, seen).await? {
                return Ok(standing);
            }
        }
    }

    /// Where a claim stands among the oldest ones of its line; it takes its slots when it can. `None` when that was overtaken
    /// by a change, and when too few were read to tell.
    async fn standing(&self, own: KeyValue, mut line: Line, seen: i64) -> Result<Option<Standing>, Failure> {
        let record = Record::read(&own, self.recipe)?;
        if !record.slots.is_empty() {
            return Ok(Some(Standing::Holds(Held { slots: record.slots.into(), ..Held::by(own, seen) })));
        }
        let Some(limit) = line.limit() else { return Ok(None) };
        let (count, _) = record.permits();
        if count > limit {
            return Ok(Some(Standing::Refused(Refusal::SemaphoreInUse { of: limit })));
        }
        let created = own.create_revision;
        let Some(place) = line.0.iter().position(|standee| standee.kv.create_revision == created) else {
            return Ok(None);
        };
        line.0.truncate(place);
        let behind = |until, before: &Standee| {
            Some(Standing::Behind(Place { created, before: Before::of(before.kv.clone()), seen, until }))
        };
        match (line.room_for(count, limit), line.0.last()) {
            (Some(slots), _) => {
                let first = line.0.first().map_or(&own, |first| &first.kv);
                let granted = record.with_slots(&slots).with_limit(limit).to_json();
                let txn = TxnRequest {
                    compare: vec![created_by(&own.key, created), changed_by(&first.key, first.mod_revision)],
                    success: vec![put(&own.key, &granted, own.lease)],
                    ..Default::default()
                };
                let answer = self.link.txn(txn).await?.message;
                let seen = revision(&answer.header);
                let held = Held { slots: slots.into(), ..Held::by(own, seen) };
                Ok(answer.succeeded.then_some(Standing::Holds(held)))
            }
            (None, Some(before)) if before.record.slots.is_empty() => Ok(behind(Until::Next, before)),
            (None, Some(before)) => Ok(behind(Until::Room, before)),
            (None, None) => Err(Failure::puzzling()), // all permits are free, and no more are wanted than there are
        }
    }

    /// Changes the limit of a semaphore that is in use; answers the former one. `Err` inside for what is no semaphore.
    ///
    /// The claims are changed from the youngest to the oldest, whose limit counts: so nobody who comes meanwhile goes by the
    /// new limit before all do. Each is changed on condition of itself alone, so that those who come and go hinder nobody;
    /// only when the oldest goes as well, before it was reached, does the former limit stay for another round.
    pub(crate) async fn resize(&self, name: &LockName, of: u32) -> Result<Result<Option<u32>, Refusal>, Failure> {
        let (prefix, permits) = (self.keys.lock(name), self.keys.permits(name));
        let mut before = None;
        for _ in 0..ROUNDS {
            let line = self.line(&prefix, self.link.range(below(&permits).oldest(0)).await?.kvs)?;
            let Some(limit) = line.limit() else {
                let lock = self.first(name).await?.is_some();
                return Ok(if lock && before.is_none() { Err(Refusal::LockInUse) } else { Ok(before) });
            };
            before.get_or_insert(limit);
            let others: Vec<_> = line.0.iter().filter(|standee| standee.record.permits().1 != of).collect();
            if others.is_empty() {
                return Ok(Ok(before));
            }
            for some in others.rchunks(AT_ONCE) {
                let success = some.iter().map(|standee| inner(standee.with_limit(of))).collect();
                self.link.txn(TxnRequest { success, ..Default::default() }).await?;
            }
        }
        let said = "claims come and go too fast for the limit to be changed; some may state the new one by now";
        Err(Failure::new(ErrorKind::Unavailable, Applied::Unknown, said).advise("change it again"))
    }
}

/// What a claim's transaction has seen.
struct Seen {
    own: Option<KeyValue>,
    line: Line,
    /// Why a claim that states another limit, or finds a lock, does not fit.
    refusal: Option<Refusal>,
    oldest: Option<KeyValue>,
}

/// Whoever has its permits keeps them, whatever the limit is by now. Others have to fit.
fn fitting(mut taken: Taken, refusal: Option<Refusal>) -> Taken {
    if let (Standing::Behind(_), Some(refusal)) = (&taken.standing, refusal) {
        taken.standing = Standing::Refused(refusal);
    }
    taken
}

fn with_slots(mut taken: Taken, slots: &[u32]) -> Taken {
    if let Standing::Holds(held) = &mut taken.standing {
        held.slots = slots.into();
    }
    taken
}

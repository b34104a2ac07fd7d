//! The queues of all locks: where a claim stands, and what claims of every kind have in common.
//!
//! A lock's claims stand in the order of the revisions that created their keys. Who holds follows from what is before it in
//! that order, and for permits from the slots that the claims say they have; so a claim which was seen to hold goes on holding
//! until it is removed. Whoever is before it can only leave, and slots are never taken away.
//!
//! | kind | holds when | waits for | where |
//! |---|---|---|---|
//! | exclusive | nobody is before it | the claim just before it to go | `exclusive` |
//! | shared | no writer is before it | the last writer before it to go, or to become a reader | `shared` |
//! | permits | those before it and itself want no more than there are | the claim before it to have its permits, then for any to come back | `permits` |
//! | several | they were all free | nobody: such a claim has no place in a queue | `several` |
//!
//! The oldest claim says what a name is used for, a lock or a semaphore of so many permits. A claim that does not fit is not
//! placed: its transaction is on condition that nobody uses the name for the other, so that those who use it rightly never
//! meet it. Where strays look like the other, it is placed, and taken back by whoever made it. It may outlive the oldest
//! all the same, if its client dies or is slow, and then be the oldest itself. So permits are refused behind *any* older
//! claim of a lock, and readers behind any for permits: one look when the claim is placed, since older ones can only leave.

use std::sync::Arc;

use fencepost_core::{
    claim::{Busy, Claim, Mode, Patience, Want},
    clock::{Clock, wall_unix_ms},
    error::{Applied, ErrorKind},
    fence::Fence,
    name::LockName,
    refusal::Refusal,
};

use crate::{
    api::{
        Compare, KeyValue, TxnRequest, TxnResponse, changed_by, created_by, delete, exactly, none_below, put, revision,
    },
    config::Recipe,
    failure::{Failure, Sort},
    keys::{Keys, Kind},
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
    /// It is in the store and nobody before it is in its way.
    Holds(Held),
    /// Others are in its way.
    Behind(Place),
    /// The name is in use for something else.
    Refused(Refusal),
    /// It is not in the store.
    Gone,
}

/// A claim that holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Held {
    pub(crate) own: KeyValue,
    /// The revision as of which it was seen.
    pub(crate) seen: i64,
    /// The revision that is its fence.
    pub(crate) fence: i64,
    pub(crate) slots: Arc<[u32]>,
}

impl Held {
    /// With the revision that created its key for a fence. The one in an answer's header is another one as soon as somebody
    /// else writes.
    pub(crate) fn by(own: KeyValue, seen: i64) -> Self {
        Self { fence: own.create_revision, own, seen, slots: Arc::default() }
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        Fence::new(u64::try_from(self.fence).ok()?)
    }
}

/// A place behind others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    /// The revision that created our key.
    pub(crate) created: i64,
    /// The claim that is waited for.
    pub(crate) before: Before,
    /// The revision as of which that was so.
    pub(crate) seen: i64,
    pub(crate) until: Until,
}

/// What the claim waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// That the one before it goes.
    Gone,
    /// That the writer before it goes or reads; `written` is the youngest writer that was ever seen before it.
    NoWriter { written: i64 },
    /// That the one before it, which waits for permits, has them or goes.
    Next,
    /// That permits come back: all who are before it have theirs.
    Room,
}

/// A claim before another: its key, and the revision that created it, since a key can be used again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Before {
    pub(crate) key: Vec<u8>,
    pub(crate) created: i64,
}

impl Before {
    pub(crate) fn of(kv: KeyValue) -> Self {
        Self { key: kv.key, created: kv.create_revision }
    }

    pub(crate) fn is(&self, kv: &KeyValue) -> bool {
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

/// A transaction for a claim that was answered.
pub(crate) struct Asked {
    pub(crate) key: Vec<u8>,
    pub(crate) session: Arc<Session>,
    pub(crate) answer: TxnResponse,
    /// The revision of the answer.
    pub(crate) seen: i64,
    /// Whether an earlier try of it, or an earlier transaction for the claim, may still be carried out.
    pub(crate) unclear: bool,
}

impl Asked {
    pub(crate) fn stands(self, standing: Standing, busy: Busy) -> Taken {
        Taken { standing, session: self.session, busy }
    }

    /// The transaction has made our key and found no other claim.
    pub(crate) fn alone(self) -> Taken {
        // So it is the one that created the key: here, and nowhere else, the revision of the answer is the key's own.
        let (create_revision, lease) = (self.seen, self.session.id);
        let own = KeyValue { key: self.key.clone(), create_revision, lease, ..Default::default() };
        let held = Held::by(own, self.seen);
        self.stands(Standing::Holds(held), Busy::default())
    }
}

impl Queue {
    /// Takes what is wanted, or a place in the queue for it. What is rarer than one lock for oneself alone does not make the future
    /// of that one longer.
    pub(crate) async fn take(&self, claim: &Claim, patience: Patience) -> Result<Taken, Failure> {
        match (claim.holding.wants(), patience) {
            ([Want { mode: Mode::Exclusive, .. }], Patience::Once) => self.take_if_free(claim).await,
            ([Want { mode: Mode::Exclusive, .. }], Patience::Queue) => self.take_lock_or_place(claim).await,
            _ if self.recipe == Recipe::Etcd => {
                let said = "with `recipe=etcd` there are only locks for one holder, one per claim: etcd's own clients know no others";
                Err(Failure::new(ErrorKind::Unsupported, Applied::No, said))
            }
            ([Want { mode: Mode::Shared, .. }], _) => Box::pin(self.take_shared(claim, patience)).await,
            ([Want { mode: Mode::Permits { count, of }, .. }], _) => {
                Box::pin(self.take_permits(claim, *count, *of, patience)).await
            }
            (wants, _) => Box::pin(self.take_several(claim, wants)).await,
        }
    }

    /// Where a claim stands now, as the cluster has it: read, not remembered. What is known of its place saves reading the
    /// whole queue.
    pub(crate) async fn look(&self, claim: &Claim, place: Option<&Place>) -> Result<Standing, Failure> {
        let Some(key) = self.ledger.key(claim.owner()) else { return Ok(Standing::Gone) };
        match claim.holding.wants()[0].mode {
            Mode::Exclusive => self.look_exclusive(claim, &key, place).await,
            Mode::Shared => Box::pin(self.look_shared(claim.name(), &key, place)).await,
            Mode::Permits { .. } => Box::pin(self.look_permits(claim.name(), &key, place)).await,
        }
    }

    /// Whether a claim and the one before it are both there yet; cheaper than a look, and enough for who was not called.
    pub(crate) async fn is_still_behind(&self, claim: &Claim, place: &Place) -> Result<bool, Failure> {
        let Some(key) = self.ledger.key(claim.owner()).filter(|_| place.until == Until::Gone) else { return Ok(false) };
        let reads = vec![exactly(&key).bare().op(), exactly(&place.before.key).bare().op()];
        let answer = self.link.txn(TxnRequest { success: reads, ..Default::default() }).await?.message;
        let mut reads = answer.firsts();
        let (own, before) = (reads.next().flatten(), reads.next().flatten());
        Ok(own.is_some_and(|own| own.create_revision == place.created) && before.is_some_and(|kv| place.before.is(&kv)))
    }

    /// Sends a transaction for a claim, on condition that its session's barrier is where we believe it to be.
    pub(crate) async fn ask(&self, claim: &Claim, build: impl Fn(&[u8], i64) -> TxnRequest) -> Result<Asked, Failure> {
        loop {
            let session = self.sessions.with(claim.ttl).await?;
            let barrier = session.barrier_revision();
            let mut asking = self.ledger.ask(claim, &session, self.clock.now())?;
            let key = std::mem::take(&mut asking.key);
            let mut txn = build(&key, session.id);
            txn.compare.push(changed_by(&session.barrier, barrier));
            txn.failure.push(exactly(&session.barrier).bare().op());
            sweep::begin(&self.sessions);
            let answer = match self.link.txn(txn).await {
                Err(failure) if failure.sort == Sort::SessionGone => {
                    self.sessions.lose(&session);
                    continue;
                }
                Err(failure) => {
                    if failure.applied == Applied::No {
                        asking.answered(false);
                    }
                    return Err(failure);
                }
                Ok(answer) => answer,
            };
            let (unclear, answer) = (asking.answered(answer.unclear), answer.message);
            if !answer.succeeded {
                let raised = answer.last_read().map_or(0, |kv| kv.mod_revision);
                if raised != barrier {
                    self.follow_barrier(&session, raised).await?;
                    continue;
                }
            }
            let seen = revision(&answer.header);
            return Ok(Asked { key, session, answer, seen, unclear });
        }
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

    /// Nobody waits: whoever is in the way, the claim leaves nothing behind.
    pub(crate) async fn busy(&self, claim: &Claim, asked: Asked, in_the_way: &KeyValue) -> Result<Taken, Failure> {
        self.not_placed(claim, asked.unclear).await?;
        let mut holder = Record::read(in_the_way, self.recipe)?.holder(in_the_way);
        // For people, who can do without it when the cluster does not tell.
        holder.expires_in = survey::time_left_of(self, in_the_way.lease).await.ok().flatten();
        Ok(asked.stands(Standing::Gone, Busy { holder: Some(holder), ..Busy::default() }))
    }

    /// The claim's transaction has made nothing.
    pub(crate) async fn not_placed(&self, claim: &Claim, unclear: bool) -> Result<(), Failure> {
        if unclear {
            // An earlier try may still be carried out, and take the lock for nobody.
            return self.leave(claim).await.map_err(|failure| failure.after_unclear(true));
        }
        self.ledger.forget(claim.owner());
        Ok(())
    }

    /// Whoever asks once and is not let in leaves no place behind, and neither does who is refused.
    pub(crate) async fn leave_unless_held(
        &self,
        claim: &Claim,
        patience: Patience,
        mut taken: Taken,
    ) -> Result<Taken, Failure> {
        match taken.standing {
            Standing::Behind(_) if patience == Patience::Once => {
                self.leave(claim).await?;
                taken.standing = Standing::Gone;
            }
            Standing::Refused(_) => self.leave(claim).await?,
            _ => {}
        }
        Ok(taken)
    }

    pub(crate) async fn leave(&self, claim: &Claim) -> Result<(), Failure> {
        if let Some(leaving) = self.ledger.leave(claim.owner(), self.clock.now()) {
            self.sessions.delete(&leaving).await?;
            self.ledger.forget(claim.owner());
        }
        Ok(())
    }

    /// Who is in the way of a claim that has taken its place. What holds the lock and is not ours may stay for ever: no
    /// place behind it.
    pub(crate) async fn shown(&self, claim: &Claim, in_the_way: Option<KeyValue>) -> Result<Busy, Failure> {
        let holder = in_the_way.map(|kv| Record::read(&kv, self.recipe).map(|record| record.holder(&kv))).transpose();
        match holder {
            Ok(holder) => Ok(Busy { holder, ..Busy::default() }),
            Err(failure) => {
                let left = self.leave(claim).await;
                Err(failure.after_unclear(left.is_err()))
            }
        }
    }

    /// That no claim for permits lies there, for claims of a lock: readers and writers are not placed among them.
    pub(crate) fn no_permits(&self, name: &LockName) -> Vec<Compare> {
        match self.recipe {
            Recipe::Fencepost => vec![none_below(&self.keys.permits(name))],
            Recipe::Etcd => Vec::new(), // knows none, and another lock may be called so
        }
    }

    /// A claim of a lock was not placed, since claims for permits are there, or strays that look so. Its transaction has read its
    /// own key and the oldest one. `None` when that is not for permits.
    pub(crate) async fn not_among_permits(&self, claim: &Claim, mut asked: Asked) -> Result<Option<Taken>, Failure> {
        let mut reads = std::mem::take(&mut asked.answer).firsts();
        let (own, oldest) = (reads.next().flatten(), reads.next().flatten());
        if own.is_some() {
            // A repeat of a claim that was applied: it stands where it stands.
            let standing = self.look(claim, None).await?;
            return Ok(Some(asked.stands(standing, Busy::default())));
        }
        let Some(oldest) = oldest else { return Ok(None) };
        let Some(refusal) = self.misfit(&self.keys.lock(claim.name()), &oldest)? else { return Ok(None) };
        self.not_placed(claim, asked.unclear).await?;
        Ok(Some(asked.stands(Standing::Refused(refusal), Busy::default())))
    }

    /// Why a claim of a lock, a reader's too, does not fit an older claim; that one has to be read with its value.
    pub(crate) fn misfit(&self, prefix: &[u8], older: &KeyValue) -> Result<Option<Refusal>, Failure> {
        if self.keys.kind(prefix, &older.key) != Some(Kind::Permits) {
            return Ok(None);
        }
        let (_, of) = Record::read(older, self.recipe)?.permits();
        Ok(Some(Refusal::SemaphoreInUse { of }))
    }

    pub(crate) fn record(&self, claim: &Claim, mode: Mode) -> Record {
        Record::new(claim.owner(), mode, &claim.claimant, wall_unix_ms(&*self.clock))
    }

    /// Removes a claim of anybody's, on condition of the revision that created it.
    pub(crate) async fn remove(&self, kv: &KeyValue) -> Result<bool, Failure> {
        let txn = TxnRequest {
            compare: vec![created_by(&kv.key, kv.create_revision)],
            success: vec![delete(&kv.key)],
            ..Default::default()
        };
        let answer = self.link.txn(txn).await?;
        // After a try of unknown outcome, that it is gone is our doing as likely as not.
        Ok(answer.message.succeeded || answer.unclear)
    }
}

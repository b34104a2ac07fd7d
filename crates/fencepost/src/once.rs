//! Once for each key, however often it is asked for: the result is kept and told again.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Attempt::Acquired, Attempt::Busy as Taken, Busy, Claimant, Holding},
    clock::wall_unix_ms,
    error::{Error, ErrorKind, Operation},
    limits::Wait,
    name::{LockName, MAX_NAME_BYTES},
    purpose::Purpose,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use sha2::{Digest, Sha256};

use crate::{
    cell::{Cell, Read},
    client::Client,
    lease::Lease,
    request::{Terms, obtain, terms},
};

/// For how long a result is kept unless said otherwise.
pub const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// The kind of the cells, and the beginning of the names of the locks.
const KIND: &str = "once";
/// The label of the lease by which others learn of the payload while the work is done.
const PAYLOAD: &str = "payload";

/// Work that is done once for its key. Made by [`Locks::once`](crate::Locks::once).
///
/// Whoever asks first does the work under a lease; its result is kept in a cell for [`KEPT_FOR`], or as long as
/// [`keep_for`](Once::keep_for) says, counted from its end on the store's clock. Every later one gets the result and does
/// nothing. One that comes meanwhile is told who is at it, or waits as long as [`wait`](Once::wait) allows; by default it does
/// not wait. When the one who is at it dies, its lease ends as any lease does, and the next one does the work **from the
/// beginning**: so it must be able to bear what a dead one had done of it. Where the effect lies in a database, a key in the
/// same transaction does better.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost::{Locks, Ran, Refusal};
///
/// let locks = Locks::open("memory:once").await?.for_efficiency();
/// let (key, body) = ("payment/8e03", r#"{"amount": 100}"#);
/// let ran = locks.once(key).fingerprint(body).run(async { charge(body).await });
/// match ran.await? {
///     Ran::Now(receipt) | Ran::NotKept { value: receipt, .. } => println!("charged: {receipt}"),
///     Ran::Repeated(kept) => println!("was charged by {}: {}", kept.by, kept.value),
///     Ran::Refused(refusal) => println!("HTTP status {}: {refusal}", refusal.status()),
///     Ran::Failed(error) => println!("not charged, and the key is free: {error}"),
/// }
/// let other = locks.once(key).fingerprint("another body").run(async { charge("another body").await });
/// assert!(matches!(other.await?, Ran::Refused(Refusal::OtherPayload)));
/// # Ok(())
/// # }
/// # async fn charge(_: &str) -> Result<String, std::io::Error> { Ok("receipt 1".into()) }
/// ```
///
/// # Results that are errors
///
/// Only what the work answers as `Ok` is kept; after an `Err` the key is free and the next one tries again. An error
/// that shall be told again belongs into the result: `Ok(Err(Declined))`, with `T = Result<Receipt, Declined>`.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct Once<P> {
    client: Arc<Client>,
    key: String,
    fingerprint: Option<String>,
    keep_for: Duration,
    terms: Terms,
    purpose: PhantomData<fn() -> P>,
}

/// What came of [`Once::run`].
#[derive(Debug)]
pub enum Ran<T, E> {
    /// The work was done now, and its result is kept.
    Now(T),
    /// The work was done now, and a repetition will not get its result.
    NotKept {
        /// The result.
        value: T,
        /// What a repetition will find instead.
        why: NotKept,
    },
    /// It was done before.
    Repeated(Kept<T>),
    /// Nothing was done.
    Refused(Refusal),
    /// The work failed now. The key is free, so that a repetition tries again.
    Failed(E),
}

/// A result of an earlier time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept<T> {
    /// The result.
    pub value: T,
    /// Who did the work, for people.
    pub by: Claimant,
    /// When it was done, in milliseconds since 1970 on the clock of whoever did it.
    pub at_unix_ms: u64,
}

/// Why nothing was done and there is no result. The statuses are those of the IETF's draft for the header
/// `Idempotency-Key` (draft-ietf-httpapi-idempotency-key-header).
#[derive(Debug)]
pub enum Refusal {
    /// Another is at it; try again later.
    InProgress(Box<Busy>),
    /// The key stands for another payload.
    OtherPayload,
    /// It was done before, and its result could not be kept: it was longer than a cell takes, or no JSON.
    ResultNotKept {
        /// Who did the work, for people.
        by: Claimant,
        /// When it was done, in milliseconds since 1970 on the clock of whoever did it.
        at_unix_ms: u64,
    },
}

/// Why the result of work that was done is not kept.
#[derive(Debug)]
pub enum NotKept {
    /// It is longer than [`MAX_CELL_BYTES`](crate::cells::MAX_CELL_BYTES), or cannot be written as JSON. That it was done is
    /// kept: a repetition is [refused](Refusal::ResultNotKept).
    Unfit(Error),
    /// The lease had ended in the meantime, and another did the work as well; its result is kept.
    AnotherWas,
    /// The store did not say. A repetition may do the work again.
    Unknown(Error),
}

/// What came of [`Once::begin`].
#[derive(Debug)]
pub enum Begun<P, T> {
    /// The work is the caller's to do.
    Ours(Box<OnceGuard<P>>),
    /// It was done before.
    Repeated(Kept<T>),
    /// Nothing is to be done.
    Refused(Refusal),
}

/// The right to do the work of a key, for as long as its lease lasts. Dropped, it leaves the key free.
#[derive(Debug)]
#[must_use = "dropped, it leaves the key free"]
pub struct OnceGuard<P> {
    lease: Lease<P>,
    cell: Cell<Record>,
    found: Read<Record>,
    fingerprint: Option<String>,
    by: Claimant,
}

/// What is kept of work that was done.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
    by: Claimant,
    at_unix_ms: u64,
    outcome: Outcome,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Result(serde_json::Value),
    NotKept,
}

impl<P: Purpose> Once<P> {
    pub(crate) fn new(client: Arc<Client>, key: &str) -> Self {
        let terms = Terms { wait: Wait::Once, ..Terms::default() };
        Self { client, key: key.to_owned(), fingerprint: None, keep_for: KEPT_FOR, terms, purpose: PhantomData }
    }

    /// What is asked for under the key. Whoever brings another payload for it is [refused](Refusal::OtherPayload), also
    /// while the work is done, and so is whoever brings one where the first brought none; whoever brings none is not
    /// compared. Kept is a hash: 128 bits of SHA-256 over key and payload.
    pub fn fingerprint(mut self, payload: impl AsRef<[u8]>) -> Self {
        let digest = Sha256::new().chain_update(&self.key).chain_update([0]).chain_update(payload).finalize();
        self.fingerprint = Some(digest[..16].iter().map(|byte| format!("{byte:02x}")).collect());
        self
    }

    /// How long the result is kept: 10 ms to 365 days, [`KEPT_FOR`] by default. After that the key is new.
    pub fn keep_for(mut self, span: Duration) -> Self {
        self.keep_for = span;
        self
    }

    terms!();

    /// Does the work unless it was done before. `work` is not polled before it is known to be due, and dropped where it
    /// stands when the lease is lost.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for the key or a span; [`ErrorKind::Unsupported`] when the store keeps no cells;
    /// [`ErrorKind::Lost`] when the lease was lost before the work was done; [`ErrorKind::Corrupt`] when the result that is
    /// kept is no `T`; and as for [`acquire`](crate::LockRequest::acquire). What the work had done before an error is done.
    ///
    /// # Cancel safety
    /// Dropped, it drops the work and leaves the key free, at the latest after the TTL.
    pub async fn run<T, E>(self, work: impl Future<Output = Result<T, E>>) -> Result<Ran<T, E>, Error>
    where
        T: Serialize + DeserializeOwned,
    {
        let attempt = match self.begin().await? {
            Begun::Ours(attempt) => attempt,
            Begun::Repeated(kept) => return Ok(Ran::Repeated(kept)),
            Begun::Refused(refusal) => return Ok(Ran::Refused(refusal)),
        };
        match attempt.lease.run(work).await? {
            Ok(value) => Ok(match attempt.keep(&value).await {
                Ok(()) => Ran::Now(value),
                Err(why) => Ran::NotKept { value, why },
            }),
            Err(error) => {
                attempt.leave().await;
                Ok(Ran::Failed(error))
            }
        }
    }

    /// Takes the work upon the caller unless it was done before: for work that is no future. See [`run`](Once::run).
    ///
    /// # Errors
    /// As for [`run`](Once::run).
    ///
    /// # Cancel safety
    /// Dropped, it leaves the key free, at the latest after the TTL.
    pub async fn begin<T: DeserializeOwned>(self) -> Result<Begun<P, T>, Error> {
        let (key, lock) = (LockName::new(&self.key)?, self.lock()?);
        let cell: Cell<Record> = Cell::new(self.client.clone(), KIND, &key)?.expiring(self.keep_for)?;
        // Without the lock first: all who repeat would otherwise stand in each other's way.
        if let Some(record) = cell.look().await?.value {
            return record.told(&self);
        }
        let holding = |owner| Holding::exclusive(lock, owner);
        let lease = match obtain(self.client.clone(), self.terms(), holding).await? {
            Acquired(lease) => lease,
            Taken(busy) => return Ok(Begun::Refused(self.refusal(busy))),
        };
        let mut found = cell.look().await?; // whoever held it before may have done the work
        let done = found.value.take();
        match done {
            Some(record) => {
                release(lease).await;
                record.told(&self)
            }
            None => {
                let by = (*self.client.claimant).clone();
                Ok(Begun::Ours(Box::new(OnceGuard { lease, cell, found, fingerprint: self.fingerprint, by })))
            }
        }
    }

    /// The lock that is held while the work is done.
    fn lock(&self) -> Result<LockName, Error> {
        let name = format!("{KIND}/{}", self.key);
        if name.len() > MAX_NAME_BYTES {
            let longest = MAX_NAME_BYTES - KIND.len() - 1;
            let said = format!("the key has {} bytes; the limit is {longest}", self.key.len());
            return Err(Error::new(ErrorKind::InvalidInput, Operation::Parse, said).not_applied());
        }
        LockName::new(name)
    }

    fn terms(&self) -> Terms {
        let mut terms = self.terms.clone();
        terms.labels.extend(self.fingerprint.clone().map(|fingerprint| (PAYLOAD.to_owned(), fingerprint)));
        terms
    }

    /// The holder's label tells of its payload.
    fn refusal(&self, busy: Busy) -> Refusal {
        let labels = busy.holder.as_ref().map_or(&[][..], |holder| &holder.claimant.labels);
        let theirs = labels.iter().find(|(key, _)| key == PAYLOAD).map(|(_, value)| value);
        match (&self.fingerprint, theirs, &busy.holder) {
            (Some(_), theirs, Some(_)) if theirs != self.fingerprint.as_ref() => Refusal::OtherPayload,
            _ => Refusal::InProgress(Box::new(busy)),
        }
    }
}

impl Record {
    fn told<P, T: DeserializeOwned>(self, to: &Once<P>) -> Result<Begun<P, T>, Error> {
        let Record { fingerprint, by, at_unix_ms, outcome } = self;
        if to.fingerprint.is_some() && to.fingerprint != fingerprint {
            return Ok(Begun::Refused(Refusal::OtherPayload));
        }
        match outcome {
            Outcome::NotKept => Ok(Begun::Refused(Refusal::ResultNotKept { by, at_unix_ms })),
            Outcome::Result(value) => {
                let value = serde_json::from_value(value).map_err(|source| {
                    let said = format!("the result kept for {:?} is of another type than was asked for", to.key);
                    Error::new(ErrorKind::Corrupt, Operation::Update, said).not_applied().caused_by(source)
                })?;
                Ok(Begun::Repeated(Kept { value, by, at_unix_ms }))
            }
        }
    }
}

impl<P: Purpose> OnceGuard<P> {
    /// The lease that the work is done under: its deadline, its loss and, for correctness, its fence.
    pub fn lease(&self) -> &Lease<P> {
        &self.lease
    }

    /// Keeps the result, and frees the key for those who wait to get it.
    ///
    /// It is kept also when the lease has ended since, unless another was faster: the work is done, and a repetition
    /// would do it again.
    ///
    /// # Errors
    /// [`NotKept`] says what a repetition will find.
    ///
    /// # Cancel safety
    /// Dropped, the result may be kept or not.
    pub async fn keep<T: Serialize>(self, value: &T) -> Result<(), NotKept> {
        let kept = match serde_json::to_value(value) {
            Ok(value) => self.write(Outcome::Result(value)).await,
            Err(source) => {
                let said = "the result cannot be written as JSON";
                Err(Error::new(ErrorKind::InvalidInput, Operation::Update, said).not_applied().caused_by(source))
            }
        };
        let kept = match kept {
            Err(error) if error.kind() == ErrorKind::InvalidInput => match self.write(Outcome::NotKept).await {
                Ok(true) => Err(NotKept::Unfit(error)),
                Ok(false) => Err(NotKept::AnotherWas),
                Err(error) => Err(NotKept::Unknown(error)),
            },
            Err(error) => Err(NotKept::Unknown(error)),
            Ok(true) => Ok(()),
            Ok(false) => Err(NotKept::AnotherWas),
        };
        self.leave().await;
        kept
    }

    /// Whether it was written; else another's result stands there.
    async fn write(&self, outcome: Outcome) -> Result<bool, Error> {
        let (fingerprint, by) = (self.fingerprint.clone(), self.by.clone());
        let record = Record { fingerprint, by, at_unix_ms: wall_unix_ms(self.cell.clock()), outcome };
        Ok(self.cell.write(&self.found, &record).await?.is_ok())
    }

    /// Frees the key without a result, so that the next one does the work.
    ///
    /// # Cancel safety
    /// Safe: dropped, the key comes free in the background.
    pub async fn leave(self) {
        release(self.lease).await;
    }
}

/// Awaited, so that whoever comes next finds it free; what fails goes on in the background when the lease is dropped.
async fn release<P: Purpose>(mut lease: Lease<P>) {
    if let Err(error) = lease.release().await {
        tracing::debug!(lock = %lease.name(), %error, "the key comes free in the background");
    }
}

impl Refusal {
    /// The status for it over HTTP: 409 while another is at it, 422 for another payload, 410 when there is no result.
    pub fn status(&self) -> u16 {
        match self {
            Refusal::InProgress(_) => 409,
            Refusal::OtherPayload => 422,
            Refusal::ResultNotKept { .. } => 410,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::InProgress(busy) => match &busy.holder {
                Some(holder) => write!(f, "it is being done by {}; try again later", holder.claimant),
                None => f.write_str("it is being done by another; try again later"),
            },
            Refusal::OtherPayload => {
                f.write_str("the key was used with another payload; use a new key for a new request")
            }
            Refusal::ResultNotKept { by, .. } => {
                write!(f, "it was done by {by}, and its result could not be kept; it is not done again")
            }
        }
    }
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotKept::Unfit(error) => write!(f, "a repetition is told that it was done and gets no result: {error}"),
            NotKept::AnotherWas => f.write_str("the lease had ended, and another's result is kept: it was done twice"),
            NotKept::Unknown(error) => write!(f, "a repetition may do it again: {error}"),
        }
    }
}

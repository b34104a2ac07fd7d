//! Waiting for each other: a latch that opens once, and a barrier that opens whenever all have come.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fencepost_core::{
    clock,
    error::{Error, ErrorKind, Operation},
    limits::Wait,
    name::LockName,
    owner::Owner,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    cell::{Cell, Edit},
    client::Client,
};

/// The most parties that a latch or a barrier waits for: each is remembered by its name.
pub const MOST_PARTIES: u32 = 2_000;

/// How long the name of a party may be, in bytes.
pub const LONGEST_PARTY: usize = 100;

/// A latch: it opens when as many parties as it was made for have arrived, and stays open. Made by
/// [`Locks::latch`](crate::Locks::latch).
///
/// Each party has a name, by which arriving twice counts once: a party that crashed and does its work again, or whose
/// arrival was not answered, is not counted for two.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Locks, Wait};
///
/// let locks = Locks::open("memory:latch").await?;
/// let started = locks.latch("started", 2)?;
/// started.arrive("web").await?;
/// assert_eq!(started.arrive("worker").await?, 0, "nobody is missing");
/// assert!(started.wait(Wait::Forever).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Latch {
    cell: Cell<Arrivals>,
    parties: u32,
}

/// What a latch remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Arrivals {
    parties: u32,
    arrived: BTreeSet<String>,
}

impl Arrivals {
    fn missing(&self) -> u32 {
        self.parties.saturating_sub(u32::try_from(self.arrived.len()).unwrap_or(u32::MAX))
    }
}

impl Latch {
    pub(crate) fn new(client: Arc<Client>, name: &str, parties: u32) -> Result<Self, Error> {
        let cell = Cell::new(client, "latch", &LockName::new(name)?)?;
        checked_parties(parties)?;
        Ok(Self { cell, parties })
    }

    /// The same latch, which is forgotten this long after the last arrival. Without it the latch stays until
    /// [`remove`](Latch::remove).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside the limits of a [`Ttl`](crate::Ttl).
    pub fn expiring(self, after: Duration) -> Result<Self, Error> {
        Ok(Self { cell: self.cell.expiring(after)?, ..self })
    }

    /// Says that `party` has arrived, and answers how many are missing.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the latch was made for another number of parties; [`ErrorKind::InvalidInput`] for
    /// a party without a name, or with one longer than [`LONGEST_PARTY`]; the rest as for
    /// [`Cell::update`](crate::Cell::update). Arriving again is safe after any error.
    ///
    /// # Cancel safety
    /// The party may have arrived; arriving again is safe.
    pub async fn arrive(&self, party: &str) -> Result<u32, Error> {
        checked_party(party)?;
        let mut outcome = Ok(0);
        self.cell
            .update(|found| {
                let mut arrivals =
                    found.unwrap_or_else(|| Arrivals { parties: self.parties, arrived: BTreeSet::new() });
                if arrivals.parties != self.parties {
                    outcome = Err(other_number(arrivals.parties));
                    return Edit::Leave;
                }
                let open = arrivals.missing() == 0;
                let new = !open && arrivals.arrived.insert(party.to_owned());
                outcome = Ok(arrivals.missing());
                if new { Edit::Write(arrivals) } else { Edit::Leave }
            })
            .await
            .and_then(|update| update.settled("it"))?;
        outcome
    }

    /// How many are missing; all of them before the first arrived.
    ///
    /// # Errors
    /// As for [`Cell::read`](crate::Cell::read).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn missing(&self) -> Result<u32, Error> {
        Ok(self.cell.read().await?.map_or(self.parties, |arrivals| arrivals.missing()))
    }

    /// Waits until nobody is missing; `false` when the waiting time was over first.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the latch was made for another number of parties; the rest as for
    /// [`Cell::read`](crate::Cell::read).
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn wait(&self, wait: Wait) -> Result<bool, Error> {
        until(&self.cell, wait, |arrivals| match arrivals {
            Some(arrivals) if arrivals.parties != self.parties => Err(other_number(arrivals.parties)),
            Some(arrivals) => Ok(arrivals.missing() == 0),
            None => Ok(false),
        })
        .await
    }

    /// Forgets who arrived: the latch is closed again.
    ///
    /// # Errors
    /// As for [`Cell::update`](crate::Cell::update).
    ///
    /// # Cancel safety
    /// It may have been forgotten.
    pub async fn remove(&self) -> Result<(), Error> {
        self.cell.update(|_| Edit::Remove).await.and_then(|update| update.settled("it"))
    }
}

/// A barrier: whoever comes waits until as many are there as it was made for; then all go on, and it is closed for the
/// next round. Made by [`Locks::barrier`](crate::Locks::barrier).
///
/// Whoever gives up, by the end of its waiting time or by dropping the future, is not counted any more; a process that
/// dies while it waits is counted until the barrier is [removed](Barrier::remove), or expires.
#[derive(Clone, Debug)]
pub struct Barrier {
    cell: Cell<Round>,
    parties: u32,
}

/// What a barrier remembers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Round {
    parties: u32,
    waiting: BTreeSet<String>,
}

/// How a wait at a barrier ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// All had come. One of them is told that it was the last.
    Open {
        /// Whether this party opened it.
        last: bool,
    },
    /// The waiting time was over first, and the place was given up.
    TimedOut,
}

impl Barrier {
    pub(crate) fn new(client: Arc<Client>, name: &str, parties: u32) -> Result<Self, Error> {
        let cell = Cell::new(client, "barrier", &LockName::new(name)?)?;
        checked_parties(parties)?;
        Ok(Self { cell, parties })
    }

    /// The same barrier, which is forgotten this long after the last change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] outside the limits of a [`Ttl`](crate::Ttl).
    pub fn expiring(self, after: Duration) -> Result<Self, Error> {
        Ok(Self { cell: self.cell.expiring(after)?, ..self })
    }

    /// Waits until all have come.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] when the barrier was made for another number of parties; the rest as for
    /// [`Cell::update`](crate::Cell::update). The place is given up in the background.
    ///
    /// # Cancel safety
    /// Dropped, it gives its place up in the background.
    pub async fn wait(&self, wait: Wait) -> Result<Passage, Error> {
        // From here on it may have been taken.
        let started = self.cell.clock().now();
        let mut place = Place { barrier: self.clone(), party: Owner::random()?.to_string(), taken: true };
        let mut last = Ok(false);
        self.cell
            .update(|found| {
                let mut round = found.unwrap_or_else(|| Round { parties: self.parties, ..Round::default() });
                if round.parties != self.parties {
                    last = Err(other_number(round.parties));
                    return Edit::Leave;
                }
                round.waiting.insert(place.party.clone());
                let all = round.waiting.len() >= self.parties as usize;
                if all {
                    round.waiting.clear();
                }
                last = Ok(all);
                Edit::Write(round)
            })
            .await
            .and_then(|update| update.settled("it"))?;
        if last? {
            place.taken = false;
            return Ok(Passage::Open { last: true });
        }
        // By the name and not by the count of rounds: one that was removed, and made again, counts from the beginning.
        let waits = |round: &Round| round.waiting.contains(&place.party);
        let left = wait.left_after(self.cell.clock().now().since(started));
        let open = until(&self.cell, left, |round| Ok(!round.is_some_and(waits))).await?;
        if open {
            place.taken = false;
            return Ok(Passage::Open { last: false });
        }
        let left = place.leave().await?;
        Ok(if left { Passage::TimedOut } else { Passage::Open { last: false } })
    }

    /// Lets everybody go who waits, and forgets the barrier.
    ///
    /// # Errors
    /// As for [`Cell::update`](crate::Cell::update).
    ///
    /// # Cancel safety
    /// It may have been forgotten.
    pub async fn remove(&self) -> Result<(), Error> {
        self.cell.update(|_| Edit::Remove).await.and_then(|update| update.settled("it"))
    }
}

/// A place before the barrier, given up when dropped.
struct Place {
    barrier: Barrier,
    party: String,
    taken: bool,
}

impl Place {
    /// Whether it was still there; if not, the barrier has opened.
    async fn leave(&mut self) -> Result<bool, Error> {
        let waited = leave(&self.barrier.cell, &self.party).await?;
        self.taken = false;
        Ok(waited)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.taken {
            let (cell, party) = (self.barrier.cell.parting(), std::mem::take(&mut self.party));
            self.barrier.cell.in_background(async move {
                if let Err(error) = leave(&cell, &party).await {
                    tracing::warn!(%error, "a place before a barrier could not be given up");
                }
            });
        }
    }
}

async fn leave(cell: &Cell<Round>, party: &str) -> Result<bool, Error> {
    let mut waited = false;
    let left = cell.update(|found| {
        waited = false;
        let Some(mut round) = found else { return Edit::Leave };
        waited = round.waiting.remove(party);
        if waited { Edit::Write(round) } else { Edit::Leave }
    });
    left.await.and_then(|update| update.settled("it"))?;
    Ok(waited)
}

/// Waits until `open` says so of the value; `false` when the waiting time was over first.
async fn until<T: Serialize + DeserializeOwned>(
    cell: &Cell<T>,
    wait: Wait,
    open: impl Fn(Option<&T>) -> Result<bool, Error>,
) -> Result<bool, Error> {
    let opened = async {
        loop {
            let found = cell.look().await?;
            if open(found.value.as_ref())? {
                return Ok(true);
            }
            if wait == Wait::Once {
                return Ok(false);
            }
            cell.changed_since(found.version()).await?;
        }
    };
    match wait {
        Wait::AtMost(limit) => tokio::select! {
            opened = opened => opened,
            () = clock::sleep(cell.clock(), limit) => Ok(false),
        },
        Wait::Once | Wait::Forever => opened.await,
    }
}

fn checked_parties(parties: u32) -> Result<(), Error> {
    if (1..=MOST_PARTIES).contains(&parties) {
        return Ok(());
    }
    let said = format!("{parties} parties are outside the limits of 1 to {MOST_PARTIES}");
    Err(Error::new(ErrorKind::InvalidInput, Operation::Update, said).not_applied())
}

fn checked_party(party: &str) -> Result<(), Error> {
    if (1..=LONGEST_PARTY).contains(&party.len()) {
        return Ok(());
    }
    let said = format!("the name of a party has {} bytes; it takes 1 to {LONGEST_PARTY}", party.len());
    Err(Error::new(ErrorKind::InvalidInput, Operation::Update, said).not_applied())
}

fn other_number(parties: u32) -> Error {
    let said = format!("it is in use with {parties} parties");
    Error::new(ErrorKind::Mismatch, Operation::Update, said)
        .not_applied()
        .advise("state the same number, use another name, or remove it first")
}

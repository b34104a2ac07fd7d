//! Once in a period, whoever comes first: for work that a timer starts on many hosts.

use std::{sync::Arc, time::Duration};

use fencepost_core::{cells::Version, claim::Claimant, clock::wall_unix_ms, error::Error, limits::Ttl, name::LockName};
use serde::{Deserialize, Serialize};

use crate::{cell::Cell, client::Client};

/// Work that is due once in each period. Made by [`Locks::once_per`](crate::Locks::once_per).
///
/// The first one to ask in a period gets it, and nobody else before the period is over, counted from that moment on the
/// store's clock. It is no lock: work that takes longer than the period can overlap with the next. Hold a lock as
/// well where that matters, as `fencepost run --once-per` does.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), fencepost::Error> {
/// use fencepost::{Due, Locks};
/// use std::time::Duration;
///
/// let locks = Locks::open("memory:period").await?;
/// let cleanup = locks.once_per("cleanup", Duration::from_secs(900))?;
/// assert!(matches!(cleanup.claim().await?, Due::Now(_)));
/// assert!(matches!(cleanup.claim().await?, Due::Later { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OncePer {
    client: Arc<Client>,
    cell: Cell<Taken>,
    period: Duration,
}

/// Who had it last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Taken {
    claimant: Claimant,
    since_unix_ms: u64,
}

/// Whether it is due.
#[derive(Debug)]
pub enum Due {
    /// Now, for the caller.
    Now(Turn),
    /// It was done, or begun, in this period.
    Later {
        /// By whom, for people.
        by: Claimant,
        /// When, in milliseconds since 1970 on the clock of whoever did it.
        since_unix_ms: u64,
    },
}

/// This period's turn.
#[derive(Debug)]
pub struct Turn {
    cell: Cell<Taken>,
    version: Version,
}

impl OncePer {
    pub(crate) fn new(client: Arc<Client>, name: &str, period: Duration) -> Result<Self, Error> {
        let cell = Cell::new(client.clone(), "period", &LockName::new(name)?)?.expiring(period)?;
        Ok(Self { client, cell, period: Ttl::new(period)?.get() })
    }

    /// The period.
    pub fn period(&self) -> Duration {
        self.period
    }

    /// Takes this period's turn if it is still to be had.
    ///
    /// # Errors
    /// As for [`Cell::update`]. After an error of unknown outcome the turn may be gone for this period.
    ///
    /// # Cancel safety
    /// Dropped, it may have taken the turn.
    pub async fn claim(&self) -> Result<Due, Error> {
        let mut found = self.cell.look().await?;
        loop {
            if let Some(taken) = found.value {
                return Ok(Due::Later { by: taken.claimant, since_unix_ms: taken.since_unix_ms });
            }
            let taken =
                Taken { claimant: (*self.client.claimant).clone(), since_unix_ms: wall_unix_ms(&*self.client.clock) };
            match self.cell.write(&found, &taken).await? {
                Ok(version) => return Ok(Due::Now(Turn { cell: self.cell.clone(), version })),
                Err(newer) => found = newer,
            }
        }
    }
}

impl Turn {
    /// Gives the turn back, for instance when the work failed and shall be tried again in this period.
    ///
    /// # Errors
    /// As for [`Cell::update`]; the turn comes free with the next period at the latest.
    ///
    /// # Cancel safety
    /// Dropped, it may have been given back.
    pub async fn give_back(self) -> Result<(), Error> {
        self.cell.remove(self.version).await
    }
}

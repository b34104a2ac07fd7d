//! Locks inside your own transaction: they end with it, by commit or rollback, and however the client dies.
//!
//! Where the protected data lie in the same database, this is all that is needed: no TTL, no fence, no table of ours. The
//! transaction is lent to the lock and used through it; nothing is left on its connection.
//!
//! ```no_run
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost_core::{claim::Attempt, limits::Wait, name::{LockName, Namespace}};
//! use fencepost_postgres::transaction::{self, RowWait};
//!
//! let mut transaction = client.transaction().await?;
//! // One row, which the database locks anyway when it is written.
//! let orders = "SELECT state FROM orders WHERE id = $1";
//! if let Attempt::Acquired(order) = transaction::row(&mut transaction, orders, &[&1001_i64], RowWait::No).await? {
//!     println!("{:?}", order.rows());
//!     order.execute("UPDATE orders SET state = 'shipped' WHERE id = $1", &[&1001_i64]).await?;
//! }
//! // Or a name that stands for more than one row.
//! let name = LockName::new("stock/recount")?;
//! if let Attempt::Acquired(held) = transaction::xact(&mut transaction, &Namespace::default(), &name, Wait::Once).await? {
//!     held.execute("UPDATE stock SET counted = actual", &[]).await?;
//! }
//! transaction.commit().await?; // both locks end here
//! # Ok(())
//! # }
//! ```
//!
//! # With `sqlx` or another client
//!
//! Send [`TRY_XACT`] with [`advisory_key`] inside the transaction and read its one column; send [`row_sql`] for a row, below a
//! savepoint, since one that is busy is an error of SQLSTATE `55P03`. With `sqlx`, whose transactions end by `commit` or `rollback`; one
//! that is dropped goes on until its connection is used again or is back in its pool:
//!
//! ```no_run
//! # mod sqlx { // what `sqlx` calls them
//! #     pub use sqlx_core::{query::query, query_scalar::query_scalar};
//! #     pub use sqlx_postgres::PgPool;
//! # }
//! # async fn example(pool: &sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost_core::name::{LockName, Namespace};
//! use fencepost_postgres::transaction::{RowWait, TRY_XACT, XactAnswer, advisory_key, row_sql};
//!
//! let mut transaction = pool.begin().await?;
//! let key = advisory_key(&Namespace::default(), &LockName::new("stock/recount")?);
//! let answer: String = sqlx::query_scalar(TRY_XACT).bind(key).fetch_one(&mut *transaction).await?;
//! if XactAnswer::read(&answer)? == XactAnswer::Taken {
//!     let job = row_sql("SELECT id FROM jobs WHERE done_at IS NULL ORDER BY id LIMIT 1", RowWait::Skip);
//!     if let Some(id) = sqlx::query_scalar::<_, i64>(&job).fetch_optional(&mut *transaction).await? {
//!         sqlx::query("UPDATE jobs SET done_at = now() WHERE id = $1").bind(id).execute(&mut *transaction).await?;
//!     }
//! }
//! transaction.commit().await?; // both locks end here
//! # Ok(())
//! # }
//! ```

use std::{fmt, ops::Deref, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    claim::{Attempt, Busy},
    clock::{self, BootClock, Clock},
    error::{Applied, Error, ErrorKind, Operation},
    limits::Wait,
    name::{LockName, Namespace},
};
use sha2::{Digest, Sha256};
use tokio_postgres::{Row, Transaction, error::SqlState};

use crate::{failure::Failure, session::Parameter};

/// Tries to take the advisory lock `$1` until the transaction ends. Its one column is read by [`XactAnswer::read`].
///
/// `taken`, `busy`, `ours` (this session has it already, and would have it twice), `standby` (where it excludes nobody).
pub const TRY_XACT: &str = include_str!("sql/try_xact.sql");

/// The 64-bit key of a name: the first eight bytes, most significant first, of SHA-256 over namespace, a zero byte and name.
///
/// Neither can contain a zero byte, so that the text is unambiguous. Keys are shared by everybody in one database: another
/// program's key of the same value is the same lock. Among a million names the odds of two that meet are one to forty
/// million; they would exclude each other, and nothing worse.
pub fn advisory_key(namespace: &Namespace, name: &LockName) -> i64 {
    let digest =
        Sha256::new().chain_update(namespace.as_str()).chain_update([0]).chain_update(name.as_str()).finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    i64::from_be_bytes(first)
}

/// What [`TRY_XACT`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XactAnswer {
    /// It is held until the transaction ends.
    Taken,
    /// Another session holds it.
    Busy,
}

impl XactAnswer {
    /// Reads the answer to [`TRY_XACT`].
    ///
    /// # Errors
    /// [`ErrorKind::Misconfigured`] on a standby; [`ErrorKind::InvalidInput`] when this session has the lock already.
    pub fn read(answer: &str) -> Result<Self, Error> {
        let failure = match answer {
            "taken" => return Ok(Self::Taken),
            "busy" => return Ok(Self::Busy),
            "standby" => Failure::standby("this server"),
            "ours" => Failure::new(ErrorKind::InvalidInput, Applied::No, "this session holds the lock already")
                .advise("take it once; it lasts until the transaction ends"),
            _ => Failure::puzzling(),
        };
        Err(failure.error(Operation::Claim, None))
    }
}

/// A lock that lasts until the transaction ends. The transaction is used through it.
#[must_use = "the lock lasts until the transaction ends, whether this is kept or not"]
pub struct Held<'a, 'c> {
    transaction: &'a mut Transaction<'c>,
    rows: Vec<Row>,
}

impl Held<'_, '_> {
    /// The rows that were locked; none for an advisory lock.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

impl fmt::Debug for Held<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held").field("rows", &self.rows.len()).finish_non_exhaustive()
    }
}

impl<'c> Deref for Held<'_, 'c> {
    type Target = Transaction<'c>;

    fn deref(&self) -> &Transaction<'c> {
        self.transaction
    }
}

/// Takes the lock of a name until the transaction ends.
///
/// It never waits inside the server: a statement that waits for an advisory lock keeps its place in the server's queue
/// when the client gives up, holds back vacuum, and can report a timeout of a lock that was granted. A `wait` is therefore a
/// try every few milliseconds, in no particular order among those who wait.
///
/// # Errors
/// Never because another holds it. [`ErrorKind::InvalidInput`] when this session has it already, or the transaction has
/// failed before; [`ErrorKind::Misconfigured`] on a standby; [`ErrorKind::Unavailable`] when the connection broke.
///
/// # Cancel safety
/// Safe: a lock that was granted all the same ends with the transaction.
pub async fn xact<'a, 'c>(
    transaction: &'a mut Transaction<'c>,
    namespace: &Namespace,
    name: &LockName,
    wait: impl Into<Wait>,
) -> Result<Attempt<Held<'a, 'c>>, Error> {
    let key = advisory_key(namespace, name);
    let mut turns = Turns::new(wait.into());
    loop {
        let answer = transaction.query_one(TRY_XACT, &[&key]).await.map_err(|error| failed(&error, Some(name)))?;
        let answer: Option<String> = answer.try_get(0).map_err(|error| failed(&error, Some(name)))?;
        match XactAnswer::read(&answer.unwrap_or_default()).map_err(|error| error.on_lock(name))? {
            XactAnswer::Taken => return Ok(Attempt::Acquired(Held { transaction, rows: Vec::new() })),
            XactAnswer::Busy if turns.another().await => {}
            XactAnswer::Busy => return Ok(Attempt::Busy(Busy::default())),
        }
    }
}

/// What to do about a row that another transaction has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowWait {
    /// It is busy.
    No,
    /// Leave it out; nothing left is busy. For queues, where any row will do.
    Skip,
    /// Try again for at most this long.
    AtMost(Duration),
}

/// The statement that locks what `select` finds, without waiting.
pub fn row_sql(select: &str, wait: RowWait) -> String {
    format!("{select} FOR UPDATE {}", if wait == RowWait::Skip { "SKIP LOCKED" } else { "NOWAIT" })
}

/// Locks the rows that `select` finds until the transaction ends, and answers them as they are then. `select` is a statement
/// that `FOR UPDATE` can follow.
///
/// The transaction stays usable when a row is busy: the try is made below a savepoint.
///
/// # Errors
/// Never because another has a row locked. [`ErrorKind::InvalidInput`] when the transaction has failed before;
/// otherwise what the server says to the statement.
///
/// # Cancel safety
/// The savepoint may be left behind, and ends with the transaction.
pub async fn row<'a, 'c>(
    transaction: &'a mut Transaction<'c>,
    select: &str,
    with: &[Parameter<'_>],
    wait: RowWait,
) -> Result<Attempt<Held<'a, 'c>>, Error> {
    let text = row_sql(select, wait);
    let mut turns = Turns::new(match wait {
        RowWait::No | RowWait::Skip => Wait::Once,
        RowWait::AtMost(span) => Wait::from(span),
    });
    loop {
        let savepoint = transaction.transaction().await.map_err(|error| failed(&error, None))?;
        match savepoint.query(&text, with).await {
            Ok(rows) => {
                savepoint.commit().await.map_err(|error| failed(&error, None))?;
                if wait == RowWait::Skip && rows.is_empty() {
                    return Ok(Attempt::Busy(Busy::default()));
                }
                return Ok(Attempt::Acquired(Held { transaction, rows }));
            }
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                savepoint.rollback().await.map_err(|error| failed(&error, None))?;
                if !turns.another().await {
                    return Ok(Attempt::Busy(Busy::default()));
                }
            }
            Err(error) => return Err(failed(&error, None)),
        }
    }
}

fn failed(error: &tokio_postgres::Error, name: Option<&LockName>) -> Error {
    Failure::answered(error).error(Operation::Claim, name)
}

/// Tries, with growing pauses, until the waiting time is over.
struct Turns {
    wait: Wait,
    since: clock::Moment,
    backoff: Backoff,
}

impl Turns {
    fn new(wait: Wait) -> Self {
        let backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(50));
        Self { wait, since: BootClock.now(), backoff }
    }

    /// Rests, and answers whether there shall be another try.
    async fn another(&mut self) -> bool {
        let pause = match self.wait {
            Wait::Once => return false,
            Wait::Forever => self.backoff.pause(),
            Wait::AtMost(span) => {
                let left = span.saturating_sub(BootClock.now().since(self.since));
                if left.is_zero() {
                    return false;
                }
                self.backoff.pause().min(left)
            }
        };
        clock::sleep(&BootClock, pause).await;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fixed for ever: other versions and other programs compute the same.
    #[test]
    fn c3_keys_of_names_are_golden() {
        let key = |namespace: &str, name: &str| {
            advisory_key(&Namespace::new(namespace).unwrap(), &LockName::new(name).unwrap())
        };
        for (namespace, name, expected) in [
            ("fencepost", "a", 2_061_527_955_741_173_310),
            ("fencepost", "orders/1001", -1_201_082_539_711_879_728),
            ("shop", "orders/1001", 919_789_565_490_099_473),
            ("fencepost", "이름", -3_477_445_280_292_100_049),
        ] {
            assert_eq!(key(namespace, name), expected, "{namespace} {name}");
        }
        // What is between namespace and name counts.
        assert_ne!(key("ab", "c"), key("a", "bc"));
        // Meet under `hashtext` of PostgreSQL, which has 32 bits.
        let keys: std::collections::HashSet<_> =
            (0..100_000).map(|number| key("fencepost", &format!("{number}"))).collect();
        assert_eq!(keys.len(), 100_000);
    }
}

//! Work that is done once for its key, in your own PostgreSQL transaction: its effect and its result commit together.
//!
//! `fencepost::Locks::once` works on every store and cannot know whether a worker that died had done its work. Where the effect lies in
//! the same database, this can: both are there or neither, whatever dies, so each key has its effect exactly once.
//!
//! ```no_run
//! # async fn example(client: &mut tokio_postgres::Client, key: &str, body: &[u8]) -> Result<u16, Box<dyn std::error::Error>> {
//! use fencepost_patterns::requests::{Begun, Requests};
//! use std::time::Duration;
//!
//! let requests = Requests::of("requests");
//! client.batch_execute(&requests.script()).await?; // once, by whoever makes the schema
//! let transaction = client.transaction().await?;
//! let receipt = match requests.begin(&transaction, key, Some(body)).await? {
//!     Begun::Ours(ours) => {
//!         transaction.execute("UPDATE accounts SET balance = balance - 100 WHERE name = 'alice'", &[]).await?;
//!         requests.keep(&transaction, ours, b"receipt", Duration::from_secs(86_400)).await??;
//!         transaction.commit().await?;
//!         b"receipt".to_vec()
//!     }
//!     Begun::Repeated(receipt) => receipt,
//!     Begun::InProgress => return Ok(409),
//!     Begun::OtherPayload => return Ok(422),
//! };
//! # let _ = receipt;
//! # Ok(200)
//! # }
//! ```
//!
//! | what happens | what comes of it |
//! |---|---|
//! | the worker dies, or its connection breaks, before the commit | nothing was done; the key is free at once |
//! | the answer to the commit is lost | ask again with the same key: it tells |
//! | a second one comes meanwhile | [`Begun::InProgress`] at once; it waits for nothing inside the server |
//! | the work fails | roll back, and the key is free; or keep the failure as a result and commit |
//! | its time is over | the key is new. Remove old rows with [`Requests::clean`] from time to time |

use std::{fmt, time::Duration};

use fencepost_core::cells::MAX_CELL_BYTES;
use tokio_postgres::{GenericClient, Transaction};

use crate::atomic::postgres::{PgResult, quoted_table};

/// A table of keys and what came of them.
#[derive(Clone, Debug)]
pub struct Requests(String);

/// What came of [`Requests::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The work is to be done now, in this transaction.
    Ours(Ours),
    /// It was done before, with this result.
    Repeated(Vec<u8>),
    /// Another transaction is at it: 409 over HTTP.
    InProgress,
    /// The key stands for another payload: 422 over HTTP.
    OtherPayload,
}

/// The right to keep a result for a key, in the transaction that it was begun in.
#[derive(Debug)]
pub struct Ours {
    key: String,
    fingerprint: Option<Vec<u8>>,
}

/// The result is longer than [`MAX_CELL_BYTES`]. Roll back, and nothing was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong {
    /// Its length.
    pub bytes: usize,
}

impl Requests {
    /// The keys in `table`; `SCHEMA.TABLE` is one in a schema.
    pub fn of(table: &str) -> Self {
        Self(quoted_table(table))
    }

    /// The SQL that makes the table. It can be run again.
    pub fn script(&self) -> String {
        let table = &self.0;
        format!(
            "CREATE TABLE IF NOT EXISTS {table} (
    key text PRIMARY KEY,
    fingerprint bytea,
    result bytea NOT NULL,
    kept_until timestamptz NOT NULL
);
"
        )
    }

    /// Looks whether the work of this key was done, and takes it upon this transaction if not. With a payload, another one under the
    /// same key is told apart; kept is a hash of it.
    ///
    /// Keys exclude each other by an advisory lock of 64 bits until the transaction ends: two that meet by chance are answered as
    /// [`Begun::InProgress`], and nothing worse. For `READ COMMITTED`, the usual level: a transaction that sees the database as it was
    /// at its beginning would not see what another has committed since.
    ///
    /// # Cancel safety
    /// Nothing has happened before the transaction commits.
    pub async fn begin(&self, transaction: &Transaction<'_>, key: &str, payload: Option<&[u8]>) -> PgResult<Begun> {
        let table = &self.0;
        let lock = "SELECT pg_try_advisory_xact_lock(hashtextextended($1, hashtext($2)::bigint)), sha256($3)";
        let row = transaction.query_one(lock, &[&key, table, &payload]).await?;
        let fingerprint: Option<Vec<u8>> = row.try_get(1)?;
        if !row.try_get(0)? {
            return Ok(Begun::InProgress);
        }
        // A statement of its own, which sees what the one before us has committed.
        let look = format!("SELECT fingerprint, result FROM {table} WHERE key = $1 AND kept_until > clock_timestamp()");
        let Some(kept) = transaction.query_opt(&look, &[&key]).await? else {
            return Ok(Begun::Ours(Ours { key: key.to_owned(), fingerprint }));
        };
        if fingerprint.is_some() && fingerprint != kept.try_get(0)? {
            return Ok(Begun::OtherPayload);
        }
        Ok(Begun::Repeated(kept.try_get(1)?))
    }

    /// Keeps the result for `span` from now on, by the server's clock, once this transaction commits.
    ///
    /// # Cancel safety
    /// As for [`begin`](Self::begin).
    pub async fn keep(
        &self,
        transaction: &Transaction<'_>,
        ours: Ours,
        result: &[u8],
        span: Duration,
    ) -> PgResult<Result<(), TooLong>> {
        if result.len() > MAX_CELL_BYTES {
            return Ok(Err(TooLong { bytes: result.len() }));
        }
        let table = &self.0;
        let keep = format!(
            "INSERT INTO {table} VALUES ($1, $2, $3, clock_timestamp() + $4 * interval '1 second')
             ON CONFLICT (key) DO UPDATE SET fingerprint = excluded.fingerprint, result = excluded.result,
                 kept_until = excluded.kept_until"
        );
        let Ours { key, fingerprint } = ours;
        transaction.execute(&keep, &[&key, &fingerprint, &result, &span.as_secs_f64()]).await?;
        Ok(Ok(()))
    }

    /// Removes keys whose time is over; answers how many.
    ///
    /// # Cancel safety
    /// Repeat it.
    pub async fn clean<C: GenericClient>(&self, client: &C) -> PgResult<u64> {
        client.execute(&format!("DELETE FROM {} WHERE kept_until <= clock_timestamp()", self.0), &[]).await
    }
}

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a result of {} bytes is too long; the limit is {MAX_CELL_BYTES}", self.bytes)
    }
}

impl std::error::Error for TooLong {}

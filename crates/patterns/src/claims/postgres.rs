//! Tickets in a PostgreSQL table of yours.
//!
//! The acknowledgement belongs into the transaction of the work, where that is in the same database: then both are there or neither.
//!
//! ```no_run
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost_patterns::claims::{Worker, postgres::Tickets};
//! use std::time::Duration;
//!
//! let mails = Tickets::of("mails", "id");
//! client.batch_execute(&mails.script()).await?; // once, by whoever makes the schema
//! let me = Worker::new()?;
//! for ticket in mails.take::<_, i64>(client, &me, 10, Duration::from_secs(60)).await? {
//!     let transaction = client.transaction().await?;
//!     transaction.execute("INSERT INTO sent VALUES ($1)", &[&ticket.key]).await?;
//!     if mails.done(&transaction, &me, &[ticket.key]).await?.is_empty() {
//!         transaction.rollback().await?; // it took too long, and is another's by now
//!     } else {
//!         transaction.commit().await?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::time::Duration;

use tokio_postgres::{
    GenericClient,
    types::{FromSqlOwned, ToSql},
};

use super::{Ticket, Worker};
use crate::atomic::postgres::{PgResult, quoted, quoted_table};

/// The rows of a table as tickets, in the order of a column that is unique.
#[derive(Clone, Debug)]
pub struct Tickets {
    table: String,
    key: String,
    index: String,
}

impl Tickets {
    /// The rows of `table` (`SCHEMA.TABLE` is one in a schema), named by the column `key`. Names are taken as they are, and not for what
    /// others typed in.
    pub fn of(table: &str, key: &str) -> Self {
        let index = format!("{}_to_be_claimed", table.rsplit('.').next().unwrap_or(table));
        Self { table: quoted_table(table), key: quoted(key), index: quoted(&index) }
    }

    /// The SQL that adds the columns `claimed_by`, `claimed_until`, `claims` and `done_at`, and an index of those rows that are not done.
    /// It can be run again.
    pub fn script(&self) -> String {
        let Self { table, key, index } = self;
        format!(
            "ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS claimed_by text,
    ADD COLUMN IF NOT EXISTS claimed_until timestamptz,
    ADD COLUMN IF NOT EXISTS claims bigint NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS done_at timestamptz;
CREATE INDEX IF NOT EXISTS {index} ON {table} ({key}) WHERE done_at IS NULL;
"
        )
    }

    /// Takes up to `count` rows for `span`, on the server's clock. None are free when there are none in the answer, or others are
    /// taking the last ones at this moment.
    ///
    /// # Cancel safety
    /// Outside of a transaction some may have been taken; they come back after `span`.
    pub async fn take<C: GenericClient, K: FromSqlOwned>(
        &self,
        client: &C,
        worker: &Worker,
        count: u32,
        span: Duration,
    ) -> PgResult<Vec<Ticket<K>>> {
        let Self { table, key, .. } = self;
        // What is picked is locked and looked at anew before it is picked, and picked in one go: as a part of the UPDATE's own
        // condition it could be picked again for each row.
        let take = format!(
            "WITH picked AS MATERIALIZED (
                 SELECT {key} FROM {table}
                 WHERE done_at IS NULL AND (claimed_until IS NULL OR claimed_until <= clock_timestamp())
                 ORDER BY {key} LIMIT $3 FOR UPDATE SKIP LOCKED
             ),
             taken AS (
                 UPDATE {table} AS tickets
                 SET claimed_by = $1, claimed_until = clock_timestamp() + $2 * interval '1 second', claims = claims + 1
                 FROM picked WHERE tickets.{key} = picked.{key}
                 RETURNING tickets.{key}, tickets.claims
             )
             SELECT {key}, claims FROM taken ORDER BY {key}"
        );
        let (worker, count) = (worker.to_string(), i64::from(count));
        let rows = client.query(&take, &[&worker, &span.as_secs_f64(), &count]).await?;
        let ticket = |row: tokio_postgres::Row| {
            let tries = u64::try_from(row.try_get::<_, i64>(1)?).unwrap_or_default();
            Ok(Ticket { key: row.try_get(0)?, tries })
        };
        rows.into_iter().map(ticket).collect()
    }

    /// Acknowledges tickets; answers those that were this worker's and not done. Others are left as they are.
    ///
    /// # Cancel safety
    /// Outside of a transaction all or none were acknowledged. Repeated, it answers none of those that were.
    pub async fn done<C: GenericClient, K: FromSqlOwned + ToSql + Sync>(
        &self,
        client: &C,
        worker: &Worker,
        tickets: &[K],
    ) -> PgResult<Vec<K>> {
        self.settle(client, worker, tickets, "done_at = clock_timestamp()").await
    }

    /// Gives tickets back; answers those that were this worker's and not done.
    ///
    /// # Cancel safety
    /// As for [`done`](Self::done).
    pub async fn give_back<C: GenericClient, K: FromSqlOwned + ToSql + Sync>(
        &self,
        client: &C,
        worker: &Worker,
        tickets: &[K],
    ) -> PgResult<Vec<K>> {
        self.settle(client, worker, tickets, "claimed_by = NULL, claimed_until = NULL").await
    }

    /// Gives tickets `span` more, from now on; answers those that were this worker's and not done. The others are lost to it.
    ///
    /// # Cancel safety
    /// Repeat it.
    pub async fn extend<C: GenericClient, K: FromSqlOwned + ToSql + Sync>(
        &self,
        client: &C,
        worker: &Worker,
        tickets: &[K],
        span: Duration,
    ) -> PgResult<Vec<K>> {
        let until = format!("claimed_until = clock_timestamp() + interval '{} seconds'", span.as_secs_f64());
        self.settle(client, worker, tickets, &until).await
    }

    async fn settle<C: GenericClient, K: FromSqlOwned + ToSql + Sync>(
        &self,
        client: &C,
        worker: &Worker,
        tickets: &[K],
        how: &str,
    ) -> PgResult<Vec<K>> {
        let Self { table, key, .. } = self;
        let settle = format!(
            "UPDATE {table} SET {how} WHERE {key} = ANY($2) AND claimed_by = $1 AND done_at IS NULL RETURNING {key}"
        );
        let rows = client.query(&settle, &[&worker.to_string(), &tickets]).await?;
        rows.into_iter().map(|row| row.try_get(0)).collect()
    }
}

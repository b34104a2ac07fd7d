//! Atomic changes of PostgreSQL rows.
//!
//! Everything happens in statements of yours, on a client or in a transaction of yours, so that it commits together with whatever
//! else belongs to it: take from the stock and insert the order in one transaction, and neither is there without the other.
//!
//! ```no_run
//! # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost_patterns::atomic::{Refusal, postgres::Amounts};
//!
//! let stock = Amounts::of("stock", "item", "pieces");
//! match stock.take(client, &4711_i64, 1).await? {
//!     Ok(left) => println!("sold, {left} left"),
//!     Err(Refusal::Insufficient { .. }) => println!("sold out"),
//!     Err(refusal) => println!("{refusal}"),
//! }
//! let accounts = Amounts::of("accounts", "name", "balance").prepare(client).await?; // once, and kept with the client
//! let transaction = client.transaction().await?;
//! if accounts.transfer(&transaction, &"alice", &"bob", 100).await?.is_ok() {
//!     transaction.commit().await?; // else it rolls back, and there was nothing to roll back
//! }
//! # Ok(())
//! # }
//! ```

use std::{fmt, marker::PhantomData};

use tokio_postgres::{
    GenericClient, Statement, ToStatement, Transaction,
    types::{FromSqlOwned, ToSql},
};

use super::{Outcome, Refusal};
use crate::update::{CompareAndSet, Edit, Found, MOST_CONFLICTS, Set, Shown, Update};

/// What the database said.
pub type PgResult<T> = Result<T, tokio_postgres::Error>;

/// A key of a row.
pub trait Key: ToSql + fmt::Debug + PartialEq + Sync {}
impl<K: ToSql + fmt::Debug + PartialEq + Sync> Key for K {}

/// Whole numbers of 64 bits in a column (`bigint`, not null) of a table, in rows named by another column that is unique.
///
/// Names of tables and columns are taken as they are, capitals included; `SCHEMA.TABLE` is a table in a schema. They are not
/// for what others typed in.
///
/// As it is made, it prepares a statement at each call, which costs round trips of its own. [`prepare`](Amounts::prepare) does that
/// once for a client.
#[derive(Clone, Debug)]
pub struct Amounts<S = String> {
    take: S,
    look: S,
    /// Of two rows, in the order of their keys.
    lock: S,
    change: S,
}

impl Amounts {
    /// The rows of `table`, with the columns for their key and their number.
    pub fn of(table: &str, key: &str, number: &str) -> Self {
        let (table, key, number) = (quoted_table(table), quoted(key), quoted(number));
        let take = format!(
            "UPDATE {table} SET {number} = {number} - $2::bigint WHERE {key} = $1 AND {number} >= $2::bigint \
             RETURNING {number}"
        );
        let look = format!("SELECT {number} FROM {table} WHERE {key} = $1");
        // What is locked first is read as it is then: in one statement with the change it could be seen as it was before.
        let lock = format!(
            "SELECT {key} = $1, {number} FROM {table} WHERE {key} = $1 OR {key} = $2 ORDER BY {key} FOR UPDATE"
        );
        let change = format!("UPDATE {table} SET {number} = {number} + $2::bigint WHERE {key} = $1");
        Self { take, look, lock, change }
    }

    /// The same with its statements prepared, for this client and its transactions alone: on another one they are unknown, and an
    /// `Err` of the server.
    pub async fn prepare<C: GenericClient>(&self, client: &C) -> PgResult<Amounts<Statement>> {
        let Self { take, look, lock, change } = self;
        Ok(Amounts {
            take: client.prepare(take).await?,
            look: client.prepare(look).await?,
            lock: client.prepare(lock).await?,
            change: client.prepare(change).await?,
        })
    }
}

impl<S: ToStatement + Send + Sync> Amounts<S> {
    /// Takes `amount` from a row's number, if it has as much; answers what is left. One statement; a second one finds out why not.
    ///
    /// # Cancel safety
    /// Outside of a transaction it may have been taken or not.
    pub async fn take<C: GenericClient>(&self, client: &C, key: &impl Key, amount: i64) -> PgResult<Outcome<i64>> {
        if amount <= 0 {
            return Ok(Err(Refusal::NotPositive { amount }));
        }
        for _ in 0..MOST_CONFLICTS {
            if let Some(row) = client.query_opt(&self.take, &[key, &amount]).await? {
                return Ok(Ok(row.try_get(0)?));
            }
            let Some(row) = client.query_opt(&self.look, &[key]).await? else {
                return Ok(Err(Refusal::Missing { what: format!("{key:?}") }));
            };
            let has = row.try_get(0)?;
            // Else somebody added to it between the two statements.
            if has < amount {
                return Ok(Err(Refusal::Insufficient { has }));
            }
        }
        Ok(Err(Refusal::Contended { conflicts: MOST_CONFLICTS }))
    }

    /// Moves `amount` from one row's number to another's; answers what is in both afterwards. Both rows are locked in the order of
    /// their keys, so that transfers that meet never wait for each other in a circle.
    ///
    /// # Cancel safety
    /// Nothing has happened before the transaction commits.
    pub async fn transfer<K: Key>(
        &self,
        transaction: &Transaction<'_>,
        from: &K,
        to: &K,
        amount: i64,
    ) -> PgResult<Outcome<(i64, i64)>> {
        if amount <= 0 {
            return Ok(Err(Refusal::NotPositive { amount }));
        }
        if from == to {
            return Ok(Err(Refusal::SameAccount));
        }
        let (mut has, mut gets) = (None, None);
        for row in transaction.query(&self.lock, &[from, to]).await? {
            let place = if row.try_get(0)? { &mut has } else { &mut gets };
            *place = Some(row.try_get::<_, i64>(1)?);
        }
        let missing = |key: &K| Ok(Err(Refusal::Missing { what: format!("{key:?}") }));
        let Some(has) = has else { return missing(from) };
        let Some(gets) = gets else { return missing(to) };
        if has < amount {
            return Ok(Err(Refusal::Insufficient { has }));
        }
        let Some(sum) = gets.checked_add(amount) else { return Ok(Err(Refusal::Overflow { has: gets })) };
        transaction.execute(&self.change, &[from, &-amount]).await?;
        transaction.execute(&self.change, &[to, &amount]).await?;
        Ok(Ok((has - amount, sum)))
    }
}

/// A column that is changed on condition of another one, which counts its versions (`bigint`, not null, 0 at first).
///
/// ```sql
/// CREATE TABLE documents (id bigint PRIMARY KEY, body text NOT NULL, version bigint NOT NULL DEFAULT 0);
/// ```
///
/// Like [`Amounts`], it prepares a statement at each call unless they were [prepared](Versioned::prepare) once for a client.
#[derive(Clone, Debug)]
pub struct Versioned<S = String> {
    read: S,
    write: S,
    remove: S,
    make: S,
}

impl Versioned {
    /// The rows of `table`, with the columns for their key, their value and its version. As for [`Amounts`], names are not for what
    /// others typed in.
    pub fn of(table: &str, key: &str, value: &str, version: &str) -> Self {
        let (table, key, value, version) = (quoted_table(table), quoted(key), quoted(value), quoted(version));
        Self {
            read: format!("SELECT {value}, {version} FROM {table} WHERE {key} = $1"),
            write: format!(
                "UPDATE {table} SET {value} = $2, {version} = {version} + 1 WHERE {key} = $1 AND {version} = $3"
            ),
            remove: format!("DELETE FROM {table} WHERE {key} = $1 AND {version} = $2"),
            make: format!(
                "INSERT INTO {table} ({key}, {value}, {version}) \
                 VALUES ($1, $2, extract(epoch FROM clock_timestamp()) * 1000000) ON CONFLICT DO NOTHING"
            ),
        }
    }

    /// The same with its statements prepared, for this client and its transactions alone, as [`Amounts::prepare`].
    pub async fn prepare<C: GenericClient>(&self, client: &C) -> PgResult<Versioned<Statement>> {
        let Self { read, write, remove, make } = self;
        Ok(Versioned {
            read: client.prepare(read).await?,
            write: client.prepare(write).await?,
            remove: client.prepare(remove).await?,
            make: client.prepare(make).await?,
        })
    }
}

impl<S: ToStatement + Send + Sync> Versioned<S> {
    /// One row, for [`CompareAndSet::update`]. The client, or a transaction, is yours; not one at `REPEATABLE READ` or above, which
    /// never sees the newer value. A row that is not there is made. Its first version is the time in microseconds: one that was removed
    /// and made again must not have a version that somebody has seen before.
    pub fn row<'a, T, C: GenericClient, K: Key>(&'a self, client: &'a C, key: &'a K) -> Row<'a, C, K, T, S> {
        Row { of: self, client, key, value: PhantomData }
    }

    /// Changes a row's value as `edit` says: [`CompareAndSet::update`] of [`row`](Self::row).
    ///
    /// # Errors
    /// The connection's or the server's.
    ///
    /// # Cancel safety
    /// Dropped, or after an `Err` of the connection, it may have written once or not: read to see.
    pub async fn update<C: GenericClient + Sync, T: FromSqlOwned + ToSql + Send + Sync>(
        &self,
        client: &C,
        key: &impl Key,
        edit: impl FnMut(Option<T>) -> Edit<T> + Send,
    ) -> PgResult<Update<T>> {
        self.row(client, key).update(edit).await
    }
}

/// A row of [`Versioned`], as [`CompareAndSet`].
#[derive(Debug)]
pub struct Row<'a, C, K, T, S = String> {
    of: &'a Versioned<S>,
    client: &'a C,
    key: &'a K,
    value: PhantomData<fn() -> T>,
}

impl<C, K, T, S> CompareAndSet for Row<'_, C, K, T, S>
where
    C: GenericClient + Sync,
    K: Key,
    T: FromSqlOwned + ToSql + Send + Sync,
    S: ToStatement + Send + Sync,
{
    type Value = T;
    /// The version; `None` for a row that is not there.
    type Seen = Option<i64>;
    type Error = tokio_postgres::Error;

    async fn read(&mut self) -> PgResult<Shown<T, Option<i64>>> {
        Ok(Ok(match self.client.query_opt(&self.of.read, &[self.key]).await? {
            Some(row) => Found { value: Some(row.try_get(0)?), seen: Some(row.try_get(1)?) },
            None => Found { value: None, seen: None },
        }))
    }

    async fn set(&mut self, seen: Option<i64>, new: Option<&T>) -> PgResult<Set<T, Option<i64>>> {
        let changed = match (seen, new) {
            (Some(seen), Some(new)) => self.client.execute(&self.of.write, &[self.key, new, &seen]).await?,
            (Some(seen), None) => self.client.execute(&self.of.remove, &[self.key, &seen]).await?,
            (None, Some(new)) => self.client.execute(&self.of.make, &[self.key, new]).await?,
            (None, None) => 1, // nothing is there, as is wanted
        };
        Ok(if changed == 1 { Set::Done } else { Set::Conflict(None) })
    }
}

pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `TABLE` or `SCHEMA.TABLE`.
pub(crate) fn quoted_table(name: &str) -> String {
    name.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

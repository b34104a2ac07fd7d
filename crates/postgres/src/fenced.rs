//! Tables of your own that refuse stale fences.
//!
//! A fenced table has a column with the newest fence that each row has seen. A trigger refuses an update that would set it
//! back, in the very statement that writes: `UPDATE orders SET …, fence = $fence WHERE id = $id` either carries the newest
//! fence or fails. A new holder first [advances](FencedTable::advance) the row to its fence, then reads, then writes; from
//! that step on whoever held before can change nothing.
//!
//! What the trigger cannot see: a statement that does not mention the column (it keeps the row's fence), and `DELETE`, which
//! needs `AND fence <= $fence` in its condition.

use std::fmt;

use fencepost_core::fence::Fence;
use tokio_postgres::{GenericClient, Row, error::SqlState};

use crate::{config::PostgresConfig, connection::Link, session::Parameter};
use fencepost_core::{
    clock::BootClock,
    error::{Error, ErrorKind, Operation},
};

/// The SQLSTATE by which the trigger refuses a stale fence.
pub const STALE_FENCE: &str = "FP002";

/// A table with a column for fences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedTable {
    schema: Option<String>,
    table: String,
    column: String,
}

/// Why a row was not advanced.
#[derive(Debug)]
pub enum Refused {
    /// The row has seen a newer fence: the lock was passed on, and nothing may be written under the old one.
    Stale {
        /// The newest that the row has seen.
        seen: u64,
    },
    /// There is no such row.
    Missing,
    /// The database said something else.
    Failed(tokio_postgres::Error),
}

impl FencedTable {
    /// `TABLE` or `SCHEMA.TABLE`, with the column `fence`. Names are taken as they are, capitals included.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for what cannot be a table's name.
    pub fn new(table: &str) -> Result<Self, Error> {
        let (schema, table) = match table.split_once('.') {
            Some((schema, table)) => (Some(named("schema", schema)?), table),
            None => (None, table),
        };
        Ok(Self { schema, table: named("table", table)?, column: "fence".to_owned() })
    }

    /// Another column.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for what cannot be a column's name.
    pub fn column(mut self, column: &str) -> Result<Self, Error> {
        self.column = named("column", column)?;
        Ok(self)
    }

    /// The SQL that adds the column and the trigger. It can be run again.
    pub fn script(&self) -> String {
        let function = self.beside("fencepost_refuse_stale_fence");
        include_str!("sql/fence_table.sql")
            .replace(":function", &function)
            .replace(":table", &self.beside(&self.table))
            .replace(":column", &quoted(&self.column))
            .replace(":argument", &format!("'{}'", self.column.replace('\'', "''")))
    }

    /// Makes a row see `fence`, and reads it after that: the first thing that a new holder does. `key` is the condition that
    /// names the row, with parameters from `$2` on, such as `id = $2`.
    ///
    /// # Errors
    /// [`Refused::Stale`] when the row has seen a newer one.
    ///
    /// # Cancel safety
    /// The row may be advanced or not; doing it again is safe.
    pub async fn advance<C: GenericClient>(
        &self,
        client: &C,
        key: &str,
        with: &[Parameter<'_>],
        fence: Fence,
    ) -> Result<Row, Refused> {
        let number = fence.get() as i64; // 63 bits
        let with: Vec<Parameter<'_>> = std::iter::once(&number as Parameter<'_>).chain(with.iter().copied()).collect();
        match client.query_opt(&self.advance_sql(key), &with).await {
            Ok(Some(row)) => return Ok(row),
            Err(error) => return Err(Refused::of(error)),
            Ok(None) => {}
        }
        let (column, table) = (quoted(&self.column), self.beside(&self.table));
        let seen = format!("SELECT {column} FROM {table} WHERE ({key}) AND $1::bigint IS NOT NULL");
        match client.query_opt(&seen, &with).await {
            Ok(Some(row)) => {
                let seen: Option<i64> = row.try_get(0).map_err(Refused::Failed)?;
                Err(Refused::Stale { seen: seen.and_then(|seen| u64::try_from(seen).ok()).unwrap_or_default() })
            }
            Ok(None) => Err(Refused::Missing),
            Err(error) => Err(Refused::Failed(error)),
        }
    }

    /// What [`advance`](FencedTable::advance) sends, for other clients: `$1` is the fence, and no row means stale or missing.
    pub fn advance_sql(&self, key: &str) -> String {
        let (column, table) = (quoted(&self.column), self.beside(&self.table));
        format!(
            "UPDATE {table} SET {column} = $1::bigint WHERE ({key}) AND coalesce({column}, 0) <= $1::bigint RETURNING *"
        )
    }

    fn beside(&self, name: &str) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quoted(schema), quoted(name)),
            None => quoted(name),
        }
    }
}

/// Adds the column and the trigger to a table, in the database that `config` names.
///
/// # Errors
/// As for [`PostgresStore::open`](crate::PostgresStore::open); [`ErrorKind::Misconfigured`] when there is no such table.
///
/// # Cancel safety
/// Safe: the server does all of it or nothing.
pub async fn fence_table(config: &PostgresConfig, table: &FencedTable) -> Result<(), Error> {
    let link = Link::new(config, BootClock::shared())?;
    let made = async { link.unversioned().await?.script(&format!("BEGIN;\n{}\nCOMMIT;", table.script())).await };
    made.await.map_err(|failure| failure.error(Operation::Update, None))
}

impl Refused {
    /// What became of a statement of your own on a fenced table.
    pub fn of(error: tokio_postgres::Error) -> Self {
        let told = error.as_db_error().filter(|told| *told.code() == SqlState::from_code(STALE_FENCE));
        match told.and_then(|told| told.detail()?.parse().ok()) {
            Some(seen) => Refused::Stale { seen },
            None => Refused::Failed(error),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Stale { seen } => write!(f, "the row has seen the newer fence {seen}: the lock was passed on"),
            Refused::Missing => f.write_str("there is no such row"),
            Refused::Failed(error) => write!(f, "the row could not be changed: {error}"),
        }
    }
}

impl std::error::Error for Refused {}

fn named(what: &str, name: &str) -> Result<String, Error> {
    if name.is_empty() || name.len() > 63 || name.chars().any(char::is_control) || name.contains('.') {
        let said = format!("the {what} has no name that PostgreSQL knows");
        return Err(Error::new(ErrorKind::InvalidInput, Operation::Parse, said)
            .not_applied()
            .advise("write TABLE or SCHEMA.TABLE, at most 63 bytes each"));
    }
    Ok(name.to_owned())
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

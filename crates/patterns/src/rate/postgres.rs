//! Rates in PostgreSQL: one row for each, in a table of your own.

use tokio_postgres::{GenericClient, Statement, ToStatement};

use super::{Decision, Rate};
use crate::atomic::postgres::{PgResult, quoted_table};

/// A table of rates, by key. It prepares a statement at each call unless they were [prepared](Rates::prepare) once for a client.
#[derive(Clone, Debug)]
pub struct Rates<S = String> {
    table: String,
    ask: S,
    look: S,
}

impl Rates {
    /// The rates in `table`; `SCHEMA.TABLE` is one in a schema.
    pub fn of(table: &str) -> Self {
        let table = quoted_table(table);
        // The clock is read once the row is ours: whoever waited for it comes after those he waited for.
        let due =
            "least(greatest(rates.due, clock_timestamp()), clock_timestamp() + $3::bigint * interval '1 microsecond')";
        let ask = format!(
            "INSERT INTO {table} AS rates (key, due) VALUES ($1, clock_timestamp() + $2::bigint * interval '1 microsecond')
             ON CONFLICT (key) DO UPDATE SET due = {due} + $2::bigint * interval '1 microsecond'
             WHERE {due} + ($2::bigint - $3::bigint) * interval '1 microsecond' <= clock_timestamp()
             RETURNING {MICROS_AHEAD}"
        );
        let look = format!("SELECT {MICROS_AHEAD} FROM {table} AS rates WHERE key = $1");
        Self { table, ask, look }
    }

    /// The same with its statements prepared, for this client and its transactions alone: on another one they are unknown, and an
    /// `Err` of the server.
    pub async fn prepare<C: GenericClient>(&self, client: &C) -> PgResult<Rates<Statement>> {
        let (ask, look) = (client.prepare(&self.ask).await?, client.prepare(&self.look).await?);
        Ok(Rates { table: self.table.clone(), ask, look })
    }
}

impl<S: ToStatement + Send + Sync> Rates<S> {
    /// The SQL that makes the table. It can be run again.
    pub fn script(&self) -> String {
        format!("CREATE TABLE IF NOT EXISTS {} (key text PRIMARY KEY, due timestamptz NOT NULL);\n", self.table)
    }

    /// Lets `count` through under this key, all or none. One statement; a second one finds out for how long not.
    ///
    /// Outside of a transaction: inside one, everybody who asks for the same key waits for its end.
    ///
    /// # Cancel safety
    /// Dropped, or after an `Err` of the connection, they may have been counted or not.
    pub async fn ask<C: GenericClient>(&self, client: &C, key: &str, rate: Rate, count: u32) -> PgResult<Decision> {
        if let Some(never) = rate.never(count) {
            return Ok(never);
        }
        let cost = rate.interval_micros() * i64::from(count);
        let ahead = rate.ahead_micros();
        if let Some(row) = client.query_opt(&self.ask, &[&key, &cost, &ahead]).await? {
            return Ok(rate.decide(true, (ahead - row.try_get::<_, i64>(0)?).max(0)));
        }
        let now_ahead = client.query_opt(&self.look, &[&key]).await?.map(|row| row.try_get::<_, i64>(0)).transpose()?;
        Ok(rate.decide(false, (now_ahead.unwrap_or_default().min(ahead) + cost - ahead).max(1)))
    }
}

const MICROS_AHEAD: &str = "(extract(epoch FROM rates.due - clock_timestamp()) * 1000000)::bigint";

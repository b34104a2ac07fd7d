//! Cells: rows that change on condition of their version, as `sql/cells.sql` describes.

use std::time::Duration;

use fencepost_core::{
    cells::{Cell, Cells, Change, Changed, Expected, Version},
    error::{Error, Operation},
    name::LockName,
    store::BoxFuture,
};
use tokio_postgres::Row;

use crate::{
    failure::Failure,
    record,
    room::{Hearing, LOOK_EVERY, POLL_EVERY},
    session::Parameter,
    store::PostgresStore,
    transaction::advisory_key,
};

impl PostgresStore {
    async fn look_at(&self, key: &LockName) -> Result<Option<Cell>, Failure> {
        let link = &self.room.link;
        let rows = link.call(&link.statements.look_at_cell, &[&self.room.namespace.as_str(), &key.as_str()]).await?;
        rows.first().map(|row| parsed(row).ok_or_else(Failure::puzzling)).transpose()
    }

    async fn change_cell(&self, change: &Change) -> Result<Changed, Failure> {
        let room = &self.room;
        let (namespace, key, mark) = (room.namespace.as_str(), change.key.as_str(), self.mark(&change.key));
        let expected = match change.expected {
            Expected::Absent => None,
            // A version that does not fit was never one of ours, and meets none.
            Expected::Version(version) => Some(i64::try_from(version.0).unwrap_or(-1)),
        };
        let (by, value) = (change.by.as_bytes().as_slice(), change.value.as_deref());
        let ttl = change.ttl.map(record::ttl);
        let with: [Parameter<'_>; 7] = [&namespace, &key, &by, &expected, &value, &ttl, &mark];
        // Not repeated: if another has changed the cell after the first try, the second would find a plain conflict, and the caller
        // would make the same change again on top of it. Whoever repeats it must know that an answer was lost.
        let rows = room.link.call_once(&room.link.statements.change_cell, &with).await?;
        let answer = || {
            let row = rows.first()?;
            let version: Option<i64> = row.try_get("version").ok()?;
            Some(match (row.try_get("done").ok()?, version) {
                (true, version) => Changed::Done(self::version(version?)?),
                (false, None) => Changed::Conflict(None),
                (false, Some(_)) => Changed::Conflict(Some(parsed(row)?)),
            })
        };
        answer().ok_or_else(Failure::puzzling)
    }

    async fn until_changed(&self, key: &LockName, seen: Option<Version>) -> Result<(), Failure> {
        let room = &self.room;
        let listening = room.cells.listen(self.mark(key));
        loop {
            let rung = listening.rung();
            tokio::pin!(rung);
            rung.as_mut().enable(); // first listen, then look (W1)
            let pause = if self.hear_cells().await? { LOOK_EVERY } else { POLL_EVERY };
            let found = self.look_at(key).await?;
            if found.as_ref().map(|cell| cell.version) != seen {
                return Ok(());
            }
            let left = found.and_then(|cell| cell.expires_in);
            tokio::select! {
                () = rung => return Ok(()),
                () = room.rest(left.map_or(pause, |left| left.min(pause))) => {}
            }
        }
    }

    /// Whether messages about cells come, from now on if they did not. Where they do not, or not now, it is asked again and
    /// again.
    async fn hear_cells(&self) -> Result<bool, Failure> {
        let room = &self.room;
        let hears = matches!(room.hearing().await, Ok(Hearing::Messages));
        match room.session().filter(|_| hears) {
            Some(session) => {
                room.link.in_time(session.hear_cells(&room.link.statements.hear_cells)).await.map(|()| true)
            }
            None => Ok(false),
        }
    }

    /// What tells the cell in messages, which everybody in the database can hear.
    fn mark(&self, key: &LockName) -> String {
        format!("{:016x}", advisory_key(&self.room.namespace, key))
    }
}

impl Cells for PostgresStore {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        Box::pin(async move { self.look_at(key).await.map_err(|failure| told(&failure, key)) })
    }

    fn change<'a>(&'a self, change: &'a Change) -> BoxFuture<'a, Result<Changed, Error>> {
        Box::pin(async move { self.change_cell(change).await.map_err(|failure| told(&failure, &change.key)) })
    }

    fn changed<'a>(&'a self, key: &'a LockName, seen: Option<Version>) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.until_changed(key, seen).await.map_err(|failure| told(&failure, key)) })
    }
}

fn told(failure: &Failure, key: &LockName) -> Error {
    failure.error(Operation::Update, Some(key))
}

fn parsed(row: &Row) -> Option<Cell> {
    let value: &[u8] = row.try_get("value").ok()?;
    let left: Option<i64> = row.try_get("left_ms").ok()?;
    Some(Cell {
        value: value.into(),
        version: version(row.try_get("version").ok()?)?,
        by: record::owner(row.try_get("writer").ok()?)?,
        expires_in: left.map(record::millis).map(|left| left.max(Duration::from_millis(1))),
    })
}

fn version(number: i64) -> Option<Version> {
    u64::try_from(number).ok().map(Version)
}

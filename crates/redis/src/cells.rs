//! Cells: values that change on condition of their version. Their layout is described in `scripts/cell.lua`.

use std::time::Duration;

use fencepost_core::{
    cells::{Cell, Cells, Change, Changed, Expected, Version},
    error::{Error, Operation},
    name::LockName,
    owner::Owner,
    store::BoxFuture,
};
use redis::Value;

use crate::{failure::Failure, room::Hearing, store::RedisStore};

/// How often a client says again that it listens; `scripts/cell.lua` lets it count for five times as long.
const LISTEN_EVERY: Duration = Duration::from_secs(2);
/// The same where messages are forbidden: the cell is looked at this often.
const POLL_EVERY: Duration = Duration::from_millis(200);
/// Where the value begins.
const HEADER: usize = 58;

impl RedisStore {
    async fn look_at(&self, key: &LockName, channel: &str) -> Result<Option<Cell>, Failure> {
        let room = self.room();
        let answer = room.nodes.call(&room.scripts.look_at_cell, &room.keys.cell(key), &[channel]).await?;
        match &answer {
            Value::Array(parts) => match &parts[..] {
                [cell, left] => parsed(cell, left),
                _ => Err(Failure::puzzling()),
            },
            _ => Err(Failure::puzzling()),
        }
    }

    async fn change_cell(&self, change: &Change) -> Result<Changed, Failure> {
        let room = self.room();
        let by = change.by.to_string();
        let expected = match change.expected {
            Expected::Absent => "-".to_owned(),
            Expected::Version(version) => format!("{:016}", version.0),
        };
        let how = if change.value.is_some() { "write" } else { "remove" };
        let ttl = change.ttl.map_or(0, |ttl| ttl.millis()).to_string();
        let value = change.value.as_deref().unwrap_or_default();
        let arguments = [by.as_bytes(), expected.as_bytes(), how.as_bytes(), ttl.as_bytes(), value];
        // Not repeated here: another may have changed the cell since, and whoever is told of a conflict would change it twice.
        let keys = room.keys.cell(&change.key);
        let answer = room.nodes.call_unrepeated(&room.scripts.change_cell, &keys, &arguments).await?;
        match &answer {
            Value::Array(parts) => match &parts[..] {
                [Value::BulkString(done), Value::BulkString(version)] if done == b"done" => {
                    // A removal that is repeated after it was applied finds no version to speak of.
                    Ok(Changed::Done(number(version).ok_or_else(Failure::puzzling)?))
                }
                [Value::BulkString(conflict), cell, left] if conflict == b"conflict" => {
                    Ok(Changed::Conflict(parsed(cell, left)?))
                }
                _ => Err(Failure::puzzling()),
            },
            _ => Err(Failure::puzzling()),
        }
    }

    async fn until_changed(&self, key: &LockName, seen: Option<Version>) -> Result<(), Failure> {
        let room = self.room();
        let hearing = room.hearing().await?;
        let mark = sha1_smol::Sha1::from(&room.keys.cell(key)[0]).hexdigest();
        let listening = room.cells.listen(mark);
        let (channel, pause) = match hearing {
            Hearing::Polling => ("", POLL_EVERY),
            Hearing::Messages | Hearing::Deaf => (room.channel.as_str(), LISTEN_EVERY),
        };
        loop {
            let rung = listening.rung();
            tokio::pin!(rung);
            rung.as_mut().enable(); // first listen, then look (W1)
            let found = self.look_at(key, channel).await?;
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
}

impl Cells for RedisStore {
    fn read<'a>(&'a self, key: &'a LockName) -> BoxFuture<'a, Result<Option<Cell>, Error>> {
        Box::pin(async move { self.look_at(key, "").await.map_err(|failure| told(&failure, key)) })
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

fn parsed(cell: &Value, left: &Value) -> Result<Option<Cell>, Failure> {
    let (Value::BulkString(text), Value::Int(left)) = (cell, left) else {
        return if *cell == Value::Nil { Ok(None) } else { Err(Failure::puzzling()) };
    };
    let part = |range| text.get(range);
    let by = part(2..42).and_then(|by| std::str::from_utf8(by).ok()?.parse::<Owner>().ok());
    let version = part(42..HEADER).and_then(number);
    match (by, version, text.get(HEADER..)) {
        (Some(by), Some(version), Some(value)) => Ok(Some(Cell {
            value: value.into(),
            version,
            by,
            expires_in: u64::try_from(*left).ok().map(Duration::from_millis),
        })),
        _ => Err(Failure::puzzling()),
    }
}

fn number(digits: &[u8]) -> Option<Version> {
    std::str::from_utf8(digits).ok()?.parse().ok().map(Version)
}

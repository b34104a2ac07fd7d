//! Compare and set on string keys: read, think, and write if nothing has changed meanwhile.

use std::{sync::LazyLock, time::Duration};

use fencepost_core::{
    backoff::Backoff,
    clock::{self, BootClock},
};
use redis::{
    Client, RedisResult, Script, ToRedisArgs,
    aio::{ConnectionLike, MultiplexedConnection},
};

use super::{
    super::{Edit, MOST_CONFLICTS, Outcome, Updated},
    slots,
};

static COMPARE_AND_SET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../scripts/compare_and_set.lua")));

/// What keys hold, in their order; `None` for one that is not there.
pub type Values = Vec<Option<Vec<u8>>>;

/// By a script that compares the values themselves: on any connection, shared or not. Each try sends the old values and the
/// new ones. A value that was changed and changed back counts as unchanged. Keys keep the end of their life (`SET … KEEPTTL`), which
/// needs Redis 6.0 or later.
#[derive(Debug)]
pub struct Scripted<'a, C> {
    connection: &'a mut C,
    in_a_cluster: bool,
}

/// By `WATCH`, `MULTI` and `EXEC`, on a connection of its own, since what it watches belongs to the connection: for values that are
/// too long to be sent twice. It needs Redis 6.0 or later, as [`Scripted`] does.
#[derive(Debug)]
pub struct Watching(MultiplexedConnection);

impl<'a, C: ConnectionLike> Scripted<'a, C> {
    /// Keys of this connection's server.
    pub fn on(connection: &'a mut C) -> Self {
        Self { connection, in_a_cluster: false }
    }

    /// Refuses keys of different slots before anything is sent.
    pub fn in_a_cluster(mut self) -> Self {
        self.in_a_cluster = true;
        self
    }

    /// Changes the keys as `edit` says, all of them or none. It is called again with the newer values whenever another was
    /// faster, after a pause that grows and is random, up to [`MOST_CONFLICTS`] times.
    ///
    /// # Cancel safety
    /// Dropped, or after an `Err` of the connection, it may have written once or not: read to see.
    ///
    /// # Panics
    /// When `edit` answers another number of values than there are keys.
    pub async fn update(
        &mut self,
        keys: &[&str],
        mut edit: impl FnMut(&[Option<Vec<u8>>]) -> Edit<Values>,
    ) -> RedisResult<Outcome<Updated<Values>>> {
        if let Some(refusal) = self.in_a_cluster.then(|| slots::together(keys)).and_then(Result::err) {
            return Ok(Err(refusal));
        }
        let mut pauses = pauses();
        for conflicts in 0..MOST_CONFLICTS {
            let old: Values = redis::cmd("MGET").arg(keys).query_async(self.connection).await?;
            let Edit::Write(new) = edit(&old) else { return Ok(Ok(Updated::Left)) };
            assert_eq!(new.len(), keys.len(), "one value for each key");
            let mut call = COMPARE_AND_SET.prepare_invoke();
            for ((key, old), new) in keys.iter().zip(&old).zip(&new) {
                call.key(*key).arg(told(old)).arg(told(new));
            }
            if call.invoke_async::<bool>(self.connection).await? {
                return Ok(Ok(Updated::Written { value: new, conflicts }));
            }
            clock::sleep(&BootClock, pauses.pause()).await;
        }
        Ok(Ok(Updated::Contended { conflicts: MOST_CONFLICTS }))
    }
}

/// A value that is there, or none, so that the two cannot be confused.
fn told(value: &Option<Vec<u8>>) -> impl ToRedisArgs + use<> {
    match value {
        Some(value) => [b"+", value.as_slice()].concat(),
        None => b"-".to_vec(),
    }
}

impl Watching {
    /// A connection of its own.
    ///
    /// # Errors
    /// When the server cannot be reached.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn open(client: &Client) -> RedisResult<Self> {
        client.get_multiplexed_async_connection().await.map(Self)
    }

    /// As [`Scripted::update`]. A value that was written again counts as changed, also when it is the same.
    ///
    /// # Cancel safety
    /// As for [`Scripted::update`].
    ///
    /// # Panics
    /// As [`Scripted::update`].
    pub async fn update(
        &mut self,
        keys: &[&str],
        mut edit: impl FnMut(&[Option<Vec<u8>>]) -> Edit<Values>,
    ) -> RedisResult<Updated<Values>> {
        let mut pauses = pauses();
        for conflicts in 0..MOST_CONFLICTS {
            // What an update that was dropped still watches would be a conflict for nothing.
            let mut watch = redis::pipe();
            watch.cmd("UNWATCH").ignore().cmd("WATCH").arg(keys).ignore().cmd("MGET").arg(keys);
            let (old,): (Values,) = watch.query_async(&mut self.0).await?;
            let Edit::Write(new) = edit(&old) else {
                let () = redis::cmd("UNWATCH").query_async(&mut self.0).await?;
                return Ok(Updated::Left);
            };
            assert_eq!(new.len(), keys.len(), "one value for each key");
            let mut write = redis::pipe();
            write.atomic();
            for ((key, _), new) in keys.iter().zip(&old).zip(&new).filter(|((_, old), new)| old != new) {
                match new {
                    Some(new) => write.cmd("SET").arg(key).arg(new).arg("KEEPTTL").ignore(),
                    None => write.cmd("DEL").arg(key).ignore(),
                };
            }
            // Also when nothing is to be written, so that the answer says whether it was still so.
            write.cmd("ECHO").arg("done");
            if write.query_async::<Option<Vec<String>>>(&mut self.0).await?.is_some() {
                return Ok(Updated::Written { value: new, conflicts });
            }
            clock::sleep(&BootClock, pauses.pause()).await;
        }
        Ok(Updated::Contended { conflicts: MOST_CONFLICTS })
    }
}

fn pauses() -> Backoff {
    Backoff::new(Duration::from_micros(200), Duration::from_millis(20))
}

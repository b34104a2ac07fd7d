//! Compare and set on string keys: read, think, and write if nothing has changed meanwhile.

use std::{future::Future, sync::LazyLock};

use redis::{
    Client, RedisResult, Script, ToRedisArgs,
    aio::{ConnectionLike, MultiplexedConnection},
};

use super::{
    super::{Outcome, Refusal},
    slots,
};
use crate::update::{CompareAndSet, Edit, Found, Set, Shown, Update};

static COMPARE_AND_SET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("../../scripts/compare_and_set.lua")));

/// What keys hold, in their order; `None` for one that is not there.
pub type Values = Vec<Option<Vec<u8>>>;

/// By a script that compares the values themselves: on any connection, shared or not. Each try sends the old values and the
/// new ones. A value that was changed and changed back counts as unchanged. Keys keep the end of their life (`SET … KEEPTTL`), which
/// needs Redis 6.0 or later.
///
/// ```no_run
/// # async fn example(mut redis: redis::aio::MultiplexedConnection) -> redis::RedisResult<()> {
/// use fencepost_patterns::{atomic::redis::Scripted, update::{CompareAndSet, Edit, Update}};
///
/// let mut motto = Scripted::on(&mut redis).key("motto");
/// let updated = motto.update(|old| match old {
///     None => Edit::Write(b"first come, first served".to_vec()),
///     Some(_) => Edit::Leave,
/// });
/// assert!(matches!(updated.await?, Update::Written { .. } | Update::Left));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Scripted<'a, C> {
    connection: &'a mut C,
    in_a_cluster: bool,
}

/// By `WATCH`, `MULTI` and `EXEC`, on a connection of its own, since what it watches belongs to the connection: for values that are
/// too long to be sent twice. A value that was written again counts as changed, also when it is the same. It needs Redis 6.0 or
/// later, as [`Scripted`] does.
#[derive(Debug)]
pub struct Watching {
    connection: MultiplexedConnection,
    in_a_cluster: bool,
}

/// One key, as [`CompareAndSet`]. Made by [`Scripted::key`] and [`Watching::key`].
#[derive(Debug)]
pub struct Key<W> {
    by: W,
    key: [String; 1],
}

impl<'a, C: ConnectionLike + Send> Scripted<'a, C> {
    /// Keys of this connection's server.
    pub fn on(connection: &'a mut C) -> Self {
        Self { connection, in_a_cluster: false }
    }

    /// Refuses keys of different slots before anything is sent. The connection goes to the master that has the slot.
    pub fn in_a_cluster(mut self) -> Self {
        self.in_a_cluster = true;
        self
    }

    /// One key, for [`CompareAndSet::update`].
    pub fn key(self, key: &str) -> Key<Self> {
        Key { by: self, key: [key.to_owned()] }
    }

    /// Changes several keys as `edit` says, all of them or none: [`CompareAndSet::update`] for more than one. To
    /// [remove](Edit::Remove) removes all of them; one is removed by `None` in its place.
    ///
    /// # Errors
    /// The connection's or the server's.
    ///
    /// # Cancel safety
    /// Dropped, or after an `Err` of the connection, it may have written once or not: read to see.
    ///
    /// # Panics
    /// When `edit` answers another number of values than there are keys.
    pub async fn update(
        &mut self,
        keys: &[&str],
        edit: impl FnMut(Values) -> Edit<Values> + Send,
    ) -> RedisResult<Update<Values>> {
        together(self, keys, edit).await
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
        client.get_multiplexed_async_connection().await.map(Self::over)
    }

    /// Over a connection that nobody else uses.
    pub fn over(connection: MultiplexedConnection) -> Self {
        Self { connection, in_a_cluster: false }
    }

    /// As [`Scripted::in_a_cluster`].
    pub fn in_a_cluster(mut self) -> Self {
        self.in_a_cluster = true;
        self
    }

    /// One key, for [`CompareAndSet::update`].
    pub fn key(&mut self, key: &str) -> Key<&mut Self> {
        Key { by: self, key: [key.to_owned()] }
    }

    /// As [`Scripted::update`].
    ///
    /// # Errors
    /// As for [`Scripted::update`].
    ///
    /// # Cancel safety
    /// As for [`Scripted::update`].
    ///
    /// # Panics
    /// As [`Scripted::update`].
    pub async fn update(
        &mut self,
        keys: &[&str],
        edit: impl FnMut(Values) -> Edit<Values> + Send,
    ) -> RedisResult<Update<Values>> {
        together(self, keys, edit).await
    }
}

/// How keys are read, and written on condition. Only for what is in this file.
#[doc(hidden)]
pub trait Ways: Send {
    /// What they are sent over.
    type Connection: ConnectionLike + Send;
    /// Its connection, and whether keys of different slots are refused.
    fn connection(&mut self) -> (&mut Self::Connection, bool);
    /// What the keys hold.
    fn get(&mut self, keys: &[String]) -> impl Future<Output = RedisResult<Values>> + Send;
    /// Whether it was written.
    fn put(&mut self, keys: &[String], old: &Values, new: &Values) -> impl Future<Output = RedisResult<bool>> + Send;
}

impl<C: ConnectionLike + Send> Ways for Scripted<'_, C> {
    type Connection = C;

    fn connection(&mut self) -> (&mut C, bool) {
        (self.connection, self.in_a_cluster)
    }

    async fn get(&mut self, keys: &[String]) -> RedisResult<Values> {
        redis::cmd("MGET").arg(keys).query_async(self.connection).await
    }

    async fn put(&mut self, keys: &[String], old: &Values, new: &Values) -> RedisResult<bool> {
        let mut call = COMPARE_AND_SET.prepare_invoke();
        for ((key, old), new) in keys.iter().zip(old).zip(new) {
            call.key(key).arg(told(old)).arg(told(new));
        }
        call.invoke_async(self.connection).await
    }
}

/// A value that is there, or none, so that the two cannot be confused.
fn told(value: &Option<Vec<u8>>) -> impl ToRedisArgs + use<> {
    match value {
        Some(value) => [b"+", value.as_slice()].concat(),
        None => b"-".to_vec(),
    }
}

impl Ways for Watching {
    type Connection = MultiplexedConnection;

    fn connection(&mut self) -> (&mut MultiplexedConnection, bool) {
        (&mut self.connection, self.in_a_cluster)
    }

    async fn get(&mut self, keys: &[String]) -> RedisResult<Values> {
        // What an update that wrote nothing still watches would be a conflict for nothing.
        let mut watch = redis::pipe();
        watch.cmd("UNWATCH").ignore().cmd("WATCH").arg(keys).ignore().cmd("MGET").arg(keys);
        let (values,) = watch.query_async(&mut self.connection).await?;
        Ok(values)
    }

    async fn put(&mut self, keys: &[String], old: &Values, new: &Values) -> RedisResult<bool> {
        let mut write = redis::pipe();
        write.atomic();
        for ((key, _), new) in keys.iter().zip(old).zip(new).filter(|((_, old), new)| old != new) {
            match new {
                Some(new) => write.cmd("SET").arg(key).arg(new).arg("KEEPTTL").ignore(),
                None => write.cmd("DEL").arg(key).ignore(),
            };
        }
        // Also when nothing is to be written, so that the answer says whether it was still so.
        write.cmd("ECHO").arg("done");
        Ok(write.query_async::<Option<Vec<String>>>(&mut self.connection).await?.is_some())
    }
}

impl<W: Ways> Ways for &mut W {
    type Connection = W::Connection;

    fn connection(&mut self) -> (&mut W::Connection, bool) {
        W::connection(self)
    }

    fn get(&mut self, keys: &[String]) -> impl Future<Output = RedisResult<Values>> + Send {
        W::get(self, keys)
    }

    fn put(&mut self, keys: &[String], old: &Values, new: &Values) -> impl Future<Output = RedisResult<bool>> + Send {
        W::put(self, keys, old, new)
    }
}

async fn together<W: Ways>(
    by: &mut W,
    keys: &[&str],
    mut edit: impl FnMut(Values) -> Edit<Values> + Send,
) -> RedisResult<Update<Values>> {
    let keys: Vec<_> = keys.iter().map(|key| (*key).to_owned()).collect();
    let count = keys.len();
    let edited = |old: Option<Values>| {
        let edit = edit(old.unwrap_or_else(|| vec![None; count]));
        assert!(!matches!(&edit, Edit::Write(new) if new.len() != count), "one value for each key");
        edit
    };
    Together { by, keys }.update(edited).await
}

/// What the keys hold, if they lie together and hold strings.
async fn shown<W: Ways>(by: &mut W, keys: &[String]) -> RedisResult<Outcome<Values>> {
    let (_, in_a_cluster) = by.connection();
    if let Some(refusal) = in_a_cluster.then(|| slots::together(keys)).and_then(Result::err) {
        return Ok(Err(refusal));
    }
    let values = by.get(keys).await?;
    // MGET answers alike for what is not there and for what is no string, over which SET would write.
    for (key, _) in keys.iter().zip(&values).filter(|(_, value)| value.is_none()) {
        let (connection, _) = by.connection();
        let holds: String = redis::cmd("TYPE").arg(key).query_async(connection).await?;
        if !["none", "string"].contains(&holds.as_str()) {
            return Ok(Err(Refusal::WrongType { what: key.clone(), holds }));
        }
    }
    Ok(Ok(values))
}

/// Several keys as one value, which is always there.
struct Together<'a, W> {
    by: &'a mut W,
    keys: Vec<String>,
}

impl<W: Ways> CompareAndSet for Together<'_, W> {
    type Value = Values;
    type Seen = Values;
    type Error = redis::RedisError;

    async fn read(&mut self) -> RedisResult<Shown<Values, Values>> {
        let values = shown(self.by, &self.keys).await?;
        Ok(values.map(|seen| Found { value: Some(seen.clone()), seen }))
    }

    async fn set(&mut self, seen: Values, new: Option<&Values>) -> RedisResult<Set<Values, Values>> {
        let none = vec![None; self.keys.len()];
        let done = self.by.put(&self.keys, &seen, new.unwrap_or(&none)).await?;
        Ok(if done { Set::Done } else { Set::Conflict(None) })
    }
}

impl<W: Ways> CompareAndSet for Key<W> {
    type Value = Vec<u8>;
    type Seen = Values;
    type Error = redis::RedisError;

    async fn read(&mut self) -> RedisResult<Shown<Vec<u8>, Values>> {
        let values = shown(&mut self.by, &self.key).await?;
        Ok(values.map(|seen| Found { value: seen.first().cloned().flatten(), seen }))
    }

    async fn set(&mut self, seen: Values, new: Option<&Vec<u8>>) -> RedisResult<Set<Vec<u8>, Values>> {
        let done = self.by.put(&self.key, &seen, &vec![new.cloned()]).await?;
        Ok(if done { Set::Done } else { Set::Conflict(None) })
    }
}

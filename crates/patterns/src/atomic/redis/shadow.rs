//! A key that is built beside and put in its place in one step.

use std::{sync::LazyLock, time::Duration};

use fencepost_core::owner::Owner;
use redis::{Pipeline, RedisError, RedisResult, Script, aio::ConnectionLike};

use crate::keys::beside;

static SWAP: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../scripts/swap.lua")));

/// How long a shadow outlives the last write to it: one that was abandoned goes after that.
pub const SHADOW_LASTS: Duration = Duration::from_secs(3600);

/// A key of any type that is built beside another and takes its place in one step: readers see the old content or the new, never
/// half, and never none.
///
/// It lies in the slot of the other. Whoever dies while he builds leaves a key that expires [`SHADOW_LASTS`] after its last write.
/// Of two who build at the same time, the one who publishes last wins.
///
/// ```no_run
/// # async fn example(mut redis: redis::aio::MultiplexedConnection) -> redis::RedisResult<()> {
/// use fencepost_patterns::atomic::redis::Shadow;
///
/// let shadow = Shadow::of("prices")?;
/// for part in ["apples", "pears"] {
///     shadow.write(&mut redis, |pipeline, key| { pipeline.hset(key, part, 3); }).await?;
/// }
/// assert!(shadow.publish(&mut redis).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Shadow {
    /// Whose place it takes.
    of: String,
    key: String,
}

impl Shadow {
    /// A new shadow of this key.
    ///
    /// # Errors
    /// When the key's braces allow no other key in its slot, or the system has no randomness.
    pub fn of(key: &str) -> RedisResult<Self> {
        let random = Owner::random().map_err(|error| {
            RedisError::from((redis::ErrorKind::Client, "no name for the shadow", error.to_string()))
        })?;
        Ok(Self { of: key.to_owned(), key: beside(key, &format!("shadow:{random}"))? })
    }

    /// The shadow's own key, for reading what was written so far.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Writes to the shadow: `fill` adds commands that name the key it is given. They are carried out together, and the shadow
    /// lasts [`SHADOW_LASTS`] from then on.
    ///
    /// # Cancel safety
    /// They may have been carried out or not.
    pub async fn write<C: ConnectionLike>(
        &self,
        connection: &mut C,
        fill: impl FnOnce(&mut Pipeline, &str),
    ) -> RedisResult<()> {
        let mut pipeline = redis::pipe();
        pipeline.atomic();
        fill(&mut pipeline, &self.key);
        pipeline.cmd("EXPIRE").arg(&self.key).arg(SHADOW_LASTS.as_secs());
        pipeline.query_async::<Vec<redis::Value>>(connection).await.map(drop)
    }

    /// Puts the shadow in the key's place, without an end of its life. `false` when there is nothing to put there: nothing was
    /// written, or the last write is longer ago than [`SHADOW_LASTS`].
    ///
    /// # Cancel safety
    /// It may be in its place or not. Done again after it was put there, it answers `false`.
    pub async fn publish<C: ConnectionLike>(&self, connection: &mut C) -> RedisResult<bool> {
        SWAP.key(&self.key).key(&self.of).invoke_async(connection).await
    }

    /// Removes the shadow without waiting for its end.
    ///
    /// # Cancel safety
    /// It may be removed or not; then it goes by itself.
    pub async fn discard<C: ConnectionLike>(self, connection: &mut C) -> RedisResult<()> {
        redis::cmd("DEL").arg(&self.key).query_async(connection).await
    }
}

//! Redis keys that check fences.

use std::sync::LazyLock;

use fencepost_core::fence::Fence;
use redis::{ErrorKind, FromRedisValue, RedisError, Script, ToRedisArgs, Value, aio::ConnectionLike};

use super::Refused;
use crate::keys::beside;

static CALL: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../scripts/fenced_call.lua")));

/// Keys that refuse commands under an older fence than they have seen.
///
/// A key's newest fence lies in a key beside it, in the same slot of a cluster: `{KEY}:fence`, or `KEY:fence` where the key has
/// a hash tag. It does not expire and must not be removed. One script compares and writes.
///
/// Redis answers before a write is on the disk or on a replica, unless it is told otherwise (`appendfsync always`, `WAIT`): a
/// failover can lose the newest fence together with the writes under it. So the fence orders the holders of a lock on one
/// server; it does not bring back what the server lost. The fence itself must come from a store for correctness.
///
/// ```no_run
/// # async fn example(mut redis: redis::aio::MultiplexedConnection, fence: fencepost_core::fence::Fence)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// use fencepost_patterns::fenced::FencedKeys;
///
/// let mut keys = FencedKeys::on(&mut redis);
/// let stock: Option<u64> = keys.advance("stock:4711", fence).await?; // first
/// let () = keys.call("stock:4711", fence, "SET", stock.unwrap_or(10) - 1).await?;
/// let () = keys.call("orders:4711", fence, "RPUSH", &["one", "two"]).await?; // any command on that key
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct FencedKeys<'a, C>(&'a mut C);

impl<'a, C: ConnectionLike> FencedKeys<'a, C> {
    /// Keys of this connection's server.
    pub fn on(connection: &'a mut C) -> Self {
        Self(connection)
    }

    /// Makes a string's key see `fence`, and reads it after that: the first thing that a new holder does.
    ///
    /// # Errors
    /// [`Refused::Stale`] when it has seen a newer one; [`Refused::Failed`] with `WRONGTYPE` for a key of another type, which has
    /// been advanced by then.
    ///
    /// # Cancel safety
    /// The key may have been advanced; doing it again is safe.
    pub async fn advance<T: FromRedisValue>(&mut self, key: &str, fence: Fence) -> Result<T, Refused<RedisError>> {
        self.call(key, fence, "GET", &[] as &[&str]).await
    }

    /// Runs one command on the key: `command KEY arguments…`. Commands of several keys are not for this; the others would be
    /// written unchecked.
    ///
    /// # Errors
    /// [`Refused::Stale`] when the key has seen a newer fence. When the command itself is refused, for instance with
    /// `WRONGTYPE`, nothing was written, and the key has seen the fence.
    ///
    /// # Cancel safety
    /// It may have been run or not. What is not safe to repeat, such as `INCR`, should become a `SET` of what was read.
    pub async fn call<T: FromRedisValue>(
        &mut self,
        key: &str,
        fence: Fence,
        command: &str,
        arguments: impl ToRedisArgs,
    ) -> Result<T, Refused<RedisError>> {
        let record = beside(key, "fence")?;
        let mut call = CALL.prepare_invoke();
        call.key(key).key(record).arg(fence.get()).arg(command).arg(arguments);
        let mut reply: Vec<Value> = call.invoke_async(self.0).await?;
        let said = if reply.len() > 1 { reply.remove(1) } else { Value::Nil };
        match reply.first() {
            Some(Value::Int(1)) => Ok(redis::from_redis_value(said).map_err(RedisError::from)?),
            _ => {
                let seen: u64 = redis::from_redis_value(said).map_err(RedisError::from)?;
                let foreign =
                    || RedisError::from((ErrorKind::UnexpectedReturnType, "the key's newest fence is no fence"));
                Err(Refused::Stale { seen: Fence::new(seen).ok_or_else(foreign)? })
            }
        }
    }
}

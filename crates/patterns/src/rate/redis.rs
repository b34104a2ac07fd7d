//! Rates in Redis: one key for each.

use std::sync::LazyLock;

use redis::{RedisResult, Script, aio::ConnectionLike};

use super::{Decision, Rate};

static RATE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../scripts/rate.lua")));

/// Lets `count` through under this key, all or none. The key expires when nothing of it is left to remember.
///
/// # Cancel safety
/// Dropped, or after an `Err` of the connection, they may have been counted or not.
pub async fn ask<C: ConnectionLike>(connection: &mut C, key: &str, rate: Rate, count: u32) -> RedisResult<Decision> {
    if let Some(never) = rate.never(count) {
        return Ok(never);
    }
    let (interval, ahead) = (rate.interval_micros(), rate.ahead_micros());
    let (through, micros): (bool, i64) =
        RATE.key(key).arg(interval).arg(ahead).arg(count).invoke_async(connection).await?;
    Ok(rate.decide(through, micros))
}

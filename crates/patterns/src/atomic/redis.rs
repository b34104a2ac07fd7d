//! Atomic changes of Redis keys.
//!
//! ```no_run
//! # async fn example(mut redis: redis::aio::MultiplexedConnection) -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost_patterns::atomic::{Refusal, redis::Amounts};
//!
//! let mut amounts = Amounts::on(&mut redis);
//! match amounts.take("stock:4711", 1).await? {
//!     Ok(left) => println!("sold, {left} left"),
//!     Err(Refusal::Insufficient { .. }) => println!("sold out"),
//!     Err(refusal) => println!("{refusal}"),
//! }
//! let moved = amounts.transfer("{bank}:alice", "{bank}:bob", 100).await?;
//! # let _ = moved;
//! # Ok(())
//! # }
//! ```
//!
//! What the server loses in a crash or a failover is lost: it answers before a write is on the disk or on a replica, unless it
//! is told otherwise (`appendfsync always`, `WAIT`).

mod compare;
mod shadow;
mod slots;

use std::sync::LazyLock;

use redis::{RedisError, RedisResult, Script, Value, aio::ConnectionLike};

pub use self::{
    compare::{Key, Scripted, Values, Watching},
    shadow::{SHADOW_LASTS, Shadow},
};
use super::{Outcome, Refusal};

static TAKE: LazyLock<Script> = LazyLock::new(|| on_numbers(include_str!("../scripts/take.lua")));
static TRANSFER: LazyLock<Script> = LazyLock::new(|| on_numbers(include_str!("../scripts/transfer.lua")));
static RESERVE: LazyLock<Script> = LazyLock::new(|| on_numbers(include_str!("../scripts/reserve.lua")));
static SETTLE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../scripts/settle.lua")));

fn on_numbers(script: &str) -> Script {
    Script::new(&[include_str!("../scripts/number.lua"), script].concat())
}

/// Whole numbers of 64 bits in string keys.
#[derive(Debug)]
pub struct Amounts<'a, C> {
    connection: &'a mut C,
    in_a_cluster: bool,
}

impl<'a, C: ConnectionLike> Amounts<'a, C> {
    /// Keys of this connection's server.
    pub fn on(connection: &'a mut C) -> Self {
        Self { connection, in_a_cluster: false }
    }

    /// Refuses keys of different slots before anything is sent. A cluster would, after it.
    pub fn in_a_cluster(mut self) -> Self {
        self.in_a_cluster = true;
        self
    }

    /// Takes `amount` from the number, if it has as much; answers what is left.
    ///
    /// # Cancel safety
    /// Dropped, or after an `Err` of the connection, it may have been taken or not. Do not repeat it.
    pub async fn take(&mut self, key: &str, amount: i64) -> RedisResult<Outcome<i64>> {
        if amount <= 0 {
            return Ok(Err(Refusal::NotPositive { amount }));
        }
        let said = TAKE.key(key).arg(amount).invoke_async(self.connection).await?;
        Said::read(said, &[key])?.outcome(|left| left.number(0))
    }

    /// Moves `amount` from one number to another, both of which must be there; answers what is in both afterwards.
    ///
    /// # Cancel safety
    /// As for [`take`](Self::take).
    pub async fn transfer(&mut self, from: &str, to: &str, amount: i64) -> RedisResult<Outcome<(i64, i64)>> {
        if from == to {
            return Ok(Err(Refusal::SameAccount));
        }
        if let Err(refusal) = self.checked(&[from, to], amount) {
            return Ok(Err(refusal));
        }
        let said = TRANSFER.key(from).key(to).arg(amount).invoke_async(self.connection).await?;
        Said::read(said, &[from, to])?.outcome(|both| Ok((both.number(0)?, both.number(1)?)))
    }

    /// Takes `amount` from the stock and notes the order in one step; answers what is left. The order is a hash with `amount`
    /// and `state`, and stays `reserved` until it is [confirmed](Self::confirm) or [cancelled](Self::cancel).
    ///
    /// # Cancel safety
    /// Repeat it with the same order: nothing is taken twice, and the answer is what is left by then.
    pub async fn reserve(&mut self, stock: &str, order: &str, amount: i64) -> RedisResult<Outcome<i64>> {
        if let Err(refusal) = self.checked(&[stock, order], amount) {
            return Ok(Err(refusal));
        }
        let said = RESERVE.key(stock).key(order).arg(amount).invoke_async(self.connection).await?;
        Said::read(said, &[stock, order])?.outcome(|left| left.number(0))
    }

    /// Makes a reservation final.
    ///
    /// # Cancel safety
    /// Repeat it.
    pub async fn confirm(&mut self, stock: &str, order: &str) -> RedisResult<Outcome<()>> {
        self.settle(stock, order, "confirmed").await
    }

    /// Gives what was reserved back to the stock.
    ///
    /// # Cancel safety
    /// Repeat it: it is given back once.
    pub async fn cancel(&mut self, stock: &str, order: &str) -> RedisResult<Outcome<()>> {
        self.settle(stock, order, "cancelled").await
    }

    async fn settle(&mut self, stock: &str, order: &str, how: &str) -> RedisResult<Outcome<()>> {
        if let Err(refusal) = self.checked(&[stock, order], 1) {
            return Ok(Err(refusal));
        }
        let said = SETTLE.key(stock).key(order).arg(how).invoke_async(self.connection).await?;
        Said::read(said, &[order, stock])?.outcome(|_| Ok(()))
    }

    fn checked(&self, keys: &[&str], amount: i64) -> Outcome<()> {
        if amount <= 0 {
            return Err(Refusal::NotPositive { amount });
        }
        if self.in_a_cluster { slots::together(keys) } else { Ok(()) }
    }
}

/// A reply of the scripts: a word and what belongs to it.
struct Said<'a> {
    word: String,
    rest: Vec<Value>,
    keys: &'a [&'a str],
}

impl<'a> Said<'a> {
    fn read(mut reply: Vec<Value>, keys: &'a [&'a str]) -> RedisResult<Self> {
        let rest = reply.split_off(1.min(reply.len()));
        let word = reply.pop().map(redis::from_redis_value).transpose()?.unwrap_or_default();
        Ok(Self { word, rest, keys })
    }

    fn outcome<T>(&self, done: impl FnOnce(&Self) -> RedisResult<T>) -> RedisResult<Outcome<T>> {
        // The key that it is about: the one it says, counted from one, else the first.
        let what = || {
            let place = self.number(0).ok().and_then(|place| usize::try_from(place - 1).ok()).unwrap_or_default();
            self.keys.get(place).copied().unwrap_or_default().to_owned()
        };
        Ok(Err(match self.word.as_str() {
            "done" => return done(self).map(Ok),
            "insufficient" => Refusal::Insufficient { has: self.number(0)? },
            "overflow" => Refusal::Overflow { has: self.number(0)? },
            "missing" => Refusal::Missing { what: what() },
            "not a number" => Refusal::NotANumber { what: what() },
            "other order" => Refusal::OtherOrder { amount: self.number(0)?, state: self.text(1)? },
            other => {
                let said = "a script answered something else than it can";
                return Err(RedisError::from((redis::ErrorKind::UnexpectedReturnType, said, other.to_owned())));
            }
        }))
    }

    fn number(&self, place: usize) -> RedisResult<i64> {
        Ok(redis::from_redis_value(self.rest.get(place).cloned().unwrap_or(Value::Nil))?)
    }

    fn text(&self, place: usize) -> RedisResult<String> {
        Ok(redis::from_redis_value(self.rest.get(place).cloned().unwrap_or(Value::Nil))?)
    }
}

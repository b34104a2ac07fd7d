//! Tickets in Redis.
//!
//! ```no_run
//! # async fn example(mut redis: redis::aio::MultiplexedConnection) -> Result<(), Box<dyn std::error::Error>> {
//! use fencepost_patterns::claims::{Worker, redis::Tickets};
//! use std::time::Duration;
//!
//! let mails = Tickets::called("mails")?;
//! mails.put(&mut redis, &["mail 1", "mail 2"]).await?;
//! let me = Worker::new()?;
//! for ticket in mails.take(&mut redis, &me, 10, Duration::from_secs(60)).await? {
//!     // the work
//!     if mails.done(&mut redis, &me, &[&ticket.key]).await?.is_empty() {
//!         println!("{} took too long, and is another's by now", ticket.key);
//!     }
//! }
//! # Ok(())
//! # }
//! ```

use std::{sync::LazyLock, time::Duration};

use redis::{RedisResult, Script, ScriptInvocation, aio::ConnectionLike};

use super::{Ticket, Worker};
use crate::keys::beside;

static PUT: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../scripts/claim_put.lua")));
static TAKE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../scripts/claim_take.lua")));
static SETTLE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../scripts/claim_settle.lua")));

/// The tickets of one name, in four keys of one slot: `{NAME}:free`, `:out`, `:who` and `:tries`. First come, first served, but for
/// those that come back.
#[derive(Clone, Debug)]
pub struct Tickets([String; 4]);

impl Tickets {
    /// The tickets of this name.
    ///
    /// # Errors
    /// When the name's braces allow no keys in one slot.
    pub fn called(name: &str) -> RedisResult<Self> {
        let key = |what| beside(name, what);
        Ok(Self([key("free")?, key("out")?, key("who")?, key("tries")?]))
    }

    /// Adds those that are not there, free or handed out; answers how many.
    ///
    /// # Cancel safety
    /// All or none were added. Repeat it.
    pub async fn put<C: ConnectionLike>(&self, connection: &mut C, tickets: &[&str]) -> RedisResult<u64> {
        let Self([free, _, _, tries]) = self;
        PUT.key(free).key(tries).arg(tickets).invoke_async(connection).await
    }

    /// Takes up to `count` tickets for `span`, in whole milliseconds, on the server's clock. None are free when there are none in the
    /// answer.
    ///
    /// # Cancel safety
    /// Some may have been taken; they come back after `span`.
    pub async fn take<C: ConnectionLike>(
        &self,
        connection: &mut C,
        worker: &Worker,
        count: u32,
        span: Duration,
    ) -> RedisResult<Vec<Ticket<String>>> {
        let mut call = self.call(&TAKE, worker);
        call.arg(millis(span)).arg(count);
        let taken: Vec<(String, u64)> = call.invoke_async(connection).await?;
        Ok(taken.into_iter().map(|(key, tries)| Ticket { key, tries }).collect())
    }

    /// Acknowledges tickets; answers those that were this worker's. Others are left as they are.
    ///
    /// # Cancel safety
    /// All or none were acknowledged. Repeated, it answers none of those that were.
    pub async fn done<C: ConnectionLike>(
        &self,
        connection: &mut C,
        worker: &Worker,
        tickets: &[&str],
    ) -> RedisResult<Vec<String>> {
        self.settle(connection, worker, "done", tickets).await
    }

    /// Gives tickets back, to be handed out next; answers those that were this worker's.
    ///
    /// # Cancel safety
    /// As for [`done`](Self::done).
    pub async fn give_back<C: ConnectionLike>(
        &self,
        connection: &mut C,
        worker: &Worker,
        tickets: &[&str],
    ) -> RedisResult<Vec<String>> {
        self.settle(connection, worker, "back", tickets).await
    }

    /// Gives tickets `span` more, from now on; answers those that were this worker's. The others are lost to it.
    ///
    /// # Cancel safety
    /// Repeat it.
    pub async fn extend<C: ConnectionLike>(
        &self,
        connection: &mut C,
        worker: &Worker,
        tickets: &[&str],
        span: Duration,
    ) -> RedisResult<Vec<String>> {
        self.settle(connection, worker, &millis(span).to_string(), tickets).await
    }

    /// How many are free, and how many handed out, those whose time is over among them.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn count<C: ConnectionLike>(&self, connection: &mut C) -> RedisResult<(u64, u64)> {
        let Self([free, out, ..]) = self;
        redis::pipe().atomic().llen(free).zcard(out).query_async(connection).await
    }

    async fn settle<C: ConnectionLike>(
        &self,
        connection: &mut C,
        worker: &Worker,
        how: &str,
        tickets: &[&str],
    ) -> RedisResult<Vec<String>> {
        let mut call = self.call(&SETTLE, worker);
        call.arg(how).arg(tickets);
        call.invoke_async(connection).await
    }

    fn call<'a>(&self, script: &'a Script, worker: &Worker) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        for key in &self.0 {
            call.key(key);
        }
        call.arg(worker.to_string());
        call
    }
}

/// Never zero: a ticket would come back at once.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 50)
}

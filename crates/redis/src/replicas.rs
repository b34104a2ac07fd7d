//! Grants that replicas have too: `WAIT` on the very connection that wrote, since it covers no other's writes.
//!
//! `WAIT` holds up everything behind it on its connection. So these grants have connections of their own, one for
//! each that waits at the same time, and renewals and releases of others pass by.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::error::{Applied, ErrorKind};
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value, aio::MultiplexedConnection, pipe};
use tokio::sync::Semaphore;

use crate::{failure::Failure, route::Server};

/// Connections that wait for replicas at once; more grants stand in line.
const AT_ONCE: usize = 16;

/// How many replicas must have a grant, or a renewal, before it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    /// That many.
    pub count: u32,
    /// The limit for their acknowledgement.
    pub within: Duration,
}

/// A command's answer, and what is missing of its copies.
pub(crate) struct Kept {
    pub(crate) value: Value,
    /// Too few replicas have it.
    pub(crate) short: Option<Failure>,
}

impl Kept {
    /// By the master alone.
    pub(crate) fn by_master(value: Value) -> Self {
        Self { value, short: None }
    }
}

/// The connections for it.
#[derive(Debug)]
pub(crate) struct Waiting {
    wanted: Replicas,
    settings: AsyncConnectionConfig,
    line: Semaphore,
    idle: Mutex<Vec<(Arc<Server>, MultiplexedConnection)>>,
}

impl Waiting {
    pub(crate) fn new(wanted: Replicas, settings: &AsyncConnectionConfig, timeout: Duration) -> Self {
        let settings = settings.clone().set_response_timeout(Some(timeout + wanted.within));
        Self { wanted, settings, line: Semaphore::new(AT_ONCE), idle: Mutex::default() }
    }

    /// Sends commands to `server` and waits for the replicas. A command that fails has its error among the answers.
    ///
    /// Dropped half way, it takes its connection along: what is still waited for there can hold up nobody.
    pub(crate) async fn send(
        &self,
        server: &Arc<Server>,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<(Vec<Value>, Option<Failure>), Trouble> {
        // The semaphore is never closed.
        let _in_line = self.line.acquire().await.map_err(|_| Trouble::Unsent(Failure::closed()))?;
        let mut connection = match self.take_idle(server) {
            Some(connection) => connection,
            None => server.connect(&self.settings).await.map_err(Trouble::Unsent)?,
        };
        let mut all = pipe();
        for command in commands {
            all.add_command(command);
        }
        all.cmd("WAIT").arg(self.wanted.count).arg(self.wanted.within.as_millis() as u64).ignore_errors();
        let mut answers: Vec<Value> = all.query_async(&mut connection).await.map_err(Trouble::Answered)?;
        let acknowledged = answers.pop().unwrap_or(Value::Nil);
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push((server.clone(), connection));
        Ok((answers, self.missing(acknowledged)))
    }

    /// Ends the connections that nobody uses.
    pub(crate) fn close(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// One to the same server; the others lead to a master that was deposed.
    fn take_idle(&self, server: &Arc<Server>) -> Option<MultiplexedConnection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(of, _)| Arc::ptr_eq(of, server));
        idle.pop().map(|(_, connection)| connection)
    }

    fn missing(&self, acknowledged: Value) -> Option<Failure> {
        let Replicas { count, within } = self.wanted;
        let said = match acknowledged {
            Value::Int(number) if number >= i64::from(count) => return None,
            Value::Int(number) => format!("only {number} of {count} replicas acknowledged it within {within:?}"),
            Value::ServerError(error) => {
                return Some(Failure::answered(&error.into()).advise("`replicas` needs the command WAIT"));
            }
            _ => return Some(Failure::puzzling()),
        };
        Some(Failure::new(ErrorKind::Unavailable, Applied::Unknown, said))
    }
}

/// Why there is no answer.
pub(crate) enum Trouble {
    Unsent(Failure),
    Answered(RedisError),
}

//! The one connection for commands, and how it is made anew.
//!
//! The crate's own connection manager needs many seconds for each command against a dead server. Here a broken
//! connection is dropped, one task at a time tries to make a new one, with growing pauses, and whoever asks during
//! a pause is told at once.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{Clock, Moment},
    error::{Applied, Error, ErrorKind},
};
use redis::{
    AsyncConnectionConfig, Client, Cmd, Pipeline, RedisError, ServerErrorKind, Value,
    aio::{MultiplexedConnection, PubSub},
};

use crate::{config::RedisConfig, failure::Failure, scripts::Script};

/// So many timeouts in a row mean that the connection leads nowhere: a firewall that forgot it says nothing.
const TIMEOUTS_IN_A_ROW: u32 = 2;

/// Commands on their way at once before senders stand in line; the crate's own 50 makes 64 tasks wait for each other.
const PIPELINED: usize = 1024;

#[derive(Debug)]
pub(crate) struct Link {
    client: Client,
    settings: AsyncConnectionConfig,
    address: String,
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
    current: Mutex<Current>,
    /// In a row, on the present connection.
    timeouts: AtomicU32,
    gate: tokio::sync::Mutex<Gate>,
}

#[derive(Debug, Default)]
struct Current {
    connection: Option<MultiplexedConnection>,
    /// Tells the connection that failed from the one that has replaced it since.
    generation: u64,
    closed: bool,
}

/// Held by the one task that connects.
#[derive(Debug)]
struct Gate {
    backoff: Backoff,
    pause: Option<(Moment, Failure)>,
}

impl Gate {
    fn open() -> Self {
        Self { backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)), pause: None }
    }
}

impl Link {
    pub(crate) fn new(config: &RedisConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let settings = AsyncConnectionConfig::new()
            .set_pipeline_buffer_size(PIPELINED)
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.timeout));
        Ok(Self {
            client: config.client()?,
            settings,
            address: format!("{}:{}", config.host, config.port),
            connect_timeout: config.connect_timeout,
            clock,
            current: Mutex::default(),
            timeouts: AtomicU32::new(0),
            gate: tokio::sync::Mutex::new(Gate::open()),
        })
    }

    /// Sends a command that can be repeated: when the connection turns out to be gone, it is sent once more on a new
    /// one, so that a restarted server costs no verb. Every verb is conditional on an owner value, which makes the
    /// second a repetition of the first.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        match self.send(command).await {
            Err(Refusal::Answered(error)) if error.is_connection_dropped() => Box::pin(self.send(command)).await,
            answer => answer,
        }
        .map_err(Failure::from)
    }

    /// Calls a script that can be repeated, as for [`ask`](Link::ask).
    pub(crate) async fn call(&self, script: &Script, keys: &[String], arguments: &[&str]) -> Result<Value, Failure> {
        match self.call_once(script, keys, arguments).await {
            Err(Refusal::Answered(error)) if error.is_connection_dropped() => {
                Box::pin(self.call_once(script, keys, arguments)).await
            }
            answer => answer,
        }
        .map_err(Failure::from)
    }

    /// Calls a script that must not be repeated.
    pub(crate) async fn call_unrepeated(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<Value, Failure> {
        self.call_once(script, keys, arguments).await.map_err(Failure::from)
    }

    /// Sends reads. A command that fails has its error among the answers.
    pub(crate) async fn read(&self, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        reads.ignore_errors();
        let (mut connection, generation) = self.connection().await?;
        let answer = reads.query_async::<Vec<Value>>(&mut connection).await;
        self.judge(answer, generation).map_err(|error| Failure::answered(&error))
    }

    /// A connection of its own for messages.
    pub(crate) async fn messages(&self) -> Result<PubSub, Failure> {
        if self.lock().closed {
            return Err(Failure::closed());
        }
        match tokio::time::timeout(self.connect_timeout, self.client.get_async_pubsub()).await {
            Ok(answer) => answer.map_err(|error| Failure::connecting(&error, &self.address)),
            Err(_) => Err(self.no_answer()),
        }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn close(&self) {
        let mut current = self.lock();
        current.closed = true;
        current.connection = None;
    }

    async fn call_once(&self, script: &Script, keys: &[String], arguments: &[&str]) -> Result<Value, Refusal> {
        match self.send(&script.by_hash(keys, arguments.iter().copied())).await {
            Err(Refusal::Answered(error)) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript) => {
                let by_text = script.by_text(keys, arguments.iter().copied());
                Box::pin(self.send(&by_text)).await
            }
            answer => answer,
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Refusal> {
        let (mut connection, generation) = self.connection().await.map_err(Refusal::Unsent)?;
        let answer = command.query_async::<Value>(&mut connection).await;
        self.judge(answer, generation).map_err(Refusal::Answered)
    }

    async fn connection(&self) -> Result<(MultiplexedConnection, u64), Failure> {
        match self.current()? {
            Some(current) => Ok(current),
            // Boxed, as the other rare paths are: room for a TLS handshake in the future of every command would cost
            // more than the command.
            None => Box::pin(self.connected_anew()).await,
        }
    }

    async fn connected_anew(&self) -> Result<(MultiplexedConnection, u64), Failure> {
        let mut gate = self.gate.lock().await;
        // Another may have connected while we stood at the gate.
        if let Some(current) = self.current()? {
            return Ok(current);
        }
        if let Some((until, failure)) = gate.pause.clone()
            && self.clock.now() < until
        {
            return Err(failure);
        }
        match self.connect().await {
            Ok(connection) => {
                *gate = Gate::open();
                let mut current = self.lock();
                if current.closed {
                    return Err(Failure::closed());
                }
                current.generation += 1;
                self.timeouts.store(0, Relaxed);
                current.connection = Some(connection.clone());
                Ok((connection, current.generation))
            }
            Err(failure) => {
                let until = self.clock.now().after(gate.backoff.pause());
                gate.pause = Some((until, failure.clone()));
                Err(failure)
            }
        }
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Failure> {
        let connecting = self.client.get_multiplexed_async_connection_with_config(&self.settings);
        // The crate's own limit does not cover everything, the search for the host's address for one.
        match tokio::time::timeout(self.connect_timeout, connecting).await {
            Ok(answer) => answer.map_err(|error| Failure::connecting(&error, &self.address)),
            Err(_) => Err(self.no_answer()),
        }
    }

    fn current(&self) -> Result<Option<(MultiplexedConnection, u64)>, Failure> {
        let current = self.lock();
        if current.closed {
            return Err(Failure::closed());
        }
        Ok(current.connection.clone().map(|connection| (connection, current.generation)))
    }

    /// Drops the connection when its answer shows that it is of no more use.
    fn judge<T>(&self, answer: Result<T, RedisError>, generation: u64) -> Result<T, RedisError> {
        let error = match answer {
            Ok(answer) => {
                self.timeouts.store(0, Relaxed);
                return Ok(answer);
            }
            Err(error) => error,
        };
        let mut current = self.lock();
        if current.generation == generation {
            let useless = if error.is_timeout() {
                self.timeouts.fetch_add(1, Relaxed) + 1 >= TIMEOUTS_IN_A_ROW
            } else {
                use redis::ErrorKind::{Io, Parse, Server};
                // A master that turned into a replica: the name may lead to the new master by now.
                matches!(error.kind(), Io | Parse | Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown))
            };
            if useless {
                current.connection = None;
            }
        }
        Err(error)
    }

    fn no_answer(&self) -> Failure {
        let said = format!("{} did not answer within {:?}", self.address, self.connect_timeout);
        Failure::new(ErrorKind::Unavailable, Applied::No, said)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Nothing in here can panic half way.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a command has no answer.
enum Refusal {
    Unsent(Failure),
    Answered(RedisError),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Unsent(failure) => failure,
            Refusal::Answered(error) => Failure::answered(&error),
        }
    }
}

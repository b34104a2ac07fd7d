//! The one connection for commands, and how it is made anew.
//!
//! The crate's own connection manager needs many seconds for each command against a dead server. Here a broken
//! connection is dropped, one task at a time tries to make a new one, with growing pauses, and whoever asks during
//! a pause is told at once.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{Clock, Moment},
    error::{Applied, ErrorKind},
};
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, RedisError, ServerErrorKind, Value,
    aio::{MultiplexedConnection, PubSub},
    cmd, pipe,
};
use tokio::sync::watch;

use crate::{
    cluster::{Care, Request},
    config::RedisConfig,
    failure::Failure,
    replicas::{Kept, Trouble, Waiting},
    route::{Route, Server},
    scripts::Script,
};

/// So many timeouts in a row mean that the connection leads nowhere: a firewall that forgot it says nothing.
const TIMEOUTS_IN_A_ROW: u32 = 2;

/// Commands on their way at once before senders stand in line; the crate's own 50 makes 64 tasks wait for each other.
const PIPELINED: usize = 1024;

#[derive(Debug)]
pub(crate) struct Link {
    route: Box<dyn Route>,
    settings: AsyncConnectionConfig,
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
    current: Mutex<Current>,
    /// In a row, on the present connection.
    timeouts: AtomicU32,
    gate: tokio::sync::Mutex<Gate>,
    /// For what replicas must have too, where that was asked for.
    waiting: Option<Waiting>,
    /// Where the last connection led, for those who must follow it.
    server: watch::Sender<Option<Arc<Server>>>,
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
    /// A connection along a route, with the limits of `config`.
    pub(crate) fn new(route: impl Route + 'static, config: &RedisConfig, clock: Arc<dyn Clock>) -> Self {
        let settings = AsyncConnectionConfig::new()
            .set_pipeline_buffer_size(PIPELINED)
            .set_connection_timeout(Some(config.connect_timeout))
            .set_response_timeout(Some(config.timeout));
        Self {
            route: Box::new(route),
            waiting: config.replicas.map(|replicas| Waiting::new(replicas, &settings, config.timeout)),
            settings,
            connect_timeout: config.connect_timeout,
            clock,
            current: Mutex::default(),
            timeouts: AtomicU32::new(0),
            gate: tokio::sync::Mutex::new(Gate::open()),
            server: watch::Sender::new(None),
        }
    }

    /// Sends a command that can be repeated: when the connection turns out to be gone, or to lead to the wrong server,
    /// it is sent once more on a new one, so that a restart or a failover costs no verb. Every verb is conditional on
    /// an owner value, which makes the second a repetition of the first.
    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        self.repeatedly(|| self.send(command)).await
    }

    /// As [`ask`](Link::ask), for what counts only once enough replicas have it.
    pub(crate) async fn ask_kept(&self, command: &Cmd) -> Result<Kept, Failure> {
        let Some(waiting) = &self.waiting else { return self.ask(command).await.map(Kept::by_master) };
        self.repeatedly(|| Box::pin(self.send_kept(waiting, command))).await
    }

    /// Calls a script that can be repeated, as for [`ask`](Link::ask).
    pub(crate) async fn call(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<Value, Failure> {
        self.repeatedly(|| self.call_once(script, keys, arguments)).await
    }

    /// As [`call`](Link::call), for what counts only once enough replicas have it.
    pub(crate) async fn call_kept(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<Kept, Failure> {
        let Some(waiting) = &self.waiting else {
            return self.call(script, keys, arguments).await.map(Kept::by_master);
        };
        self.repeatedly(|| Box::pin(self.call_kept_once(waiting, script, keys, arguments))).await
    }

    /// Calls a script that must not be repeated.
    pub(crate) async fn call_unrepeated(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<Value, Failure> {
        self.call_once(script, keys, arguments).await.map_err(|trouble| self.failure(trouble))
    }

    /// Sends a request once, and leaves it to the caller what its answer means. With `asking`, to a node that is only
    /// about to get the key's slot.
    pub(crate) async fn exchange(&self, request: Request<'_>, care: Care, asking: bool) -> Result<Kept, Trouble> {
        if asking || (care == Care::Keep && self.waiting.is_some()) {
            return Box::pin(self.exchange_slowly(request, care, asking)).await;
        }
        match request {
            Request::Command(command) => self.send(command).await,
            Request::Script { script, keys, arguments } => self.call_once(script, keys, arguments).await,
        }
        .map(Kept::by_master)
    }

    async fn exchange_slowly(&self, request: Request<'_>, care: Care, asking: bool) -> Result<Kept, Trouble> {
        let command = match request {
            Request::Command(command) => command.clone(),
            // With its text, since the answer that the hash is not known would cost the right to ask.
            Request::Script { script, keys, arguments } => script.by_text(keys, arguments),
        };
        let commands = asking.then(|| cmd("ASKING")).into_iter().chain([command]).collect();
        let (values, short) = self.send_all(commands, care).await?;
        let value = values.into_iter().next_back().unwrap_or(Value::Nil);
        Ok(Kept { value: value.extract_error().map_err(Trouble::Answered)?, short })
    }

    /// Sends commands in one piece. One that fails has its error among the answers.
    pub(crate) async fn send_all(
        &self,
        commands: Vec<Cmd>,
        care: Care,
    ) -> Result<(Vec<Value>, Option<Failure>), Trouble> {
        if let (Care::Keep, Some(waiting)) = (care, &self.waiting) {
            return self.send_all_kept(waiting, commands).await;
        }
        let mut all = pipe();
        for command in commands {
            all.add_command(command);
        }
        all.ignore_errors();
        let (mut connection, generation) = self.connection().await.map_err(Trouble::Unsent)?;
        let answer = all.query_async::<Vec<Value>>(&mut connection).await;
        Ok((self.judge(answer, generation).map_err(Trouble::Answered)?, None))
    }

    /// What the connection leads to, for messages.
    pub(crate) fn destination(&self) -> String {
        self.route.destination()
    }

    /// Sends reads. A command that fails has its error among the answers.
    pub(crate) async fn read(&self, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        reads.ignore_errors();
        let (mut connection, generation) = self.connection().await?;
        let answer = reads.query_async::<Vec<Value>>(&mut connection).await;
        self.judge(answer, generation).map_err(|error| Failure::answered(&error))
    }

    /// A connection of its own for messages, to the server that commands go to.
    pub(crate) async fn messages(&self) -> Result<(PubSub, Arc<Server>), Failure> {
        self.connection().await?;
        let server = self.server.borrow().clone().ok_or_else(Failure::closed)?;
        match tokio::time::timeout(self.connect_timeout, server.messages()).await {
            Ok(answer) => Ok((answer?, server)),
            Err(_) => Err(self.no_answer()),
        }
    }

    /// Completes when commands go to another server than this one. Cancel safe.
    pub(crate) async fn moved_from(&self, server: &Server) {
        let moved = |now: &Option<Arc<Server>>| now.as_ref().is_some_and(|now| now.address != server.address);
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.server.subscribe().wait_for(moved).await;
    }

    /// Leaves the present server unless it is the one at `address`, and finds the right one at once, so that whoever
    /// follows is led there.
    pub(crate) async fn leave_for(&self, address: &str) {
        let here = self.server.borrow().as_ref().is_none_or(|server| server.address == address);
        if !here {
            self.lock().connection = None;
            // What goes wrong is told to the next command.
            let _ = self.connection().await;
        }
    }

    /// Counts the connections made so far. Whoever remembers it can tell that there has been a new one since.
    pub(crate) fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    pub(crate) fn close(&self) {
        let mut current = self.lock();
        current.closed = true;
        current.connection = None;
        if let Some(waiting) = &self.waiting {
            waiting.close();
        }
    }

    async fn call_once(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<Value, Trouble> {
        match self.send(&script.by_hash(keys, arguments)).await {
            Err(Trouble::Answered(error)) if is_unknown_script(&error) => {
                let by_text = script.by_text(keys, arguments);
                Box::pin(self.send(&by_text)).await
            }
            answer => answer,
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, Trouble> {
        let (mut connection, generation) = self.connection().await.map_err(Trouble::Unsent)?;
        let answer = command.query_async::<Value>(&mut connection).await;
        self.judge(answer, generation).map_err(Trouble::Answered)
    }

    async fn send_kept(&self, waiting: &Waiting, command: &Cmd) -> Result<Kept, Trouble> {
        let (values, short) = self.send_all_kept(waiting, [command.clone()]).await?;
        let value = values.into_iter().next().unwrap_or(Value::Nil);
        Ok(Kept { value: value.extract_error().map_err(Trouble::Answered)?, short })
    }

    async fn send_all_kept(
        &self,
        waiting: &Waiting,
        commands: impl IntoIterator<Item = Cmd>,
    ) -> Result<(Vec<Value>, Option<Failure>), Trouble> {
        let (_, generation) = self.connection().await.map_err(Trouble::Unsent)?;
        let server = self.server.borrow().clone().ok_or_else(|| Trouble::Unsent(Failure::closed()))?;
        match waiting.send(&server, commands).await {
            Err(Trouble::Answered(error)) => self.judge(Err(error), generation).map_err(Trouble::Answered),
            answer => answer,
        }
    }

    async fn call_kept_once(
        &self,
        waiting: &Waiting,
        script: &Script,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<Kept, Trouble> {
        match self.send_kept(waiting, &script.by_hash(keys, arguments)).await {
            Err(Trouble::Answered(error)) if is_unknown_script(&error) => {
                self.send_kept(waiting, &script.by_text(keys, arguments)).await
            }
            answer => answer,
        }
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
            Ok((connection, server)) => {
                *gate = Gate::open();
                let mut current = self.lock();
                if current.closed {
                    return Err(Failure::closed());
                }
                current.generation += 1;
                self.timeouts.store(0, Relaxed);
                current.connection = Some(connection.clone());
                self.server.send_replace(Some(server));
                Ok((connection, current.generation))
            }
            Err(failure) => {
                let until = self.clock.now().after(gate.backoff.pause());
                gate.pause = Some((until, failure.clone()));
                Err(failure)
            }
        }
    }

    async fn connect(&self) -> Result<(MultiplexedConnection, Arc<Server>), Failure> {
        // The crate's own limit does not cover everything, the search for the host's address for one.
        let connecting = tokio::time::timeout(self.connect_timeout, self.route.connect(&self.settings));
        connecting.await.unwrap_or_else(|_| Err(self.no_answer()))
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
                    || self.route.elsewhere(&error).is_some()
            };
            if useless {
                current.connection = None;
            }
        }
        Err(error)
    }

    /// Tries once, and once more when the connection turns out to be gone or to lead to the wrong server.
    async fn repeatedly<T, F>(&self, mut attempt: impl FnMut() -> F) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let error = match attempt().await {
            Err(Trouble::Answered(error))
                if error.is_connection_dropped() || self.route.elsewhere(&error).is_some() =>
            {
                error
            }
            answer => return answer.map_err(|trouble| self.failure(trouble)),
        };
        Box::pin(attempt()).await.map_err(|trouble| {
            let failure = self.failure(trouble);
            // A server whose connection broke may have done it before: that the second try failed does not undo that.
            if error.is_connection_dropped() { failure.outcome_unknown() } else { failure }
        })
    }

    fn failure(&self, trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Unsent(failure) => failure,
            Trouble::Answered(error) => self.route.elsewhere(&error).unwrap_or_else(|| Failure::answered(&error)),
        }
    }

    fn no_answer(&self) -> Failure {
        let said = format!("{} did not answer within {:?}", self.route.destination(), self.connect_timeout);
        Failure::new(ErrorKind::Unavailable, Applied::No, said)
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Nothing in here can panic half way.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoScript)
}

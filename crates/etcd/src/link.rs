//! The one connection, to one member at a time, and how another member takes over.
//!
//! All requests of a client go over it, so that thousands of waiters cost one connection. One task at a time connects,
//! with growing pauses once every member was tried, and whoever asks during a pause is told at once.

use std::{
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{Clock, Moment},
    error::{Applied, Error},
    url::settings,
};
use tokio::sync::watch;
use tonic::{
    Request, Response, Status,
    metadata::{Ascii, MetadataValue},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity},
};

use crate::{
    api::{
        AuthClient, AuthenticateRequest, DeleteRangeRequest, KvClient, RangeRequest, RangeResponse, TxnRequest,
        TxnResponse,
    },
    config::{EtcdConfig, Tls},
    failure::{Failure, Sort},
};

/// Between two looks whether a quiet connection is alive. Members close one that asks more often than every five seconds
/// (`--grpc-keepalive-min-time`), as they do with one that floods them.
const PING_EVERY: Duration = Duration::from_secs(6);

/// Answers may be as large as a long listing is.
pub(crate) const MAX_ANSWER: usize = 64 * 1024 * 1024;

#[derive(Debug)]
pub(crate) struct Link {
    members: Vec<(String, Endpoint)>,
    login: Option<(String, String)>,
    tls: bool,
    pub(crate) timeout: Duration,
    connect_timeout: Duration,
    clock: Arc<dyn Clock>,
    current: Mutex<Current>,
    gate: tokio::sync::Mutex<Gate>,
    /// The generation of the current connection, for those that live on one.
    generations: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Current {
    connection: Option<Connection>,
    /// The member that it is to, or the next one to try.
    member: usize,
    /// Tells a connection that failed from the one that has replaced it since.
    generation: u64,
    closed: bool,
}

/// A connection to one member.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    pub(crate) channel: Channel,
    pub(crate) generation: u64,
    pub(crate) address: Arc<str>,
    /// Whether anything has been answered on it.
    proven: Arc<AtomicBool>,
    token: Option<MetadataValue<Ascii>>,
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

/// An answer, and whether an earlier try of the same request may take effect after it.
pub(crate) struct Answer<T> {
    pub(crate) message: T,
    pub(crate) unclear: bool,
}

impl Connection {
    /// A request with what etcd wants to see: the login, and that a member without a leader shall refuse instead of
    /// answering what it last heard.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

impl Link {
    pub(crate) fn new(config: &EtcdConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let tls = config.tls.as_ref().map(tls_config).transpose()?;
        let members = config.members.iter().map(|address| {
            let scheme = if tls.is_some() { "https" } else { "http" };
            let unusable = |source| settings::invalid("the connection cannot be set up so").caused_by(source);
            // A frozen member or a firewall that forgot the connection answers no ping, and calls end with it.
            let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
                .map_err(unusable)?
                .connect_timeout(config.connect_timeout)
                .http2_keep_alive_interval(PING_EVERY)
                .keep_alive_timeout(config.timeout)
                .keep_alive_while_idle(false)
                .tcp_nodelay(true);
            if let Some(tls) = &tls {
                endpoint = endpoint.tls_config(tls.clone()).map_err(unusable)?;
            }
            Ok((address.clone(), endpoint))
        });
        let members = members.collect::<Result<Vec<_>, Error>>()?;
        // Many clients with one list of members must not all lean on the first.
        let member = fastrand::usize(..members.len());
        Ok(Self {
            members,
            login: config.login.clone(),
            tls: config.tls.is_some(),
            timeout: config.timeout,
            connect_timeout: config.connect_timeout,
            clock,
            current: Mutex::new(Current { member, ..Current::default() }),
            gate: tokio::sync::Mutex::new(Gate::open()),
            generations: watch::Sender::new(0),
        })
    }

    /// Sends a request that can be repeated, to further members as well when one does not answer. Each of our requests
    /// can: it is conditional on an owner value or a revision, which makes the second a repetition of the first.
    pub(crate) async fn ask<T, F, R>(&self, send: F) -> Result<Answer<T>, Failure>
    where
        F: Fn(Connection) -> R,
        R: Future<Output = Result<Response<T>, Status>>,
    {
        let (mut unclear, mut logged_in_anew) = (false, false);
        // Each member once, and the first once more: its connection may have been stale.
        let mut tries = self.members.len() + 1;
        // Members that hang one after the other must not add up.
        let until = self.clock.now().after(self.timeout * 2);
        loop {
            let connection = match self.connection().await {
                Ok(connection) => connection,
                Err(failure) => return Err(failure.after_unclear(unclear)),
            };
            let (generation, address, proven) =
                (connection.generation, connection.address.clone(), connection.proven.clone());
            let failure = match tokio::time::timeout(self.timeout, send(connection)).await {
                Ok(Ok(answer)) => {
                    proven.store(true, Relaxed);
                    return Ok(Answer { message: answer.into_inner(), unclear });
                }
                Ok(Err(status)) if proven.load(Relaxed) => Failure::answered(&status, &address),
                Ok(Err(status)) => Failure::answered(&status, &address).before_any_answer(&address, self.tls),
                Err(_) => Failure::no_answer(&address, Applied::Unknown),
            };
            unclear |= failure.applied == Applied::Unknown;
            tries -= 1;
            match failure.sort {
                Sort::Member => self.leave(generation),
                Sort::Login if !logged_in_anew => {
                    logged_in_anew = true;
                    self.drop_connection(generation);
                }
                _ => tries = 0,
            }
            if tries == 0 || self.clock.now() >= until {
                return Err(failure.after_unclear(unclear));
            }
        }
    }

    /// Carries out a transaction.
    pub(crate) async fn txn(&self, txn: TxnRequest) -> Result<Answer<TxnResponse>, Failure> {
        let send = |connection: Connection| {
            let request = connection.request(txn.clone());
            async move { kv(connection).txn(request).await }
        };
        self.ask(send).await
    }

    /// Reads keys, as the cluster has them now.
    pub(crate) async fn range(&self, range: RangeRequest) -> Result<RangeResponse, Failure> {
        let send = |connection: Connection| {
            let request = connection.request(range.clone());
            async move { kv(connection).range(request).await }
        };
        Ok(self.ask(send).await?.message)
    }

    /// Removes one key; answers whether it was there, as far as this try knows.
    pub(crate) async fn delete(&self, key: &[u8]) -> Result<Answer<bool>, Failure> {
        let send = |connection: Connection| {
            let removal = DeleteRangeRequest { key: key.to_vec(), ..Default::default() };
            let request = connection.request(removal);
            async move { kv(connection).delete_range(request).await }
        };
        let Answer { message, unclear } = self.ask(send).await?;
        Ok(Answer { message: message.deleted > 0, unclear })
    }

    /// The current connection, or a new one.
    pub(crate) async fn connection(&self) -> Result<Connection, Failure> {
        match self.current()? {
            Some(connection) => Ok(connection),
            // Boxed, since room for a TLS handshake in the future of every request would cost more than the request.
            None => Box::pin(self.connected_anew()).await,
        }
    }

    /// Gives up the connection of this generation: the next request goes to the next member.
    pub(crate) fn leave(&self, generation: u64) {
        let mut current = self.lock();
        if current.generation == generation && current.connection.take().is_some() {
            current.member = (current.member + 1) % self.members.len();
            self.generations.send_replace(0);
        }
    }

    /// Completes when the connection of this generation has been given up. Cancel safe.
    pub(crate) async fn left(&self, generation: u64) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.generations.subscribe().wait_for(|current| *current != generation).await;
    }

    pub(crate) fn close(&self) {
        let mut current = self.lock();
        current.closed = true;
        current.connection = None;
        self.generations.send_replace(0);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    fn drop_connection(&self, generation: u64) {
        let mut current = self.lock();
        if current.generation == generation {
            current.connection = None;
            self.generations.send_replace(0);
        }
    }

    async fn connected_anew(&self) -> Result<Connection, Failure> {
        let mut gate = self.gate.lock().await;
        // Another may have connected while we stood at the gate.
        if let Some(connection) = self.current()? {
            return Ok(connection);
        }
        if let Some((until, failure)) = gate.pause.clone()
            && self.clock.now() < until
        {
            return Err(failure);
        }
        match self.connect_to_any().await {
            Ok(connection) => {
                *gate = Gate::open();
                Ok(connection)
            }
            Err(failure) => {
                gate.pause = Some((self.clock.now().after(gate.backoff.pause()), failure.clone()));
                Err(failure)
            }
        }
    }

    /// Tries each member once, beginning with the one whose turn it is.
    async fn connect_to_any(&self) -> Result<Connection, Failure> {
        let first = self.lock().member;
        let mut worst = None;
        for offset in 0..self.members.len() {
            let member = (first + offset) % self.members.len();
            match self.connect(member).await {
                Ok((channel, token)) => return self.install(member, channel, token),
                // A refusal says more than a silence.
                Err(failure) if failure.sort != Sort::Member => return Err(failure),
                Err(failure) => worst = Some(worst.unwrap_or(failure)),
            }
        }
        Err(worst.unwrap_or_else(Failure::puzzling))
    }

    fn install(
        &self,
        member: usize,
        channel: Channel,
        token: Option<MetadataValue<Ascii>>,
    ) -> Result<Connection, Failure> {
        let mut current = self.lock();
        if current.closed {
            return Err(Failure::closed());
        }
        (current.member, current.generation) = (member, current.generation + 1);
        let address = self.members[member].0.as_str().into();
        let proven = Arc::new(AtomicBool::new(token.is_some()));
        let connection = Connection { channel, generation: current.generation, address, proven, token };
        current.connection = Some(connection.clone());
        self.generations.send_replace(current.generation);
        Ok(connection)
    }

    async fn connect(&self, member: usize) -> Result<(Channel, Option<MetadataValue<Ascii>>), Failure> {
        let (address, endpoint) = &self.members[member];
        // The crate's own limit covers neither the handshake of TLS nor the search for the host's address.
        let channel = match tokio::time::timeout(self.connect_timeout, endpoint.connect()).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(Failure::connecting(&error, address, self.tls)),
            Err(_) => return Err(Failure::no_answer(address, Applied::No)),
        };
        let Some((name, password)) = &self.login else { return Ok((channel, None)) };
        let login = AuthenticateRequest { name: name.clone(), password: password.clone() };
        let mut auth = AuthClient::new(channel.clone());
        let answer = match tokio::time::timeout(self.timeout, auth.authenticate(login)).await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(status)) => return Err(Failure::answered(&status, address)),
            Err(_) => return Err(Failure::no_answer(address, Applied::No)),
        };
        let token = MetadataValue::try_from(answer.token).map_err(|_| Failure::puzzling())?;
        Ok((channel, Some(token)))
    }

    fn current(&self) -> Result<Option<Connection>, Failure> {
        let current = self.lock();
        if current.closed { Err(Failure::closed()) } else { Ok(current.connection.clone()) }
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Nothing in here can panic half way.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn kv(connection: Connection) -> KvClient<Channel> {
    KvClient::new(connection.channel).max_decoding_message_size(MAX_ANSWER)
}

fn tls_config(tls: &Tls) -> Result<ClientTlsConfig, Error> {
    let mut config = ClientTlsConfig::new();
    config = match &tls.ca {
        Some(path) => config.ca_certificate(Certificate::from_pem(settings::read("ca", path)?)),
        None => config.with_native_roots(),
    };
    if let Some((cert, key)) = &tls.client {
        config = config.identity(Identity::from_pem(settings::read("cert", cert)?, settings::read("key", key)?));
    }
    if let Some(name) = &tls.server_name {
        config = config.domain_name(name);
    }
    Ok(config)
}

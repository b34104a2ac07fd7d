//! How a connection finds its server. The server's place is fixed, or asked for anew each time.

use std::{fmt, sync::Arc, time::Duration};

use fencepost_core::{
    clock::{self, Clock},
    error::Error,
    store::BoxFuture,
};
use redis::{
    AsyncConnectionConfig, Client, RedisError, Value,
    aio::{MultiplexedConnection, PubSub, PubSubSink},
};

use crate::{config::RedisConfig, failure::Failure};

/// A server to connect to.
#[derive(Debug)]
pub(crate) struct Server {
    client: Client,
    /// `HOST:PORT`, for people and for telling servers apart.
    pub(crate) address: String,
}

impl Server {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, Error> {
        Ok(Self { client: config.client()?, address: config.address() })
    }

    /// As [`new`](Server::new), for connections on which messages arrive between answers.
    pub(crate) fn pushing(config: &RedisConfig) -> Result<Self, Error> {
        Ok(Self { client: config.pushing_client()?, address: config.address() })
    }

    /// A connection for commands.
    pub(crate) async fn connect(&self, settings: &AsyncConnectionConfig) -> Result<MultiplexedConnection, Failure> {
        let connecting = self.client.get_multiplexed_async_connection_with_config(settings);
        connecting.await.map_err(|error| Failure::connecting(&error, &self.address))
    }

    /// A connection for messages.
    pub(crate) async fn messages(&self) -> Result<PubSub, Failure> {
        self.client.get_async_pubsub().await.map_err(|error| Failure::connecting(&error, &self.address))
    }
}

/// A connection for messages that nobody closed can lead nowhere all the same; asking tells.
const PING_EVERY: Duration = Duration::from_secs(5);

/// Ends when a connection for messages leads nowhere.
pub(crate) async fn until_dead(mut sink: PubSubSink, clock: &dyn Clock, limit: Duration) {
    loop {
        clock::sleep(clock, PING_EVERY).await;
        if !matches!(tokio::time::timeout(limit, sink.ping::<Value>()).await, Ok(Ok(_))) {
            return;
        }
    }
}

/// Where a [`Link`](crate::connection::Link) leads.
pub(crate) trait Route: fmt::Debug + Send + Sync {
    /// A connection to the server that is the right one now. The caller limits the time.
    fn connect<'a>(
        &'a self,
        settings: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, Result<(MultiplexedConnection, Arc<Server>), Failure>>;

    /// What the route leads to, for messages.
    fn destination(&self) -> String;

    /// Whether a refusal means that the right server is another one by now. Then the connection is made anew and the
    /// command sent once more; the failure says what to tell if that does not help.
    fn elsewhere(&self, refusal: &RedisError) -> Option<Failure>;
}

/// Always the same server.
#[derive(Debug)]
pub(crate) struct Fixed(Arc<Server>);

impl Fixed {
    pub(crate) fn new(config: &RedisConfig) -> Result<Self, Error> {
        Ok(Self(Arc::new(Server::new(config)?)))
    }
}

impl Route for Fixed {
    fn connect<'a>(
        &'a self,
        settings: &'a AsyncConnectionConfig,
    ) -> BoxFuture<'a, Result<(MultiplexedConnection, Arc<Server>), Failure>> {
        Box::pin(async { Ok((self.0.connect(settings).await?, self.0.clone())) })
    }

    fn destination(&self) -> String {
        self.0.address.clone()
    }

    fn elsewhere(&self, _refusal: &RedisError) -> Option<Failure> {
        None
    }
}

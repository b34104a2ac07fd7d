//! Messages within a slot (`SSUBSCRIBE`, since Redis 7): they reach the slot's master alone, which can count who heard
//! them. Plain messages go to every node of a cluster, and none of them knows how many heard them elsewhere.
//!
//! A subscription ends with its connection, and when its slot moves. Both are told, and the room subscribes anew.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::error::{Applied, ErrorKind};
use redis::{
    AsyncConnectionConfig, PushInfo, PushKind, ServerErrorKind, Value,
    aio::{MultiplexedConnection, SendError},
    cmd,
};
use tokio::sync::mpsc;

use super::{Cluster, slot};
use crate::{connection::Link, failure::Failure, route::Server};

/// A subscription that nobody needs any more is kept this long: the next waiter at the same lock often comes at once.
const LINGER: Duration = Duration::from_secs(1);
/// Tries for one subscription. The slot may be on its way.
const TRIES: usize = 4;

/// Whether the cluster knows such messages and allows them to us.
const UNKNOWN: u8 = 0;
const ALLOWED: u8 = 1;
const REFUSED: u8 = 2;

/// What arrives.
#[derive(Debug)]
pub(crate) enum Heard {
    Message(Vec<u8>),
    /// Some channels are not heard any more.
    Missed,
}

#[derive(Debug)]
pub(crate) struct Shards {
    us: Weak<Self>,
    state: Mutex<State>,
    /// Held while a subscription begins or ends, so that an end cannot overtake the next beginning.
    changing: tokio::sync::Mutex<()>,
    known: AtomicU8,
    /// At most a message for each hand-over to us.
    arriving: mpsc::UnboundedSender<Heard>,
    arrived: tokio::sync::Mutex<mpsc::UnboundedReceiver<Heard>>,
}

#[derive(Debug, Default)]
struct State {
    /// A connection for messages to each master that has a slot we listen in.
    ears: HashMap<String, Ear>,
    /// What is heard, and by which ear.
    channels: HashMap<String, u64>,
    /// What nobody needs any more.
    leaving: HashSet<String>,
    last_ear: u64,
}

#[derive(Clone, Debug)]
struct Ear {
    number: u64,
    connection: MultiplexedConnection,
}

impl Shards {
    pub(super) fn new() -> Arc<Self> {
        let (arriving, arrived) = mpsc::unbounded_channel();
        Arc::new_cyclic(|us| Self {
            us: us.clone(),
            state: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
            known: AtomicU8::new(UNKNOWN),
            arriving,
            arrived: tokio::sync::Mutex::new(arrived),
        })
    }

    /// Listens to a channel, if that is not done yet; `false` where the cluster does not know or not allow it.
    pub(super) async fn hear(&self, cluster: &Cluster, channel: &str) -> Result<bool, Failure> {
        if self.known.load(Relaxed) == REFUSED {
            return Ok(false);
        }
        if self.is_heard(channel) {
            return Ok(true);
        }
        let _changing = self.changing.lock().await;
        if self.is_heard(channel) {
            return Ok(true); // another waiter at the same lock was quicker
        }
        for _ in 0..TRIES {
            let link = cluster.master_of(slot(channel)).await?;
            let Ear { number, mut connection } = self.ear(cluster, &link).await?;
            match cmd("SSUBSCRIBE").arg(channel).query_async::<Value>(&mut connection).await {
                Ok(Value::Push { kind: PushKind::SSubscribe, .. }) => {
                    if self.note(channel, number) {
                        return self.may_publish(cluster, channel).await;
                    }
                }
                Err(error) if is_refused(&error) => {
                    self.refused(&error);
                    return Ok(false);
                }
                Err(error) if error.kind() == redis::ErrorKind::Server(ServerErrorKind::Moved) => {
                    cluster.learn(None).await?;
                }
                // An answer to something else: what follows on this connection cannot be told apart any more.
                Ok(_) | Err(_) => self.lose(number),
            }
        }
        Err(Failure::new(
            ErrorKind::Unavailable,
            Applied::No,
            "the key's slot is being moved to another node of the cluster",
        ))
    }

    /// Stops listening to a channel, unless somebody wants it again soon.
    pub(super) fn unhear(&self, channel: &str) {
        self.state().leaving.insert(channel.to_owned());
        let (us, channel) = (self.us.clone(), channel.to_owned());
        // Without a runtime the client is ending, and its connections with it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                tokio::time::sleep(LINGER).await;
                if let Some(shards) = us.upgrade() {
                    shards.leave(&channel).await;
                }
            });
        }
    }

    async fn leave(&self, channel: &str) {
        let _changing = self.changing.lock().await;
        let ear = {
            let mut state = self.state();
            if !state.leaving.remove(channel) {
                return;
            }
            let number = state.channels.remove(channel);
            state.ears.values().find(|ear| Some(ear.number) == number).cloned()
        };
        if let Some(mut ear) = ear {
            // One that fails costs a message that nobody waits for.
            let _ = cmd("SUNSUBSCRIBE").arg(channel).query_async::<Value>(&mut ear.connection).await;
        }
    }

    fn is_heard(&self, channel: &str) -> bool {
        let mut state = self.state();
        state.leaving.remove(channel);
        state.channels.contains_key(channel)
    }

    /// The next that arrives. Cancel safe.
    pub(super) async fn heard(&self) -> Heard {
        // The sender lives in `self`.
        self.arrived.lock().await.recv().await.unwrap_or(Heard::Missed)
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.ears.clear();
        state.channels.clear();
    }

    async fn ear(&self, cluster: &Cluster, link: &Link) -> Result<Ear, Failure> {
        let address = link.destination();
        if let Some(ear) = self.state().ears.get(&address) {
            return Ok(ear.clone());
        }
        let number = {
            let mut state = self.state();
            state.last_ear += 1;
            state.last_ear
        };
        let us = self.us.clone();
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(cluster.node.connect_timeout))
            .set_response_timeout(Some(cluster.node.timeout))
            .set_push_sender(move |push: PushInfo| match us.upgrade() {
                Some(shards) => shards.pushed(number, push),
                None => Err(SendError),
            });
        let server = Server::pushing(&cluster.config_of(&address)?)
            .map_err(|error| Failure::new(ErrorKind::Unavailable, Applied::No, error.to_string()))?;
        let connection = server.connect(&settings).await?;
        // Where two came at once, the first one's is used.
        Ok(self.state().ears.entry(address).or_insert(Ear { number, connection }).clone())
    }

    /// Notes that a channel is heard; `false` when its ear was lost meanwhile.
    fn note(&self, channel: &str, number: u64) -> bool {
        let mut state = self.state();
        let alive = state.ears.values().any(|ear| ear.number == number);
        if alive {
            state.channels.insert(channel.to_owned(), number);
        }
        alive
    }

    /// Whether scripts of this user may send such messages: without, every waiter would seem deaf.
    async fn may_publish(&self, cluster: &Cluster, channel: &str) -> Result<bool, Failure> {
        if self.known.load(Relaxed) == ALLOWED {
            return Ok(true);
        }
        let mut hello = cmd("SPUBLISH");
        hello.arg(channel).arg("hello");
        match cluster.exchange(channel, super::Request::Command(&hello), super::Care::Repeat).await {
            Ok(_) => {
                self.known.store(ALLOWED, Relaxed);
                Ok(true)
            }
            Err(failure) if failure.kind == ErrorKind::PermissionDenied => {
                self.known.store(REFUSED, Relaxed);
                self.unhear(channel);
                Ok(false)
            }
            Err(failure) => Err(failure),
        }
    }

    fn refused(&self, error: &redis::RedisError) {
        if self.known.swap(REFUSED, Relaxed) != REFUSED {
            let reason = error.code().unwrap_or_default().to_owned();
            tracing::debug!(%reason, "this cluster refuses SSUBSCRIBE: hand-overs are told to every node");
        }
    }

    /// Called by the connection as it reads.
    fn pushed(&self, number: u64, push: PushInfo) -> Result<(), SendError> {
        match (push.kind, &push.data[..]) {
            (PushKind::SMessage, [_, Value::BulkString(message)]) => {
                let _ = self.arriving.send(Heard::Message(message.clone()));
            }
            (PushKind::Disconnection, _) => self.lose(number),
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                let channel = String::from_utf8_lossy(channel).into_owned();
                // Not asked for: the slot moved. Such a push can be taken for the answer to a command, so that the
                // connection is of no more use.
                if self.state().channels.get(&channel) == Some(&number) {
                    self.lose(number);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn lose(&self, number: u64) {
        let mut state = self.state();
        let before = state.channels.len();
        state.ears.retain(|_, ear| ear.number != number);
        state.channels.retain(|_, ear| *ear != number);
        if state.channels.len() < before {
            let _ = self.arriving.send(Heard::Missed);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves it whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An older server, or a user without the right.
fn is_refused(error: &redis::RedisError) -> bool {
    error.kind() == redis::ErrorKind::Server(ServerErrorKind::NoPerm) || error.to_string().contains("unknown command")
}

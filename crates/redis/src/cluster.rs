//! The masters of a cluster: which of them has a key's slot now, and how a command finds it while slots move and masters
//! are replaced.

mod batch;
mod config;
mod map;
mod redirection;
mod shards;
mod slots;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fencepost_core::{
    backoff::{Backoff, jitter},
    clock::{self, Clock, Moment},
    error::{Applied, ErrorKind},
};
use redis::{Cmd, Pipeline, Value, aio::PubSub};
use tokio::sync::watch;

pub use self::config::ClusterConfig;
use self::{
    map::Map,
    redirection::{Asking, Redirection, cluster_failure, failure_of},
    shards::Shards,
};
pub(crate) use self::{shards::Heard, slots::slot};
use crate::{config::RedisConfig, connection::Link, failure::Failure, replicas::Kept, route::Server, scripts::Script};

/// How often one command is sent elsewhere before it is told as a failure. While slots move, an answer may send it to
/// and fro a few times.
const REDIRECTIONS: usize = 8;

/// What one client knows of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// Those that the user named.
    seeds: Vec<(String, u16)>,
    /// Login and limits for every node.
    node: RedisConfig,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Held by the one task that asks for the map; when it was asked for last.
    asking: tokio::sync::Mutex<Option<(Moment, Result<(), Failure>)>>,
    shards: Arc<Shards>,
    /// Counts masters that were replaced.
    replaced: watch::Sender<u64>,
}

#[derive(Debug)]
struct State {
    map: Arc<Map>,
    /// To the nodes that were of use, by their addresses.
    links: HashMap<String, Arc<Link>>,
    /// The nodes that the user named and those of the map: one of them will know the next map.
    known: BTreeSet<(String, u16)>,
    closed: bool,
}

/// What is sent to where a key lives.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    Command(&'a Cmd),
    Script { script: &'a Script, keys: &'a [String], arguments: &'a [&'a [u8]] },
}

/// How a request is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// It must not be sent again when its outcome is unknown.
    Once,
    /// It can be repeated.
    Repeat,
    /// It can be repeated, and counts only once enough replicas have it.
    Keep,
}

impl Cluster {
    /// Connects to one of the nodes and learns the map.
    pub(crate) async fn open(config: &ClusterConfig, clock: Arc<dyn Clock>) -> Result<Self, Failure> {
        let seeds: Vec<_> = config.nodes.iter().map(|node| (node.host.clone(), node.port)).collect();
        let known = seeds.iter().cloned().collect();
        let state = State { map: Arc::default(), links: HashMap::new(), known, closed: false };
        let Some(node) = config.nodes.first().cloned() else {
            return Err(Failure::new(ErrorKind::InvalidInput, Applied::No, "no node of the cluster is named"));
        };
        let cluster = Self {
            seeds,
            node,
            clock,
            state: Mutex::new(state),
            asking: tokio::sync::Mutex::default(),
            shards: Shards::new(),
            replaced: watch::Sender::new(0),
        };
        cluster.learn(None).await?;
        Ok(cluster)
    }

    /// Sends a request to the master of `key`, and after it when that changes.
    pub(crate) async fn exchange(&self, key: &str, request: Request<'_>, care: Care) -> Result<Kept, Failure> {
        let mut unclear = false;
        let answer = self.exchange_noting(key, request, care, &mut unclear).await;
        // What was sent before may have been applied: that a later try failed does not undo that.
        answer.map_err(|failure| if unclear { failure.outcome_unknown() } else { failure })
    }

    /// Notes in `unclear` whether a try that was sent had no answer.
    async fn exchange_noting(
        &self,
        key: &str,
        request: Request<'_>,
        care: Care,
        unclear: &mut bool,
    ) -> Result<Kept, Failure> {
        let slot = slot(key);
        let until = self.clock.now().after(self.node.timeout);
        let mut pause = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
        let mut sent_to: Option<(Arc<Link>, Asking)> = None;
        let (mut redirections, mut may_reconnect) = (0, true);
        loop {
            let (link, asking) = match sent_to.take() {
                Some(there) => there,
                None => (self.master_of(slot).await?, Asking::No),
            };
            let trouble = match link.exchange(request, care, asking == Asking::Yes).await {
                Ok(kept) => return Ok(kept),
                Err(trouble) => trouble,
            };
            let failure = match Redirection::of(&trouble) {
                Redirection::To(address, asking) => {
                    let there = self.link_to(&address, &link)?;
                    if asking == Asking::No {
                        self.learn(Some(&there)).await?;
                    }
                    sent_to = Some((there, asking));
                    redirections += 1;
                    failure_of(trouble)
                }
                Redirection::Wait => {
                    clock::sleep(&*self.clock, pause.pause()).await;
                    failure_of(trouble)
                }
                Redirection::Perhaps { sent, reconnect } => {
                    let failure = failure_of(trouble);
                    *unclear |= sent;
                    if sent && care == Care::Once {
                        return Err(failure);
                    }
                    let learned = self.learn(None).await;
                    // Sent again only where that can help: to another master, or once over a connection made anew.
                    let same = learned.is_err() || Arc::ptr_eq(&self.master_of(slot).await?, &link);
                    if same && !(reconnect && std::mem::take(&mut may_reconnect)) {
                        return Err(failure);
                    }
                    failure
                }
                Redirection::None => return Err(failure_of(trouble)),
            };
            if redirections > REDIRECTIONS || self.clock.now() >= until {
                return Err(failure);
            }
        }
    }

    /// Calls a script where its keys live, which all have one slot.
    pub(crate) async fn call(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
        care: Care,
    ) -> Result<Kept, Failure> {
        let arguments: Vec<_> = arguments.iter().map(AsRef::as_ref).collect();
        self.exchange(&keys[0], Request::Script { script, keys, arguments: &arguments }, care).await
    }

    /// Sends reads to the master of `key`. While its slot moves, one that was sent elsewhere has its error among the
    /// answers, and all are read again.
    pub(crate) async fn read(&self, key: &str, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        let mut pause = Backoff::new(Duration::from_millis(5), Duration::from_millis(100));
        let until = self.clock.now().after(self.node.timeout);
        loop {
            let answers = self.master_of(slot(key)).await?.read(reads).await;
            let moved = |answer: &Value| {
                let Value::ServerError(error) = answer else { return None };
                cluster_failure(&error.clone().into())
            };
            let failure = match answers {
                Ok(answers) => match answers.iter().find_map(moved) {
                    None => return Ok(answers),
                    Some(failure) => failure,
                },
                Err(failure) if failure.kind == ErrorKind::Unavailable => failure,
                Err(failure) => return Err(failure),
            };
            if self.clock.now() >= until {
                return Err(failure);
            }
            clock::sleep(&*self.clock, pause.pause()).await;
            self.learn(None).await?;
        }
    }

    /// Listens to the messages of a channel within its slot; `false` where the cluster does not know such.
    pub(crate) async fn hear(&self, channel: &str) -> Result<bool, Failure> {
        self.shards.hear(self, channel).await
    }

    /// Stops listening to a channel.
    pub(crate) fn unhear(&self, channel: &str) {
        self.shards.unhear(channel);
    }

    /// What arrives on the channels that are listened to. Cancel safe.
    pub(crate) async fn heard(&self) -> Heard {
        self.shards.heard().await
    }

    /// Completes when a master was replaced, whose successor may not have everything. Cancel safe.
    pub(crate) async fn replaced(&self) {
        // The sender lives in `self`, so that the wait cannot fail.
        let _ = self.replaced.subscribe().changed().await;
    }

    fn config_of(&self, address: &str) -> Result<RedisConfig, Failure> {
        let (host, port) = address.rsplit_once(':').ok_or_else(Failure::puzzling)?;
        let port = port.parse().map_err(|_| Failure::puzzling())?;
        Ok(self.node.at(host.trim_start_matches('[').trim_end_matches(']'), port))
    }

    /// A connection of its own for messages, to any node: they go to all of them.
    pub(crate) async fn messages(&self) -> Result<(PubSub, Arc<Server>), Failure> {
        let masters = self.masters().await?;
        let turn = (jitter() * masters.len() as f64) as usize;
        let mut last = None;
        for link in masters.iter().cycle().skip(turn).take(masters.len()) {
            match link.messages().await {
                Ok(connected) => return Ok(connected),
                Err(failure) => last = Some(failure),
            }
        }
        // The map may be of a time before they were replaced.
        self.learn(None).await?;
        Err(last.unwrap_or_else(Failure::closed))
    }

    /// Every master that has slots.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Link>>, Failure> {
        if self.state().map.masters.is_empty() {
            self.learn(None).await?;
        }
        Ok(self.state().map.masters.clone())
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.node.connect_timeout
    }

    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.map = Arc::default();
        state.links.drain().for_each(|(_, link)| link.close());
        self.shards.close();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves it whole before anything that could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

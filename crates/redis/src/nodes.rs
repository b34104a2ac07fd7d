//! The servers behind a store: one master, or the masters of a cluster. The store names the key that a command is
//! about, and here it is known where that key lives now.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    clock::Clock,
    error::{Error, Operation},
};
use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value, aio::PubSub};

use crate::{
    cluster::{Care, Cluster, ClusterConfig, Heard, Request, slot},
    config::RedisConfig,
    connection::Link,
    failure::Failure,
    replicas::Kept,
    route::{Fixed, Server},
    scripts::Script,
    sentinel::{SentinelConfig, Sentinels, Watch},
    survey,
};

#[derive(Debug)]
pub(crate) enum Nodes {
    /// Every key lives behind one connection, whose route follows the master where there are several servers.
    One {
        link: Arc<Link>,
        /// Listens for another master, where anybody announces one.
        watch: Mutex<Option<Watch>>,
    },
    /// Every key lives with the master that has its slot.
    Cluster(Box<Cluster>),
}

/// How a waiter hears of its turn, and how a script can tell that it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Not by a message: it asks.
    Polling,
    /// By a message, and the server counts who heard it.
    Counted,
    /// The master of the lock's slot counts who heard it, on a channel of the lock's own.
    Sharded,
    /// The message goes to every node, and each counts its own listeners only.
    Broadcast,
}

impl Reach {
    /// As the scripts know it.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Polling => "p",
            Self::Counted => "s",
            Self::Sharded => "h",
            Self::Broadcast => "b",
        }
    }
}

impl Nodes {
    /// One server.
    pub(crate) async fn single(config: &RedisConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let link = Arc::new(Link::new(Fixed::new(config)?, config, clock));
        survey::greet(&link).await.map_err(opening)?;
        Ok(Self::One { link, watch: Mutex::default() })
    }

    /// The master that sentinels watch.
    pub(crate) async fn watched(config: &SentinelConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let sentinels = Sentinels::new(config)?;
        let route = Arc::new(sentinels);
        let link = Arc::new(Link::new(route.clone(), &config.master, clock.clone()));
        survey::greet(&link).await.map_err(opening)?;
        let watch = Watch::start(&route, &link, &clock);
        Ok(Self::One { link, watch: Mutex::new(Some(watch)) })
    }

    /// The masters of a cluster.
    pub(crate) async fn cluster(config: &ClusterConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let nodes = Self::Cluster(Box::new(Cluster::open(config, clock).await.map_err(opening)?));
        survey::look_at_masters(&nodes).await;
        Ok(nodes)
    }

    /// Sends a command that can be repeated, to where `key` lives.
    pub(crate) async fn ask(&self, key: &str, command: &Cmd) -> Result<Value, Failure> {
        match self {
            Self::One { link, .. } => link.ask(command).await,
            Self::Cluster(cluster) => value_of(cluster.exchange(key, Request::Command(command), Care::Repeat).await),
        }
    }

    /// As [`ask`](Nodes::ask), for what counts only once enough replicas have it.
    pub(crate) async fn ask_kept(&self, key: &str, command: &Cmd) -> Result<Kept, Failure> {
        match self {
            Self::One { link, .. } => link.ask_kept(command).await,
            Self::Cluster(cluster) => cluster.exchange(key, Request::Command(command), Care::Keep).await,
        }
    }

    /// Calls a script that can be repeated, where its keys live.
    pub(crate) async fn call(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<Value, Failure> {
        match self {
            Self::One { link, .. } => link.call(script, keys, arguments).await,
            Self::Cluster(cluster) => value_of(cluster.call(script, keys, arguments, Care::Repeat).await),
        }
    }

    /// As [`call`](Nodes::call), for what counts only once enough replicas have it.
    pub(crate) async fn call_kept(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[&str],
    ) -> Result<Kept, Failure> {
        match self {
            Self::One { link, .. } => link.call_kept(script, keys, arguments).await,
            Self::Cluster(cluster) => cluster.call(script, keys, arguments, Care::Keep).await,
        }
    }

    /// As [`call_kept`](Nodes::call_kept), many times over, with as few round trips as the nodes allow. Where there are
    /// several, one that is silent has its answers replaced `within` this time.
    pub(crate) async fn call_many(
        &self,
        script: &Script,
        calls: &[(Vec<String>, Vec<String>)],
        within: Duration,
    ) -> Vec<Result<Kept, Failure>> {
        match self {
            Self::One { link, .. } => {
                let each = calls.iter().map(|(keys, arguments)| async move {
                    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
                    link.call_kept(script, keys, &arguments).await
                });
                join_all(each).await
            }
            Self::Cluster(cluster) => cluster.call_many(script, calls, within).await,
        }
    }

    /// Calls a script that must not be repeated.
    pub(crate) async fn call_unrepeated(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[impl AsRef<[u8]>],
    ) -> Result<Value, Failure> {
        match self {
            Self::One { link, .. } => link.call_unrepeated(script, keys, arguments).await,
            Self::Cluster(cluster) => value_of(cluster.call(script, keys, arguments, Care::Once).await),
        }
    }

    /// Sends reads of what lives with `key`. A command that fails has its error among the answers.
    pub(crate) async fn read(&self, key: &str, reads: &mut Pipeline) -> Result<Vec<Value>, Failure> {
        match self {
            Self::One { link, .. } => link.read(reads).await,
            Self::Cluster(cluster) => cluster.read(key, reads).await,
        }
    }

    /// The connections that lead to every key there is.
    pub(crate) async fn masters(&self) -> Result<Vec<Arc<Link>>, Failure> {
        match self {
            Self::One { link, .. } => Ok(vec![link.clone()]),
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }

    /// Whether one script can work on any keys together.
    pub(crate) fn is_one(&self) -> bool {
        matches!(self, Self::One { .. })
    }

    /// Groups of at most `most` items in their order, each of which one command or pipeline may name together.
    pub(crate) fn together<'a, T>(&self, items: &'a [T], most: usize, key: impl Fn(&T) -> String) -> Vec<&'a [T]> {
        match self {
            Self::One { .. } => items.chunks(most).collect(),
            Self::Cluster(_) => {
                let groups = items.chunk_by(|a, b| slot(&key(a)) == slot(&key(b)));
                groups.flat_map(|group| group.chunks(most)).collect()
            }
        }
    }

    /// Sees to it that messages for a client's waiters at a lock are heard, and says how they are. `key` is the lock's.
    pub(crate) async fn hear(&self, key: &str, client: &str) -> Result<Reach, Failure> {
        match self {
            Self::One { .. } => Ok(Reach::Counted),
            Self::Cluster(cluster) => match cluster.hear(&shard_channel(key, client)).await? {
                true => Ok(Reach::Sharded),
                false => Ok(Reach::Broadcast),
            },
        }
    }

    /// The client waits there no longer.
    pub(crate) fn unhear(&self, key: &str, client: &str) {
        match self {
            Self::One { .. } => {}
            Self::Cluster(cluster) => cluster.unhear(&shard_channel(key, client)),
        }
    }

    /// What arrives beside the connection for messages. Cancel safe.
    pub(crate) async fn heard(&self) -> Heard {
        match self {
            Self::One { .. } => std::future::pending().await,
            Self::Cluster(cluster) => cluster.heard().await,
        }
    }

    /// A connection of its own for messages, and the server it leads to.
    pub(crate) async fn messages(&self) -> Result<(PubSub, Arc<Server>), Failure> {
        match self {
            Self::One { link, .. } => link.messages().await,
            Self::Cluster(cluster) => cluster.messages().await,
        }
    }

    /// Completes when messages are to be heard at another server than this one. Cancel safe.
    pub(crate) async fn moved_from(&self, server: &Server) {
        match self {
            Self::One { link, .. } => link.moved_from(server).await,
            // Any node will do. But whoever follows has reason for doubt when one of the masters was replaced.
            Self::Cluster(cluster) => cluster.replaced().await,
        }
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        match self {
            Self::One { link, .. } => link.connect_timeout(),
            Self::Cluster(cluster) => cluster.connect_timeout(),
        }
    }

    pub(crate) fn close(&self) {
        match self {
            Self::One { link, watch } => {
                watch.lock().unwrap_or_else(PoisonError::into_inner).take();
                link.close();
            }
            Self::Cluster(cluster) => cluster.close(),
        }
    }
}

/// As `scripts/queue.lua` has it: it begins with the lock's key, so that it has the lock's slot.
fn shard_channel(key: &str, client: &str) -> String {
    format!("{key}:{client}")
}

fn value_of(kept: Result<Kept, Failure>) -> Result<Value, Failure> {
    kept.map(|kept| kept.value)
}

fn opening(failure: Failure) -> Error {
    failure.error(Operation::Open, None)
}

//! The floor of Redlock: the bare commands to every server at once, over the same kind of connections, as fast as the
//! slowest of the fastest majority.

use fencepost::{Error, Namespace, clock::Moment, url::StoreUrl};
use fencepost_redis::redlock::RedlockConfig;
use futures_util::{StreamExt, stream::FuturesUnordered};
use redis::{Cmd, aio::MultiplexedConnection, cmd};

use super::redis::{SCRIPT, TTL_MS, VALUE, connect, failed, key, read_commands};
use crate::{
    floor::{Commands, Cycle, Floor, Measured, Measuring},
    report::Goal,
    samples::Samples,
};

#[derive(Debug)]
pub(crate) struct RedlockFloor {
    /// Not among the measured ones, so that asking costs them nothing.
    asking: Vec<MultiplexedConnection>,
    commands: BareCommands,
    round_trip: RoundTrip,
}

impl RedlockFloor {
    pub(crate) async fn open(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let config = RedlockConfig::from_url(url)?;
        let (mut asking, mut connections, mut hash) = (Vec::new(), Vec::new(), String::new());
        for node in &config.nodes {
            let mut connection = connect(node).await.map_err(failed)?;
            hash = cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await.map_err(failed)?;
            asking.push(connection);
            connections.push(connect(node).await.map_err(failed)?);
        }
        let all = Everyone { needed: connections.len() / 2 + 1, connections };
        let prefix = format!("{namespace}:");
        Ok(Self {
            asking,
            round_trip: RoundTrip { all: all.clone(), prefix: prefix.clone() },
            commands: BareCommands { all, prefix, hash },
        })
    }
}

impl Floor for RedlockFloor {
    fn cycles(&self) -> Vec<Measured<'_>> {
        vec![Measured {
            what: "SET NX PX and EVALSHA to all, until a majority has answered, same kind of connections",
            cycle: &self.commands,
            time_goal: Some(Goal::AtMost(1.2)),
            throughput_goal: None,
            at_once: true,
        }]
    }

    fn message(&self) -> Measured<'_> {
        Measured {
            what: "one round trip (SET) to all, until a majority has answered",
            cycle: &self.round_trip,
            time_goal: Some(Goal::AtMost(2.5)),
            throughput_goal: None,
            at_once: true,
        }
    }

    fn commands(&self) -> Measuring<'_, Option<Commands>> {
        Box::pin(async move {
            let mut sum = Commands::default();
            for connection in &self.asking {
                let mut asking = connection.clone();
                let text: String = cmd("INFO").arg("commandstats").query_async(&mut asking).await.map_err(failed)?;
                sum = sum.and(read_commands(&text));
            }
            Ok(Some(sum))
        })
    }
}

#[derive(Clone, Debug)]
struct Everyone {
    connections: Vec<MultiplexedConnection>,
    needed: usize,
}

impl Everyone {
    /// Sends to all, and is done when a majority has answered.
    async fn ask(&self, command: &Cmd) -> Result<(), Error> {
        let mut asked: FuturesUnordered<_> = self
            .connections
            .iter()
            .map(|connection| {
                let mut connection = connection.clone();
                async move { command.query_async::<redis::Value>(&mut connection).await }
            })
            .collect();
        for _ in 0..self.needed {
            if let Some(answer) = asked.next().await {
                answer.map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// `SET NX PX`, then the script.
#[derive(Debug)]
struct BareCommands {
    all: Everyone,
    prefix: String,
    hash: String,
}

impl Cycle for BareCommands {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = key(&self.prefix, name);
        Box::pin(async move {
            samples
                .fill(until, async || {
                    let mut set = cmd("SET");
                    set.arg(&key).arg(VALUE).arg("NX").arg("PX").arg(TTL_MS);
                    self.all.ask(&set).await?;
                    let mut delete = cmd("EVALSHA");
                    delete.arg(&self.hash).arg(1).arg(&key).arg(VALUE);
                    self.all.ask(&delete).await
                })
                .await
        })
    }
}

#[derive(Debug)]
struct RoundTrip {
    all: Everyone,
    prefix: String,
}

impl Cycle for RoundTrip {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = key(&self.prefix, name);
        Box::pin(async move {
            samples
                .fill(until, async || {
                    let mut set = cmd("SET");
                    set.arg(&key).arg(VALUE).arg("PX").arg(TTL_MS);
                    self.all.ask(&set).await
                })
                .await
        })
    }
}

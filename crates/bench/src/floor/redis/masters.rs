//! Where a key lives: at one master, by name or by the word of a sentinel, or at one of a cluster's by its slot.

use std::ops::RangeInclusive;

use fencepost::Error;
use fencepost_redis::{ClusterConfig, RedisConfig, SentinelConfig};
use redis::{FromRedisValue, Value, aio::MultiplexedConnection, cmd};

use super::{connect, failed};

/// One connection to each.
#[derive(Clone)]
pub(super) struct Masters {
    connections: Vec<MultiplexedConnection>,
    /// Which of them has which slots; empty where there is only one.
    slots: Vec<(RangeInclusive<u16>, usize)>,
}

impl Masters {
    pub(super) async fn one(config: &RedisConfig) -> Result<Self, Error> {
        Ok(Self { connections: vec![connect(config).await.map_err(failed)?], slots: Vec::new() })
    }

    /// By the word of the first node.
    pub(super) async fn of_cluster(config: &ClusterConfig) -> Result<Self, Error> {
        let node = config.nodes.first().ok_or_else(|| failed("no node of the cluster is named"))?;
        let mut asking = connect(node).await.map_err(failed)?;
        let ranges: Vec<Vec<Value>> = cmd("CLUSTER").arg("SLOTS").query_async(&mut asking).await.map_err(failed)?;
        let (mut addresses, mut masters) = (Vec::new(), Self { connections: Vec::new(), slots: Vec::new() });
        for range in ranges {
            let (slots, host, port) = read(range).ok_or_else(|| failed("CLUSTER SLOTS makes no sense"))?;
            let host = host.filter(|host| !host.is_empty()).unwrap_or_else(|| node.host.clone());
            let address = (host, port);
            let place = match addresses.iter().position(|known| *known == address) {
                Some(place) => place,
                None => {
                    let at = RedisConfig { host: address.0.clone(), port, ..node.clone() };
                    masters.connections.push(connect(&at).await.map_err(failed)?);
                    addresses.push(address);
                    addresses.len() - 1
                }
            };
            masters.slots.push((slots, place));
        }
        Ok(masters)
    }

    /// The one that has this key.
    pub(super) async fn of(&self, key: &str) -> Result<MultiplexedConnection, Error> {
        let mut any = self.connections.first().ok_or_else(|| failed("no master is known"))?.clone();
        if self.slots.is_empty() {
            return Ok(any);
        }
        let slot: u16 = cmd("CLUSTER").arg("KEYSLOT").arg(key).query_async(&mut any).await.map_err(failed)?;
        let place = self.slots.iter().find(|(slots, _)| slots.contains(&slot)).map(|(_, place)| *place);
        place.and_then(|place| self.connections.get(place).cloned()).ok_or_else(|| failed("no master has the slot"))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = MultiplexedConnection> {
        self.connections.iter().cloned()
    }
}

/// A range of slots and where its master is.
fn read(range: Vec<Value>) -> Option<(RangeInclusive<u16>, Option<String>, u16)> {
    let [first, last, master, ..] = &range[..] else { return None };
    let number = |value: &Value| u16::from_redis_value(value.clone()).ok();
    let Value::Array(master) = master else { return None };
    let [host, port, ..] = &master[..] else { return None };
    let host = Option::<String>::from_redis_value(host.clone()).ok()?;
    Some((number(first)?..=number(last)?, host, number(port)?))
}

/// How to reach the master that the first sentinel who answers names.
pub(super) async fn named(config: &SentinelConfig) -> Result<RedisConfig, Error> {
    let mut failure = failed("no sentinel is named");
    for sentinel in &config.sentinels {
        let asked = async {
            let mut connection = connect(sentinel).await?;
            let mut question = cmd("SENTINEL");
            question.arg("GET-MASTER-ADDR-BY-NAME").arg(&config.service);
            question.query_async::<(String, u16)>(&mut connection).await
        };
        match asked.await {
            Ok((host, port)) => return Ok(RedisConfig { host, port, ..config.master.clone() }),
            Err(error) => failure = failed(error),
        }
    }
    Err(failure)
}

//! The places of the stores in this workspace.

mod cluster;
mod etcd;
mod file;
mod memory;
mod postgres;
mod redis;
mod redlock;
mod sentinel;
mod zookeeper;

use fencepost::registry;
use fencepost_core::capabilities::Capabilities;

pub use cluster::{ClusterSite, cluster, cluster_of_its_own};
pub use etcd::{EtcdSite, etcd, etcd_trio};
pub use file::{FileSite, file};
pub use memory::{MemorySite, memory};
pub use postgres::{PostgresSite, postgres, postgres_session};
pub use redis::{RedisSite, redis};
pub use redlock::{RedlockSite, redlock};
pub use sentinel::{SentinelSite, sentinel};
pub use zookeeper::{ZooKeeperSite, ZooKeeperTrio, zookeeper, zookeeper_trio};

/// What the store behind a scheme says of itself.
fn capabilities_of(scheme: &str) -> Capabilities {
    let found = registry::SCHEMES.iter().find(|known| known.names.contains(&scheme));
    (found.expect("the store is built in").capabilities)()
}

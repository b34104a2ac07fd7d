//! Real servers under control: on free ports of the loopback interface, in temporary directories, ended by their
//! process id when dropped. And a network in front of them that can be disturbed.
//!
//! Tests, benchmarks and the fault laboratory share these; nothing here knows a lock.

mod certificates;
mod cluster;
mod etcd;
mod lan;
mod log;
mod namespaces;
mod network;
mod pgbouncer;
mod postgres;
mod redis;
mod sentinel;
mod slow_disk;
mod small_disk;
mod survivors;
mod wall_clock;
mod zookeeper;

pub use certificates::Certificates;
pub use cluster::ClusterSet;
pub use etcd::EtcdCluster;
pub use lan::{Host, Lan, Place, Shore};
pub use namespaces::{HERE, Namespaces};
pub use network::{Network, Weather, Witness};
pub use pgbouncer::PgBouncer;
pub use postgres::{Administrator, PostgresServer, Rows};
pub use redis::{RedisServer, Reply};
pub use sentinel::{SERVICE, SentinelSet, sentinel_beside, sentinel_naming, sentinel_naming_with};
pub use slow_disk::SlowDisk;
pub use small_disk::SmallDisk;
pub use survivors::{end_with_us, mark};
pub use wall_clock::WallClock;
pub use zookeeper::{Admin, Refused, TICK, ZooKeeperEnsemble, ZooKeeperServer};

/// Copies the files of one directory into another.
fn copy_files(from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

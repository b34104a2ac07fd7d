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

/// A copy of a server's data as they are.
fn snapshot(data: &std::path::Path) -> std::io::Result<tempfile::TempDir> {
    let copy = tempfile::tempdir()?;
    copy_files(data, copy.path())?;
    Ok(copy)
}

/// Puts a copy in the place of a server's data.
fn restore(copy: &std::path::Path, data: &std::path::Path) -> std::io::Result<()> {
    let _ = std::fs::remove_dir_all(data); // there may be none
    std::fs::create_dir(data)?;
    copy_files(copy, data)
}

/// Copies the files of one directory into another.
fn copy_files(from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
    for file in std::fs::read_dir(from)? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

//! Which servers are installed, beside those that the expectations were seen on.

use std::{
    ffi::OsString,
    process::{Command, Stdio},
};

use crate::subject::StoreKind;

/// A server's program, and the versions on which the expected verdicts were seen.
struct Server {
    name: &'static str,
    seen_on: &'static str,
    installed: fn() -> Option<String>,
}

const REDIS: Server = Server { name: "Redis", seen_on: "7.0", installed: || said_by("redis-server", "v=") };
const ETCD: Server = Server { name: "etcd", seen_on: "3.4", installed: || said_by("etcd", "etcd Version: ") };
const POSTGRES: Server = Server { name: "PostgreSQL", seen_on: "15", installed: newest_postgres };
const ZOOKEEPER: Server = Server { name: "ZooKeeper", seen_on: "3.8", installed: zookeeper_jar };

/// What to tell people about the servers of these stores: those of other versions than the expectations are from.
pub fn remarks(stores: impl Iterator<Item = StoreKind>) -> Vec<String> {
    let mut servers: Vec<Server> = stores.filter_map(server).collect();
    servers.sort_by_key(|server| server.name);
    servers.dedup_by_key(|server| server.name);
    servers.iter().filter_map(|server| remark(server, &(server.installed)()?)).collect()
}

fn remark(server: &Server, installed: &str) -> Option<String> {
    let same =
        installed.strip_prefix(server.seen_on).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()));
    let Server { name, seen_on, .. } = server;
    let said =
        || format!("{name} {installed} is installed; what is expected was seen on {name} {seen_on}, and may differ");
    (!same).then(said)
}

fn server(store: StoreKind) -> Option<Server> {
    use StoreKind::{
        Cluster, Etcd, EtcdCluster, File, PgBouncer, Postgres, PostgresSession, PostgresStandby, PostgresSynchronous,
        Redis, Redlock, Sentinel, ZooKeeper, ZooKeeperEnsemble,
    };
    match store {
        File => None,
        Redis | Sentinel | Cluster | Redlock => Some(REDIS),
        Etcd | EtcdCluster => Some(ETCD),
        ZooKeeper | ZooKeeperEnsemble => Some(ZOOKEEPER),
        Postgres | PostgresSession | PostgresStandby | PostgresSynchronous | PgBouncer => Some(POSTGRES),
    }
}

/// The word behind `mark` in what a program says of its version. One that is missing is told elsewhere.
fn said_by(program: &str, mark: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.split_once(mark)?.1.split_whitespace().next().map(str::to_owned)
}

fn newest_postgres() -> Option<String> {
    let installed = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    let newest = installed.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok()).max()?;
    Some(newest.to_string())
}

/// Of the package's file there is one with its version in its name.
fn zookeeper_jar() -> Option<String> {
    let jars = std::fs::read_dir("/usr/share/java").ok()?.flatten().map(|entry| entry.file_name());
    let version = |jar: OsString| Some(jar.to_str()?.strip_prefix("zookeeper-")?.strip_suffix(".jar")?.to_owned());
    jars.filter_map(version).find(|version| version.starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_other_versions_are_remarked_on() {
        assert_eq!(remark(&REDIS, "7.0.15"), None);
        assert!(remark(&REDIS, "7.01").is_some_and(|said| said.contains("Redis 7.01 is installed")));
        assert_eq!(remark(&POSTGRES, "15"), None);
        assert!(remark(&POSTGRES, "151").is_some());
    }

    #[test]
    fn the_version_of_each_installed_server_is_found() {
        for server in [REDIS, ETCD, POSTGRES, ZOOKEEPER] {
            let installed = (server.installed)();
            assert!(
                installed.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit())),
                "{}",
                server.name
            );
        }
    }
}

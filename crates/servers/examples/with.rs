//! Starts servers, runs a command with their URL in `FENCEPOST_STORE`, and ends them when it ends:
//!
//! ```text
//! cargo run -p fencepost-servers --example with -- cluster target/release/fencepost bench --only handover
//! ```
#![allow(clippy::print_stderr)] // it is a command itself

use std::{any::Any, env, process::Command, process::ExitCode};

use fencepost_servers::{ClusterSet, EtcdCluster, PostgresServer, RedisServer, SentinelSet, ZooKeeperServer};

const USAGE: &str = "with redis|sentinel|cluster|redlock|etcd|zookeeper|postgres COMMAND [ARGUMENT]…";

fn main() -> ExitCode {
    let mut words = env::args().skip(1);
    let (Some((_servers, url)), Some(program)) = (words.next().and_then(|what| started(&what)), words.next()) else {
        eprintln!("usage: {USAGE}");
        return ExitCode::from(2);
    };
    match Command::new(&program).args(words).env("FENCEPOST_STORE", url).status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| code.try_into().ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::from(127)
        }
    }
}

/// Servers that end when they are dropped, and the URL of all of them.
fn started(what: &str) -> Option<(Box<dyn Any>, String)> {
    fn kept<S: 'static>(servers: S, url: impl Fn(&S) -> String) -> Option<(Box<dyn Any>, String)> {
        let url = url(&servers);
        Some((Box::new(servers), url))
    }
    match what {
        "redis" => kept(RedisServer::start(), RedisServer::url),
        "sentinel" => kept(SentinelSet::start(), SentinelSet::url),
        "cluster" => kept(ClusterSet::start(), ClusterSet::url),
        "redlock" => kept([(); 5].map(|()| RedisServer::start()), |servers| {
            let hosts = servers.each_ref().map(|server| server.address().to_string());
            // They have just started, forget nothing, and share the processors with the command.
            format!("redlock://{}?restart_guard=0&node_timeout=1s", hosts.join(","))
        }),
        "etcd" => kept(EtcdCluster::start(1), EtcdCluster::url),
        "zookeeper" => kept(ZooKeeperServer::start(), ZooKeeperServer::url),
        // Empty yet: `sh -c 'fencepost migrate && …'`.
        "postgres" => kept(PostgresServer::start(), |server| server.url("postgres")),
        _ => None,
    }
}

//! The floor of etcd: the bare transaction and delete over the same kind of connection.

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};

use fencepost::{Error, Namespace, clock::Moment, url::StoreUrl};
use fencepost_etcd::{BareEtcd, EtcdConfig};

use crate::{
    floor::{Beside, Commands, Cycle, Floor, Measured, Measuring},
    report::Goal,
    samples::Samples,
};

/// As long as what a lock's key holds.
const VALUE: &[u8] = &[b'x'; 120];

#[derive(Debug)]
pub(crate) struct EtcdFloor {
    members: Vec<String>,
    requests: BareRequests,
    round_trip: RoundTrip,
}

impl EtcdFloor {
    pub(crate) async fn open(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let config = EtcdConfig::from_url(url)?;
        let bare = BareEtcd::connect(&config).await?;
        // Not where locks lie, so that no listing takes it for one.
        let prefix = format!("{namespace}/floor/");
        Ok(Self {
            members: config.members,
            requests: BareRequests { bare: bare.clone(), prefix: prefix.clone() },
            round_trip: RoundTrip { bare, prefix },
        })
    }
}

impl Floor for EtcdFloor {
    fn cycles(&self) -> Vec<Measured<'_>> {
        vec![Measured {
            what: "one txn and one delete, same kind of connection",
            cycle: &self.requests,
            time_goal: Some(Goal::AtMost(1.10)),
            throughput_goal: None,
            at_once: true,
        }]
    }

    fn message(&self) -> Measured<'_> {
        Measured {
            what: "one write (delete), same kind of connection",
            cycle: &self.round_trip,
            // Two after the release is applied; it is applied half a round trip after it was sent.
            time_goal: Some(Goal::AtMost(2.5)),
            throughput_goal: None,
            at_once: true,
        }
    }

    fn commands(&self) -> Measuring<'_, Option<Commands>> {
        // A member's metrics tell of its own requests; which one the clients are connected to is not known here.
        let only = self.members.first().filter(|_| self.members.len() == 1);
        let text = only.and_then(|member| metrics(member).ok());
        Box::pin(std::future::ready(Ok(text.map(|text| read_commands(&text)))))
    }

    fn uncounted(&self) -> &'static str {
        "no requests counted: each server tells of its own only, and which one the clients are connected to is not known"
    }

    fn counted(&self) -> [&'static str; 2] {
        ["requests", "commits"]
    }

    fn beside(&self, name: &str) -> Option<Beside> {
        let mut command = Command::new("etcdctl");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &self.members.join(","), "lock", name, "true"]);
        Some(Beside { what: "etcdctl lock x true", command, goal: None })
    }
}

/// A member serves its metrics on the port for clients, unless it was told otherwise.
fn metrics(member: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(member)?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Requests that the server has received, and what its cluster has committed. Messages on an open stream, as that of
/// watches is, do not count as requests.
fn read_commands(text: &str) -> Commands {
    let value = |line: &str| line.rsplit(' ').next().and_then(|number| number.parse::<f64>().ok()).unwrap_or_default();
    let sum = |name: &str| text.lines().filter(|line| line.starts_with(name)).map(value).sum::<f64>() as u64;
    Commands { scripts: sum("grpc_server_started_total{"), all: sum("etcd_server_proposals_committed_total ") }
}

#[derive(Debug)]
struct BareRequests {
    bare: BareEtcd,
    prefix: String,
}

impl Cycle for BareRequests {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = format!("{}{name}", self.prefix).into_bytes();
        Box::pin(async move {
            samples
                .fill(until, async || {
                    self.bare.put_if_absent(&key, VALUE).await?;
                    self.bare.delete(&key).await
                })
                .await
        })
    }
}

#[derive(Debug)]
struct RoundTrip {
    bare: BareEtcd,
    prefix: String,
}

impl Cycle for RoundTrip {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        let key = format!("{}{name}", self.prefix).into_bytes();
        Box::pin(async move { samples.fill(until, async || self.bare.delete(&key).await).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_counts_are_read() {
        let text = "# HELP x\ngrpc_server_started_total{grpc_method=\"Txn\"} 3\n\
                    grpc_server_started_total{grpc_method=\"Watch\"} 4\netcd_server_proposals_committed_total 5\n";
        let commands = read_commands(text);
        assert_eq!((commands.scripts, commands.all), (7, 5));
    }
}

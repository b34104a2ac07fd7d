//! The floor of ZooKeeper: the bare creation of a node, with a look at the queue behind it, and its deletion, over the same kind of connection.

mod kazoo;

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use fencepost::{Error, Namespace, clock::Moment, url::StoreUrl};
use fencepost_zookeeper::{BareZooKeeper, ZooKeeperConfig};

use self::kazoo::Kazoo;
use crate::{
    floor::{Beside, Commands, Cycle, Floor, Measured, Measuring},
    report::Goal,
    samples::Samples,
};

/// As long as what a lock's node holds.
const DATA: &[u8] = &[b'x'; 80];

#[derive(Debug)]
pub(crate) struct ZooKeeperFloor {
    servers: Vec<(String, u16)>,
    kazoo: Kazoo,
    requests: BareRequests,
    round_trip: RoundTrip,
}

impl ZooKeeperFloor {
    pub(crate) async fn open(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let config = ZooKeeperConfig::from_url(url)?;
        let bare = BareZooKeeper::connect(&config).await?;
        // Not where locks lie, so that no listing takes it for one.
        let containers = format!("{namespace}-floor");
        bare.make_container(&containers).await?;
        Ok(Self {
            kazoo: Kazoo::new(&config.servers, &config.chroot),
            servers: config.servers,
            requests: BareRequests { bare: bare.clone(), containers },
            round_trip: RoundTrip { bare },
        })
    }
}

impl Floor for ZooKeeperFloor {
    fn cycles(&self) -> Vec<Measured<'_>> {
        let bare = Measured {
            what: "create (children read behind it) and delete, same kind of connection",
            cycle: &self.requests,
            time_goal: Some(Goal::AtMost(1.15)),
            throughput_goal: None,
            at_once: true,
        };
        let kazoo = self.kazoo.is_installed().then_some(Measured {
            what: "kazoo's Lock, in a Python process with one session",
            cycle: &self.kazoo,
            time_goal: None,
            throughput_goal: None,
            at_once: false,
        });
        [bare].into_iter().chain(kazoo).collect()
    }

    fn message(&self) -> Measured<'_> {
        Measured {
            what: "one write (an empty transaction), same kind of connection",
            cycle: &self.round_trip,
            // Two after the release is applied; it is applied half a round trip after it was sent.
            time_goal: Some(Goal::AtMost(2.5)),
            throughput_goal: None,
            at_once: true,
        }
    }

    fn commands(&self) -> Measuring<'_, Option<Commands>> {
        // A server tells of its own requests; which one the clients are connected to is not known here.
        let only = self.servers.first().filter(|_| self.servers.len() == 1);
        let text = only.and_then(|(host, port)| figures(host, *port).ok());
        Box::pin(std::future::ready(Ok(text.and_then(|text| read_commands(&text)))))
    }

    fn uncounted(&self) -> &'static str {
        "no requests counted: each server tells of its own only, and which one the clients are connected to is not known"
    }

    fn counted(&self) -> [&'static str; 2] {
        ["requests", "transactions"]
    }

    fn beside(&self, name: &str) -> Option<Beside> {
        self.kazoo.once(name)
    }
}

/// What the server says of itself; every server answers this much.
fn figures(host: &str, port: u16) -> std::io::Result<String> {
    let mut stream = TcpStream::connect((host, port))?;
    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
    stream.write_all(b"srvr")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// Requests that the server has received, and transactions, which its ensemble counts.
fn read_commands(text: &str) -> Option<Commands> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let transactions = u64::from_str_radix(value("Zxid: 0x")?.trim(), 16).ok()?;
    Some(Commands { scripts: value("Received: ")?.trim().parse().ok()?, all: transactions })
}

#[derive(Debug)]
struct BareRequests {
    bare: BareZooKeeper,
    /// Where each name has a container of its own, as each lock has.
    containers: String,
}

impl Cycle for BareRequests {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        // A slash would ask for a node between.
        let container = format!("{}/{}", self.containers, name.replace('/', "-"));
        let node = format!("{}-x-", "0".repeat(40));
        Box::pin(async move {
            self.bare.make_container(&container).await?;
            samples
                .fill(until, async || {
                    let node = self.bare.create(&container, &node, DATA).await?;
                    self.bare.delete(&node).await
                })
                .await
        })
    }
}

#[derive(Debug)]
struct RoundTrip {
    bare: BareZooKeeper,
}

impl Cycle for RoundTrip {
    fn run<'a>(&'a self, _: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move { samples.fill(until, async || self.bare.round_trip().await).await })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_counts_are_read() {
        let commands =
            read_commands("Latency min/avg/max: 0/0.0/0\nReceived: 7\nSent: 6\nZxid: 0x1f\nMode: standalone\n");
        let commands = commands.expect("both are there");
        assert_eq!((commands.scripts, commands.all), (7, 31));
    }
}

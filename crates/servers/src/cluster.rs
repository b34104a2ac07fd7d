use std::net::SocketAddr;

use crate::redis::{RedisServer, Reply, eventually, free_address};

const SLOTS: usize = 16384;
const MASTERS: usize = 3;

/// A cluster of three masters with a replica each. A crash is noticed after a second.
///
/// Once started, every node knows every other, and every replica has its master's data.
#[derive(Debug)]
pub struct ClusterSet {
    nodes: Vec<RedisServer>,
}

impl ClusterSet {
    /// Starts one.
    ///
    /// # Panics
    /// When the executable is missing, or the nodes do not agree.
    pub fn start() -> Self {
        let nodes = (0..2 * MASTERS).map(|_| start_node()).collect();
        let set = Self { nodes };
        set.assemble();
        set.settle();
        set
    }

    /// The commands that `redis-cli --cluster create` would send, without its pauses.
    fn assemble(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            ok(node, &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]);
        }
        for (number, master) in self.nodes[..MASTERS].iter().enumerate() {
            let (first, last) = (SLOTS * number / MASTERS, SLOTS * (number + 1) / MASTERS - 1);
            ok(master, &["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        for (number, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[number + 1..] {
                let port = other.address().port().to_string();
                ok(node, &["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port(other).to_string()]);
            }
        }
        eventually("every node knows every other", || {
            let known = format!("cluster_known_nodes:{}", self.nodes.len());
            self.nodes.iter().all(|node| node.said(&["CLUSTER", "INFO"]).contains(&known))
        });
        for (master, replica) in self.nodes.iter().zip(&self.nodes[MASTERS..]) {
            let id = id(master);
            eventually("a replica knows its master", || {
                replica.command(&["CLUSTER", "REPLICATE", &id]) == Reply::Text("OK".to_owned())
            });
        }
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        let places: Vec<_> = self.nodes.iter().map(|node| node.address().to_string()).collect();
        format!("redis+cluster://{}", places.join(","))
    }

    /// From now on the nodes tell each other's ports only, and clients go on with the host that they have reached: as behind
    /// an address translation.
    ///
    /// # Panics
    /// When a node refuses.
    pub fn tell_ports_only(&self) {
        let words = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"];
        self.nodes.iter().for_each(|node| ok(node, &words));
    }

    /// The nodes, the first masters first.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The masters that live.
    pub fn masters(&self) -> impl Iterator<Item = &RedisServer> {
        self.nodes.iter().filter(|node| node.said(&["INFO", "replication"]).contains("role:master"))
    }

    /// The slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        match self.nodes.iter().find_map(|node| node.try_command(&["CLUSTER", "KEYSLOT", key]).ok()) {
            Some(Reply::Number(slot)) => u16::try_from(slot).expect("a slot"),
            other => panic!("a slot: {other:?}"),
        }
    }

    /// The live master that says of itself that a slot is its own.
    ///
    /// # Panics
    /// When there is none.
    pub fn master_of(&self, slot: u16) -> &RedisServer {
        let mut found = None;
        eventually("a master has the slot", || {
            found = self.masters().find(|master| has_slot(master, slot));
            found.is_some()
        });
        found.expect("just found")
    }

    /// A live replica of a slot's master.
    ///
    /// # Panics
    /// When there is none.
    pub fn replica_of(&self, slot: u16) -> &RedisServer {
        let port = format!("master_port:{}\r", self.master_of(slot).address().port());
        let replica = self.nodes.iter().find(|node| node.said(&["INFO", "replication"]).contains(&port));
        replica.expect("a replica of the slot's master")
    }

    /// Makes every replica the master in place of its own, one after another, as in a rolling restart.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn fail_over_everywhere(&self) {
        for master in 0..MASTERS {
            self.fail_over(u16::try_from(SLOTS * master / MASTERS).expect("a slot"));
        }
    }

    /// Makes the replica of a slot's master the master, as an administrator would. Nothing is lost by it.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn fail_over(&self, slot: u16) {
        let (old, new) = (self.master_of(slot), self.replica_of(slot));
        let mut looks = 0;
        eventually("the replica takes over", || {
            // The replica gives up after five seconds, which a busy machine may need: it is told again then.
            if looks % 300 == 0 && !has_slot(new, slot) {
                new.command(&["CLUSTER", "FAILOVER"]);
            }
            looks += 1;
            has_slot(new, slot) && old.said(&["INFO", "replication"]).contains("role:slave")
        });
    }

    /// Waits until a slot has another master than `old`, which is down, and the cluster is whole.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn await_other_master(&self, slot: u16, old: SocketAddr) {
        eventually("the slot has another master", || {
            self.masters().any(|master| master.address() != old && has_slot(master, slot) && is_whole(master))
        });
    }

    /// Begins to move a slot: keys that its master no longer has are asked for at `to`.
    pub fn begin_moving(&self, slot: u16, to: &RedisServer) {
        let from = self.master_of(slot);
        let number = slot.to_string();
        ok(to, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &id(from)]);
        ok(from, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &id(to)]);
    }

    /// Moves the keys that a slot has now.
    ///
    /// # Panics
    /// When one does not arrive.
    pub fn move_keys(&self, slot: u16, to: &RedisServer) {
        let from = self.master_of(slot);
        let port = to.address().port().to_string();
        let Reply::List(keys) = from.command(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "1000"]) else {
            panic!("a list of keys")
        };
        for key in keys {
            let Reply::Text(key) = key else { panic!("a key: {key:?}") };
            ok(from, &["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    }

    /// Ends the moving of a slot.
    ///
    /// # Panics
    /// When a node refuses.
    pub fn finish_moving(&self, slot: u16, to: &RedisServer) {
        let (from, number, id) = (self.master_of(slot), slot.to_string(), id(to));
        ok(to, &["CLUSTER", "SETSLOT", &number, "NODE", &id]);
        ok(from, &["CLUSTER", "SETSLOT", &number, "NODE", &id]);
    }

    /// Waits until every node sees the cluster whole and every replica has its master's data.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn settle(&self) {
        eventually("the cluster is whole", || {
            let replicas =
                self.nodes.iter().filter(|node| !node.said(&["INFO", "replication"]).contains("role:master"));
            replicas.fold(0, |linked, node| {
                linked + usize::from(node.said(&["INFO", "replication"]).contains("master_link_status:up"))
            }) == MASTERS
                && self.nodes.iter().all(|node| is_whole(node) && knows_replicas(node))
        });
        for master in self.masters() {
            eventually("a write reaches the replica", || {
                let waited = master.try_commands(&[&["PUBLISH", "settled", ""], &["WAIT", "1", "1000"]]);
                waited.is_ok_and(|replies| replies[1] == Reply::Number(1))
            });
        }
    }
}

fn start_node() -> RedisServer {
    let started = (0..10).find_map(|_| {
        // The bus has a port of its own, since the usual one, ten thousand higher, may be taken or not exist.
        let bus = free_address().port().to_string();
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000", "--cluster-port", &bus];
        RedisServer::start_at(free_address(), &[&settings[..], &["--repl-diskless-sync-delay", "0"]].concat())
    });
    started.expect("redis-server answers")
}

/// `ID HOST:PORT@BUS …`, the line of the node itself.
fn myself(node: &RedisServer) -> String {
    let nodes = node.said(&["CLUSTER", "NODES"]);
    nodes.lines().find(|line| line.contains("myself")).expect("every node knows itself").to_owned()
}

fn id(node: &RedisServer) -> String {
    myself(node).split(' ').next().expect("an id").to_owned()
}

fn bus_port(node: &RedisServer) -> u16 {
    let line = myself(node);
    let port = line.split(['@', ' ', ',']).nth(2).and_then(|port| port.parse().ok());
    port.unwrap_or_else(|| panic!("a port: {line}"))
}

fn has_slot(node: &RedisServer, slot: u16) -> bool {
    // The ranges stand behind eight other fields; what is being moved stands in brackets.
    myself(node).split(' ').skip(8).any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        matches!((first.parse(), last.parse()), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    })
}

fn is_whole(node: &RedisServer) -> bool {
    node.said(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
}

fn knows_replicas(node: &RedisServer) -> bool {
    let nodes = node.said(&["CLUSTER", "NODES"]);
    nodes.lines().filter(|line| line.contains("slave") && !line.contains("fail")).count() == MASTERS
}

fn ok(node: &RedisServer, words: &[&str]) {
    assert_eq!(node.command(words), Reply::Text("OK".to_owned()), "{words:?}");
}

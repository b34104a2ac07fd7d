use std::{fmt::Write, net::SocketAddr};

use crate::{
    network::{Network, Weather},
    redis::{RedisServer, Reply, eventually, free_address},
};

/// What the sentinels call the service.
pub const SERVICE: &str = "locks";

/// A master with two replicas, watched by three sentinels of which two agree on a failover.
///
/// A crash is noticed after half a second. Once started, a write reaches both replicas and a failover is possible.
#[derive(Debug)]
pub struct SentinelSet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    /// What lies before each server, where they were started apart.
    ways: Vec<Network>,
}

impl SentinelSet {
    /// Starts one.
    ///
    /// # Panics
    /// When the executable is missing, or a server does not answer.
    pub fn start() -> Self {
        Self::start_with(None)
    }

    /// Starts one whose sentinels demand a password.
    ///
    /// # Panics
    /// As [`start`](SentinelSet::start).
    pub fn start_with(password: Option<&str>) -> Self {
        let start = |_| {
            let addresses: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
            Self::try_start(addresses, addresses, Vec::new(), password)
        };
        let set = (0..10).find_map(start).expect("three servers and three sentinels");
        set.settle();
        set
    }

    /// Starts one whose servers can be [cut off](SentinelSet::cut_off). The others and the sentinels know each by the address
    /// of a relay before it.
    ///
    /// # Panics
    /// As [`start`](SentinelSet::start).
    pub async fn start_apart() -> Self {
        for _ in 0..10 {
            let addresses: [SocketAddr; 3] = std::array::from_fn(|_| free_address());
            let mut ways = Vec::new();
            for address in addresses {
                ways.push(Network::before(address).await.expect("a free port"));
            }
            let known: [SocketAddr; 3] = std::array::from_fn(|number| ways[number].address);
            // The relays go on meanwhile.
            let started = tokio::task::spawn_blocking(move || {
                let set = Self::try_start(addresses, known, ways, None)?;
                set.settle();
                Some(set)
            });
            if let Some(set) = started.await.expect("three servers and three sentinels") {
                return set;
            }
        }
        panic!("three servers and three sentinels do not find each other")
    }

    /// `known` is where the others find each server.
    fn try_start(
        addresses: [SocketAddr; 3],
        known: [SocketAddr; 3],
        ways: Vec<Network>,
        password: Option<&str>,
    ) -> Option<Self> {
        let mut servers = Vec::new();
        for (number, address) in addresses.into_iter().enumerate() {
            let (own, master) = (known[number].port().to_string(), known[0].port().to_string());
            // A replica that comes late need not wait for others to come along.
            let mut settings = vec!["--repl-diskless-sync-delay", "0"];
            settings.extend(["--replica-announce-ip", "127.0.0.1", "--replica-announce-port", &own]);
            if number > 0 {
                settings.extend(["--replicaof", "127.0.0.1", &master]);
            }
            servers.push(RedisServer::start_at(address, &settings)?);
        }
        let places: Vec<_> =
            (1..=3).map(|number| Place { address: free_address(), id: format!("{number:040}") }).collect();
        let sentinel = |place: &Place| {
            let lines = configuration(known, &places, &place.id, password);
            RedisServer::start_sentinel(place.address, &lines, password)
        };
        let sentinels = places.iter().map(sentinel).collect::<Option<_>>()?;
        Some(Self { servers, sentinels, ways })
    }

    /// Cuts a server off from the others and from the sentinels, not from clients that know its own address: nothing arrives,
    /// and connections stay open. For a set that was [started apart](SentinelSet::start_apart).
    pub fn cut_off(&self, server: &RedisServer) {
        let known = self.known_at(server);
        self.ways.iter().filter(|way| way.address == known).for_each(|way| way.set(Weather::Silence));
    }

    /// Where the others find a server.
    pub fn known_at(&self, server: &RedisServer) -> SocketAddr {
        let number = self.servers.iter().position(|other| other.address() == server.address());
        number.and_then(|number| self.ways.get(number)).map_or(server.address(), |way| way.address)
    }

    /// The URL for clients.
    pub fn url(&self) -> String {
        let places: Vec<_> = self.sentinels.iter().map(|sentinel| sentinel.address().to_string()).collect();
        format!("redis+sentinel://{}/{SERVICE}", places.join(","))
    }

    /// The servers, the first master first.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// The server that the first sentinel who answers names as the master.
    ///
    /// # Panics
    /// When no sentinel names one of the servers.
    pub fn master(&self) -> &RedisServer {
        let named = self.sentinels.iter().find_map(named_by).expect("a sentinel answers");
        self.servers.iter().find(|server| self.known_at(server) == named).expect("a server of this set")
    }

    /// The servers that are not the master.
    pub fn replicas(&self) -> impl Iterator<Item = &RedisServer> {
        let master = self.master().address();
        self.servers.iter().filter(move |server| server.address() != master)
    }

    /// Makes another server the master, as an administrator would, and waits until every sentinel knows it. The old
    /// master lives on, and goes on as a master until it is told some ten seconds later.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn fail_over(&self) {
        let old = self.known_at(self.master());
        eventually("a sentinel begins the failover", || {
            self.sentinels[0].command(&["SENTINEL", "FAILOVER", SERVICE]) == Reply::Text("OK".to_owned())
        });
        self.await_other_master(old);
    }

    /// Waits until every sentinel that answers names another master than `old`.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn await_other_master(&self, old: SocketAddr) {
        eventually("every sentinel names the new master", || {
            self.sentinels.iter().filter_map(named_by).all(|named| named != old)
        });
    }

    /// Waits until a write reaches both replicas and the sentinels could agree on a failover.
    ///
    /// # Panics
    /// When that does not happen.
    pub fn settle(&self) {
        eventually("a write reaches both replicas", || {
            let written = self.master().try_commands(&[&["SET", "settled", "x", "PX", "1"], &["WAIT", "2", "1000"]]);
            written.is_ok_and(|replies| replies[1] == Reply::Number(2))
        });
        eventually("the sentinels can agree on a failover", || {
            self.sentinels.iter().all(|sentinel| {
                let known = sentinel.said(&["INFO", "sentinel"]);
                sentinel.said(&["SENTINEL", "CKQUORUM", SERVICE]).starts_with("OK 3 usable")
                    && known.contains("status=ok")
                    && known.contains("slaves=2")
            })
        });
    }
}

struct Place {
    address: SocketAddr,
    id: String,
}

/// The same of a service of another name, so that sentinels that watch this server as well do not take it for one of theirs.
///
/// # Panics
/// As [`sentinel_naming`].
pub fn sentinel_beside(master: SocketAddr) -> (RedisServer, String) {
    naming("beside", master, "")
}

/// A sentinel of its own that never makes a failover and names `master`, for clients that shall go through a network.
/// Answers it with the URL for clients.
///
/// # Panics
/// When the executable is missing, or it does not answer.
pub fn sentinel_naming(master: SocketAddr) -> (RedisServer, String) {
    sentinel_naming_with(master, "")
}

/// The same with lines of its own in its configuration.
///
/// # Panics
/// As [`sentinel_naming`].
pub fn sentinel_naming_with(master: SocketAddr, lines: &str) -> (RedisServer, String) {
    naming(SERVICE, master, lines)
}

fn naming(service: &str, master: SocketAddr, lines: &str) -> (RedisServer, String) {
    let lines = format!(
        "{lines}sentinel monitor {service} {} {} 3\nsentinel down-after-milliseconds {service} 3600000\n",
        master.ip(),
        master.port()
    );
    let sentinel = (0..10).find_map(|_| RedisServer::start_sentinel(free_address(), &lines, None));
    let sentinel = sentinel.expect("a sentinel answers");
    let url = format!("redis+sentinel://{}/{service}", sentinel.address());
    (sentinel, url)
}

/// With everything written down that a sentinel would find out in its first ten seconds.
fn configuration(known: [SocketAddr; 3], places: &[Place], id: &str, password: Option<&str>) -> String {
    let [master, replicas @ ..] = known;
    let mut lines = format!("sentinel myid {id}\nsentinel monitor {SERVICE} 127.0.0.1 {} 2\n", master.port());
    let mut say = |line: String| writeln!(lines, "{line}").expect("a string takes everything");
    say(format!("sentinel down-after-milliseconds {SERVICE} 500"));
    say(format!("sentinel failover-timeout {SERVICE} 4000"));
    say(format!("sentinel parallel-syncs {SERVICE} 2"));
    for replica in replicas {
        say(format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", replica.port()));
    }
    for other in places.iter().filter(|other| other.id != id) {
        say(format!("sentinel known-sentinel {SERVICE} 127.0.0.1 {} {}", other.address.port(), other.id));
    }
    if let Some(password) = password {
        say(format!("requirepass {password}\nsentinel sentinel-pass {password}"));
    }
    lines
}

/// The master by the word of one sentinel; `None` when it does not answer.
fn named_by(sentinel: &RedisServer) -> Option<SocketAddr> {
    match sentinel.try_command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]).ok()? {
        Reply::List(parts) => match &parts[..] {
            [Reply::Text(host), Reply::Text(port)] => format!("{host}:{port}").parse().ok(),
            _ => None,
        },
        _ => None,
    }
}

use std::{fmt::Write, net::SocketAddr};

use crate::redis::{RedisServer, Reply, eventually, free_address};

/// What the sentinels call the service.
pub const SERVICE: &str = "locks";

/// A master with two replicas, watched by three sentinels of which two agree on a failover.
///
/// A crash is noticed after half a second. Once started, a write reaches both replicas and a failover is possible.
#[derive(Debug)]
pub struct SentinelSet {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
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
        let set = (0..10).find_map(|_| Self::try_start(password)).expect("three servers and three sentinels");
        set.settle();
        set
    }

    fn try_start(password: Option<&str>) -> Option<Self> {
        // A replica that comes late need not wait for others to come along.
        let quick = ["--repl-diskless-sync-delay", "0"];
        let mut servers = vec![RedisServer::start_with(&quick)];
        let port = servers[0].address().port().to_string();
        let replica = [&quick[..], &["--replicaof", "127.0.0.1", &port]].concat();
        servers.extend([RedisServer::start_with(&replica), RedisServer::start_with(&replica)]);
        let places: Vec<_> =
            (1..=3).map(|number| Place { address: free_address(), id: format!("{number:040}") }).collect();
        let sentinel = |place: &Place| {
            let lines = configuration(&servers, &places, &place.id, password);
            RedisServer::start_sentinel(place.address, &lines, password)
        };
        let sentinels = places.iter().map(sentinel).collect::<Option<_>>()?;
        Some(Self { servers, sentinels })
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
        self.servers.iter().find(|server| server.address() == named).expect("a server of this set")
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
        let old = self.master().address();
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
    let lines = format!(
        "{lines}sentinel monitor {SERVICE} {} {} 3\nsentinel down-after-milliseconds {SERVICE} 3600000\n",
        master.ip(),
        master.port()
    );
    let sentinel = (0..10).find_map(|_| RedisServer::start_sentinel(free_address(), &lines, None));
    let sentinel = sentinel.expect("a sentinel answers");
    let url = format!("redis+sentinel://{}/{SERVICE}", sentinel.address());
    (sentinel, url)
}

/// With everything written down that a sentinel would find out in its first ten seconds.
fn configuration(servers: &[RedisServer], places: &[Place], id: &str, password: Option<&str>) -> String {
    let port = |server: &RedisServer| server.address().port();
    let mut lines = format!("sentinel myid {id}\nsentinel monitor {SERVICE} 127.0.0.1 {} 2\n", port(&servers[0]));
    let mut say = |line: String| writeln!(lines, "{line}").expect("a string takes everything");
    say(format!("sentinel down-after-milliseconds {SERVICE} 500"));
    say(format!("sentinel failover-timeout {SERVICE} 4000"));
    say(format!("sentinel parallel-syncs {SERVICE} 2"));
    for replica in &servers[1..] {
        say(format!("sentinel known-replica {SERVICE} 127.0.0.1 {}", port(replica)));
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

use std::{net::SocketAddr, thread};

use fencepost_core::{capabilities::Capabilities, name::LockName, store::BoxFuture};
use fencepost_servers::{Network, RedisServer, Reply};

use crate::site::{DoesNotApply, Server, Site, Tampering, Verdict};

/// Five Redis servers of its own, and one network in front of them for those who ask for it. What is done to "the
/// server" is done to all five.
#[derive(Debug)]
pub struct RedlockSite {
    /// The servers.
    pub servers: Vec<RedisServer>,
    network: Network,
    options: &'static str,
}

/// On a machine that is busy with other tests, 50 ms are no limit for anybody. These servers keep what they wrote when
/// they are killed, so that one that restarted need not sit out a TTL.
const OPTIONS: &str = "node_timeout=2s&restart_guard=0";

/// Fresh servers.
pub async fn redlock() -> RedlockSite {
    let starting: Vec<_> = (0..5).map(|_| thread::spawn(RedisServer::start)).collect();
    let servers: Vec<_> = starting.into_iter().map(|server| server.join().expect("a server")).collect();
    let addresses: Vec<_> = servers.iter().map(RedisServer::address).collect();
    let network = Network::before_all(&addresses).await.expect("free ports");
    RedlockSite { servers, network, options: OPTIONS }
}

impl RedlockSite {
    /// The same with other options in its URLs.
    pub fn with_options(self, options: &'static str) -> Self {
        Self { options, ..self }
    }

    fn url_of(&self, addresses: &[SocketAddr]) -> String {
        let hosts: Vec<_> = addresses.iter().map(SocketAddr::to_string).collect();
        format!("redlock://{}?{}", hosts.join(","), self.options)
    }

    /// The key of a lock; the rules that ask use names that need no encoding.
    fn key(&self, name: &LockName) -> String {
        format!("{}:{{{name}}}", self.namespace())
    }

    fn everywhere(&self, words: &[&str]) -> Vec<Reply> {
        self.servers.iter().map(|server| server.command(words)).collect()
    }
}

impl Site for RedlockSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("redlock")
    }

    fn url(&self) -> String {
        let addresses: Vec<_> = self.servers.iter().map(RedisServer::address).collect();
        self.url_of(&addresses)
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let done = match how {
                Tampering::Delete(name) => self.everywhere(&["DEL", &self.key(name)]),
                Tampering::PlantForeign(name) => self.everywhere(&["SET", &self.key(name), "somebody else's"]),
                Tampering::PlantWrongType(name) => {
                    self.everywhere(&["DEL", &self.key(name)]);
                    self.everywhere(&["RPUSH", &self.key(name), "somebody else's"])
                }
                Tampering::MakePermanent(name) => self.everywhere(&["PERSIST", &self.key(name)]),
                Tampering::FlushScripts => self.everywhere(&["SCRIPT", "FLUSH"]),
                Tampering::CutMessages => self.everywhere(&["CLIENT", "KILL", "TYPE", "pubsub"]),
                Tampering::CorruptFence(_) => return Err(DoesNotApply("the store issues no fence")),
            };
            assert!(!done.iter().any(|reply| matches!(reply, Reply::Refused(_))), "{how:?}: {done:?}");
            Ok(())
        })
    }

    /// Every key there is on any server, ours or not: they belong to the site alone.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            let keys = self.everywhere(&["KEYS", "*"]).into_iter().flat_map(|reply| match reply {
                Reply::List(keys) => keys,
                other => panic!("a list of keys: {other:?}"),
            });
            keys.map(|key| format!("{key:?}")).collect()
        })
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        Ok(self.url_of(&self.network.addresses))
    }

    fn server(&self) -> Verdict<&dyn Server> {
        Ok(self)
    }

    /// One server that refuses is enough to say so.
    fn forbidden_url(&self) -> Verdict<String> {
        let hosts = self.servers.iter().enumerate().map(|(place, server)| {
            let login = if place == 3 { "mallory:wrong-password" } else { "" };
            format!("{login}@{}", server.address())
        });
        Ok(format!("redlock://{}", hosts.collect::<Vec<_>>().join(",")))
    }
}

impl Server for RedlockSite {
    fn kill(&self) {
        self.servers.iter().for_each(RedisServer::kill);
    }

    fn start(&self) {
        thread::scope(|scope| self.servers.iter().for_each(|server| drop(scope.spawn(|| server.launch()))));
    }

    /// The most that any of them serves.
    fn connections(&self) -> usize {
        let clients = self.everywhere(&["CLIENT", "LIST"]).into_iter().map(|reply| match reply {
            Reply::Text(clients) => clients.lines().filter(|client| !client.contains("cmd=client")).count(),
            other => panic!("a list of clients: {other:?}"),
        });
        clients.max().unwrap_or_default()
    }
}

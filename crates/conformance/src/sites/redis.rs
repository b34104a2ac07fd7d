use fencepost_core::{capabilities::Capabilities, name::LockName, store::BoxFuture};
use fencepost_servers::{Network, RedisServer, Reply};

use crate::site::{DoesNotApply, Server, Site, Tampering, Verdict};

/// A Redis server of its own, and a network in front of it for those who ask for one.
#[derive(Debug)]
pub struct RedisSite {
    server: RedisServer,
    network: Network,
}

/// A fresh server.
pub async fn redis() -> RedisSite {
    let server = RedisServer::start();
    let network = Network::before(server.address()).await.expect("a free port");
    RedisSite { server, network }
}

impl RedisSite {
    /// The key of a lock; the rules that ask use names that need no encoding.
    fn key(&self, name: &LockName) -> String {
        format!("{}:{{{name}}}", self.namespace())
    }
}

impl Site for RedisSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("redis")
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move {
            let done = match how {
                Tampering::Delete(name) => self.server.command(&["DEL", &self.key(name)]),
                Tampering::PlantForeign(name) => self.server.command(&["SET", &self.key(name), "somebody else's"]),
                Tampering::PlantWrongType(name) => {
                    self.server.command(&["DEL", &self.key(name)]);
                    self.server.command(&["RPUSH", &self.key(name), "somebody else's"])
                }
                Tampering::MakePermanent(name) => self.server.command(&["PERSIST", &self.key(name)]),
                Tampering::FlushScripts => self.server.command(&["SCRIPT", "FLUSH"]),
                Tampering::CutMessages => self.server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]),
                Tampering::CorruptFence(_) => return Err(DoesNotApply("the store issues no fence")),
            };
            assert!(!matches!(done, Reply::Refused(_) | Reply::Number(0)), "{how:?}: {done:?}");
            Ok(())
        })
    }

    /// Every key there is, ours or not: the server belongs to the site alone.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move {
            match self.server.command(&["KEYS", "*"]) {
                Reply::List(keys) => keys.into_iter().map(|key| format!("{key:?}")).collect(),
                other => panic!("a list of keys: {other:?}"),
            }
        })
    }

    fn network(&self) -> Verdict<&Network> {
        Ok(&self.network)
    }

    fn disturbed_url(&self) -> Verdict<String> {
        Ok(format!("redis://{}", self.network.address))
    }

    fn server(&self) -> Verdict<&dyn Server> {
        Ok(self)
    }

    fn forbidden_url(&self) -> Verdict<String> {
        Ok(format!("redis://mallory:wrong-password@{}", self.server.address()))
    }
}

impl Server for RedisSite {
    fn kill(&self) {
        self.server.kill();
    }

    fn start(&self) {
        self.server.launch();
    }

    fn connections(&self) -> usize {
        match self.server.command(&["CLIENT", "LIST"]) {
            Reply::Text(clients) => clients.lines().filter(|client| !client.contains("cmd=client")).count(),
            other => panic!("a list of clients: {other:?}"),
        }
    }
}

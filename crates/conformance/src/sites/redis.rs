use fencepost_core::{capabilities::Capabilities, name::LockName, name::Namespace, store::BoxFuture};
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

impl Site for RedisSite {
    fn capabilities(&self) -> Capabilities {
        super::capabilities_of("redis")
    }

    fn url(&self) -> String {
        self.server.url()
    }

    fn tamper<'a>(&'a self, how: Tampering<'a>) -> BoxFuture<'a, Verdict> {
        Box::pin(async move { tamper_with(&self.server, &self.namespace(), how) })
    }

    /// Every key there is, ours or not: the server belongs to the site alone.
    fn leftovers(&self) -> BoxFuture<'_, Vec<String>> {
        Box::pin(async move { keys_of(&self.server, "*") })
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
        clients_of(&self.server)
    }
}

/// What an administrator does on the server where a lock lives.
pub(super) fn tamper_with(server: &RedisServer, namespace: &Namespace, how: Tampering<'_>) -> Verdict {
    // The rules that ask use names that need no encoding.
    let key = |name: &LockName| format!("{namespace}:{{{name}}}");
    let done = match how {
        Tampering::Delete(name) => server.command(&["DEL", &key(name)]),
        Tampering::PlantForeign(name) => server.command(&["SET", &key(name), "somebody else's"]),
        Tampering::PlantWrongType(name) => {
            server.command(&["DEL", &key(name)]);
            server.command(&["RPUSH", &key(name), "somebody else's"])
        }
        Tampering::MakePermanent(name) => server.command(&["PERSIST", &key(name)]),
        Tampering::FlushScripts => server.command(&["SCRIPT", "FLUSH"]),
        Tampering::CutMessages => server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]),
        Tampering::CorruptFence(_) => return Err(DoesNotApply("the store issues no fence")),
    };
    assert!(!matches!(done, Reply::Refused(_) | Reply::Number(0)), "{how:?}: {done:?}");
    Ok(())
}

pub(super) fn keys_of(server: &RedisServer, pattern: &str) -> Vec<String> {
    match server.command(&["KEYS", pattern]) {
        Reply::List(keys) => keys.into_iter().map(|key| format!("{key:?}")).collect(),
        other => panic!("a list of keys: {other:?}"),
    }
}

/// The connections of clients: neither the one that asks, nor those of replicas and sentinels.
pub(super) fn clients_of(server: &RedisServer) -> usize {
    let others = ["cmd=client", "flags=S", "name=sentinel-"];
    match server.command(&["CLIENT", "LIST"]) {
        Reply::Text(list) => list.lines().filter(|line| !others.iter().any(|other| line.contains(other))).count(),
        other => panic!("a list of clients: {other:?}"),
    }
}

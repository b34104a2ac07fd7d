//! TLS with an authority of our own and client certificates, both made by `openssl`.

use std::{net::TcpListener, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, Patience, Release},
    error::{Applied, Error, ErrorKind},
    store::Store,
};
use fencepost_servers::{RedisServer, Reply, SERVICE, sentinel_naming_with};

use super::{Administered, SOON, claim, cluster, eventually, open, redlock, sentinel, within};

const TTL: Duration = Duration::from_secs(30);

struct Certificates(fencepost_servers::Certificates);

impl Certificates {
    fn make() -> Self {
        Self(fencepost_servers::Certificates::make(&[], "client"))
    }

    fn at(&self, file: &str) -> String {
        self.0.at(file)
    }

    /// What a client says in its URL.
    fn options(&self) -> String {
        format!("ca={}&cert={}&key={}", self.at("ca.pem"), self.at("client.pem"), self.at("client.key"))
    }

    /// What a server is told so that it demands certificates at this port.
    fn settings(&self, port: u16) -> Vec<(&'static str, String)> {
        vec![
            ("tls-port", port.to_string()),
            ("tls-cert-file", self.at("server.pem")),
            ("tls-key-file", self.at("server.key")),
            ("tls-ca-cert-file", self.at("ca.pem")),
            ("tls-auth-clients", "yes".to_owned()),
        ]
    }

    /// A server with TLS at the port that is answered; its plain one is for the administrator.
    fn server(&self, more: &[&str]) -> (RedisServer, u16) {
        let port = free_port();
        let settings = self.settings(port).into_iter().flat_map(|(name, value)| [format!("--{name}"), value]);
        let settings: Vec<_> = settings.chain(more.iter().map(|word| (*word).to_owned())).collect();
        let settings: Vec<_> = settings.iter().map(String::as_str).collect();
        (RedisServer::start_with(&settings), port)
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Two clients take, wait for and hand over each of the locks.
async fn serves(a: Arc<dyn Store>, b: Arc<dyn Store>, locks: &[&str]) {
    for lock in locks {
        let (mine, wanted) = (claim(lock, TTL), claim(lock, TTL));
        assert!(matches!(a.claim(&mine, Patience::Once).await.unwrap(), Claimed::Granted(_)), "{lock}");
        assert!(matches!(b.claim(&wanted, Patience::Queue).await.unwrap(), Claimed::Queued(_)), "{lock}");
        assert_eq!(a.release(&mine.holding).await.unwrap(), Release::Released);
        within(SOON, "the turn", b.turn(&wanted)).await.unwrap();
    }
}

async fn refused<S: std::fmt::Debug>(opening: impl Future<Output = Result<S, Error>>, why: &str) {
    let error = within(SOON, "the refusal", opening).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Misconfigured, Applied::No), "{why}: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = Certificates::make();
    let (server, port) = files.server(&[]);
    let url = format!("rediss://127.0.0.1:{port}");
    let full = format!("{url}?{}", files.options());
    serves(open(&full).await.unwrap(), open(&full).await.unwrap(), &["x"]).await;

    let unknown_authority = format!("{url}?cert={}&key={}", files.at("client.pem"), files.at("client.key"));
    refused(open(&unknown_authority), "an unknown authority").await;
    refused(open(&format!("{url}?ca={}", files.at("ca.pem"))), "no certificate").await;
    let missing = open(&format!("{url}?ca=/nowhere")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidInput);
    // A plain connection to the port of TLS, and the other way round.
    let plain = within(SOON, "the refusal", open(&format!("redis://127.0.0.1:{port}"))).await.unwrap_err();
    assert!(matches!(plain.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{plain}");
    let crossed = format!("rediss://127.0.0.1:{}?ca={}", server.address().port(), files.at("ca.pem"));
    let crossed = within(Duration::from_secs(10), "the refusal", open(&crossed)).await.unwrap_err();
    assert!(matches!(crossed.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{crossed}");
}

/// The sentinels are asked by TLS too, and name the port where the master speaks it.
#[tokio::test(flavor = "multi_thread")]
async fn tls_to_sentinels_and_to_the_master_that_they_name() {
    let files = Certificates::make();
    let (_master, port) = files.server(&[]);
    let at = free_port();
    let lines = files.settings(at).into_iter().map(|(name, value)| format!("{name} {value}\n"));
    let lines = lines.chain(["tls-replication yes\n".to_owned()]).collect::<String>();
    let (_sentinel, _) = sentinel_naming_with(([127, 0, 0, 1], port).into(), &lines);
    let url = format!("rediss+sentinel://127.0.0.1:{at}/{SERVICE}");
    let full = format!("{url}?{}", files.options());
    serves(sentinel::open(&full).await.unwrap(), sentinel::open(&full).await.unwrap(), &["x"]).await;
    refused(sentinel::open(&format!("{url}?ca={}", files.at("ca.pem"))), "no certificate").await;
}

/// Every node is reached by TLS, also the one that only the other one names.
#[tokio::test(flavor = "multi_thread")]
async fn tls_to_every_node_of_a_cluster() {
    let files = Certificates::make();
    let nodes: Vec<_> = (0..2)
        .map(|_| {
            let bus = free_port().to_string();
            let settings = ["--cluster-enabled", "yes", "--cluster-port", &bus, "--tls-cluster", "yes"];
            let (node, port) = files.server(&settings);
            (node, port, bus)
        })
        .collect();
    for ((node, _, _), [first, last]) in nodes.iter().zip([["0", "8191"], ["8192", "16383"]]) {
        assert_eq!(node.cli(&["CLUSTER", "ADDSLOTSRANGE", first, last]), "OK");
    }
    let (_, port, bus) = &nodes[1];
    assert_eq!(nodes[0].0.cli(&["CLUSTER", "MEET", "127.0.0.1", &port.to_string(), bus]), "OK");
    let whole = || nodes.iter().all(|(node, ..)| node.cli(&["CLUSTER", "INFO"]).contains("cluster_state:ok"));
    eventually(SOON * 2, "the cluster is whole", whole).await;
    let url = format!("rediss+cluster://127.0.0.1:{}", nodes[0].1);
    let full = format!("{url}?{}", files.options());
    let slots = ["a", "b"].map(|lock| nodes[0].0.command(&["CLUSTER", "KEYSLOT", lock]));
    assert!(matches!(slots, [Reply::Number(8192..), Reply::Number(..8192)]), "one at each node: {slots:?}");
    serves(cluster::open(&full).await.unwrap(), cluster::open(&full).await.unwrap(), &["a", "b"]).await;
    refused(cluster::open(&format!("{url}?ca={}", files.at("ca.pem"))), "no certificate").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_to_every_server_of_a_redlock() {
    let files = Certificates::make();
    let servers: Vec<_> = (0..3).map(|_| files.server(&[])).collect();
    let hosts: Vec<_> = servers.iter().map(|(_, port)| format!("127.0.0.1:{port}")).collect();
    let url = format!("redlocks://{}?{}", hosts.join(","), redlock::HEALTHY);
    let full = format!("{url}&{}", files.options());
    serves(redlock::open(&full).await.unwrap(), redlock::open(&full).await.unwrap(), &["x"]).await;
    refused(redlock::open(&format!("{url}&ca={}", files.at("ca.pem"))), "no certificate").await;
    let plain = full.replace("redlocks:", "redlock:").replace(&files.options(), "");
    let error = within(SOON * 2, "the refusal", redlock::open(plain.trim_end_matches('&'))).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{error}");
}

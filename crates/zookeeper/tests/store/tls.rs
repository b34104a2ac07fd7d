//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use std::net::TcpListener;

use fencepost_core::error::ErrorKind;
use fencepost_servers::Certificates;

use super::*;

/// A server with a port for TLS beside the plain one. It wants its key and its certificate in one file.
fn server_with_tls(files: &Certificates) -> (ZooKeeperServer, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = |file: &str| files.at(file);
    let read = |file| std::fs::read(files.path(file)).unwrap();
    std::fs::write(files.path("both.pem"), [read("server.key"), read("server.pem")].concat()).unwrap();
    let lines = [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        format!("secureClientPortAddress=127.0.0.1\nsecureClientPort={port}"),
        format!("ssl.keyStore.location={}\nssl.trustStore.location={}", at("both.pem"), at("ca.pem")),
    ];
    (ZooKeeperServer::start_with(&lines), port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = Certificates::make(&[], "client");
    let at = |file: &str| files.at(file);
    let (server, port) = server_with_tls(&files);
    let certificate = format!("cert={}&key={}", at("client.pem"), at("client.key"));
    // The server has to load what TLS is made of for its first connection, which takes seconds on a busy machine.
    let full =
        format!("zookeepers://127.0.0.1:{port}?connect_timeout=30s&timeout=30s&ca={}&{certificate}", at("ca.pem"));
    let (a, b) = (open(&full).await.unwrap(), open(&full).await.unwrap());
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    a.release(&holder.holding).await.unwrap();
    within(SOON, "the turn", b.turn(&waiter)).await.unwrap();

    let refused = async |url: String| within(SOON * 2, "the refusal", open(&url)).await.expect_err("it must not open");
    let unknown_authority = refused(format!("zookeepers://127.0.0.1:{port}?{certificate}")).await;
    assert_eq!(unknown_authority.kind(), ErrorKind::Misconfigured, "{unknown_authority}");
    assert!(unknown_authority.advice().is_some_and(|advice| advice.contains("`ca`")), "{unknown_authority}");
    // In TLS 1.3 the server refuses after the handshake, and its reason arrives or does not.
    let no_certificate = refused(format!("zookeepers://127.0.0.1:{port}?ca={}", at("ca.pem"))).await;
    assert!(
        matches!(no_certificate.kind(), ErrorKind::Misconfigured | ErrorKind::Unavailable),
        "the server asks for one: {no_certificate}"
    );
    let missing = refused(format!("zookeepers://127.0.0.1:{port}?ca=/nowhere")).await;
    assert_eq!(missing.kind(), ErrorKind::InvalidInput, "{missing}");
    // A plain connection to the port of TLS, and the other way round.
    let plain = refused(format!("zookeeper://127.0.0.1:{port}")).await;
    assert!(matches!(plain.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{plain}");
    let crossed = refused(format!("zookeepers://{}?ca={}", server.address(), at("ca.pem"))).await;
    assert!(matches!(crossed.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{crossed}");
}

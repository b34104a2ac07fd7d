//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use std::{net::TcpListener, path::Path, process::Command};

use fencepost_core::error::ErrorKind;

use super::*;

fn openssl(directory: &Path, arguments: &str) {
    let mut openssl = Command::new("openssl");
    let output = openssl.args(arguments.split_whitespace()).current_dir(directory).output();
    let output = output.expect("openssl must be installed for this test: the package openssl");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and certificates by it for a server at 127.0.0.1 and for a client. The server wants its key and its
/// certificate in one file.
fn make_certificates(directory: &Path) {
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(directory, &format!("req -x509 {new_key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for who in ["server", "client"] {
        openssl(directory, &format!("req {new_key} -keyout {who}.key -out {who}.csr -subj /CN={who}"));
        let sign = format!("x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names");
        openssl(directory, &format!("{sign} -out {who}.pem"));
    }
    let read = |file| std::fs::read(directory.join(file)).unwrap();
    std::fs::write(directory.join("both.pem"), [read("server.key"), read("server.pem")].concat()).unwrap();
}

/// A server with a port for TLS beside the plain one.
fn server_with_tls(files: &Path) -> (ZooKeeperServer, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let at = |file: &str| files.join(file).display().to_string();
    let lines = [
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
        format!("secureClientPortAddress=127.0.0.1\nsecureClientPort={port}"),
        format!("ssl.keyStore.location={}\nssl.trustStore.location={}", at("both.pem"), at("ca.pem")),
    ];
    (ZooKeeperServer::start_with(&lines), port)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = tempfile::tempdir().unwrap();
    make_certificates(files.path());
    let at = |file: &str| files.path().join(file).display().to_string();
    let (server, port) = server_with_tls(files.path());
    let certificate = format!("cert={}&key={}", at("client.pem"), at("client.key"));
    let full = format!("zookeepers://127.0.0.1:{port}?ca={}&{certificate}", at("ca.pem"));
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

//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use std::{net::TcpListener, path::Path, process::Command, time::Duration};

use fencepost_core::error::{Applied, ErrorKind};
use fencepost_servers::RedisServer;

use super::{SOON, claim, open, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);

fn openssl(directory: &Path, arguments: &str) {
    let mut openssl = Command::new("openssl");
    let output = openssl.args(arguments.split_whitespace()).current_dir(directory).output();
    let output = output.expect("openssl must be installed for this test: the package openssl");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and certificates by it for a server at 127.0.0.1 and for a client.
fn make_certificates(directory: &Path) {
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(directory, &format!("req -x509 {new_key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for who in ["server", "client"] {
        openssl(directory, &format!("req {new_key} -keyout {who}.key -out {who}.csr -subj /CN={who}"));
        let sign = format!("x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names");
        openssl(directory, &format!("{sign} -out {who}.pem"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = tempfile::tempdir().unwrap();
    make_certificates(files.path());
    let at = |file: &str| files.path().join(file).display().to_string();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = RedisServer::start_with(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &at("server.pem"),
        "--tls-key-file",
        &at("server.key"),
        "--tls-ca-cert-file",
        &at("ca.pem"),
        "--tls-auth-clients",
        "yes",
    ]);
    let url = format!("rediss://127.0.0.1:{port}");
    let full = format!("{url}?ca={}&cert={}&key={}", at("ca.pem"), at("client.pem"), at("client.key"));
    let (a, b) = (open(&full).await.unwrap(), open(&full).await.unwrap());
    let mine = take(&a, "x", TTL).await;
    let turn = queue(&b, &claim("x", TTL)).await;
    release(&a, &mine).await;
    within(SOON, "the turn", turn).await.unwrap().unwrap();

    let unknown_authority = format!("{url}?cert={}&key={}", at("client.pem"), at("client.key"));
    let no_certificate = format!("{url}?ca={}", at("ca.pem"));
    for wrong in [unknown_authority, no_certificate] {
        let error = within(SOON, "the refusal", open(&wrong)).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Misconfigured, Applied::No), "{wrong}: {error}");
    }
    let missing = open(&format!("{url}?ca=/nowhere")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidInput);
    // A plain connection to the port of TLS, and the other way round.
    let plain = within(SOON, "the refusal", open(&format!("redis://127.0.0.1:{port}"))).await.unwrap_err();
    assert!(matches!(plain.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{plain}");
    let crossed = format!("rediss://127.0.0.1:{}?ca={}", server.address().port(), at("ca.pem"));
    let crossed = within(Duration::from_secs(10), "the refusal", open(&crossed)).await.unwrap_err();
    assert!(matches!(crossed.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{crossed}");
}

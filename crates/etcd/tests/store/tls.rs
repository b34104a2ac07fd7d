//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use std::{path::Path, process::Command};

use fencepost_core::error::{Applied, ErrorKind};
use fencepost_servers::EtcdCluster;

use super::*;

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
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1,DNS:locks.example\n").unwrap();
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
    let cluster = EtcdCluster::start_with(
        1,
        &[
            "--cert-file",
            &at("server.pem"),
            "--key-file",
            &at("server.key"),
            "--trusted-ca-file",
            &at("ca.pem"),
            "--client-cert-auth",
        ],
    );
    let url = cluster.url();
    let full = format!("{url}?ca={}&cert={}&key={}", at("ca.pem"), at("client.pem"), at("client.key"));
    let (a, b) = (open(&full).await.unwrap(), open(&format!("{full}&server_name=locks.example")).await.unwrap());
    let mine = take(&a, "x", TTL).await;
    let turn = queue(&b, &claim("x", TTL)).await;
    release(&a, &mine).await;
    within(SOON, "the turn", turn).await.unwrap().unwrap();

    let limit = Duration::from_secs(12);
    let unknown_authority = format!("{url}?cert={}&key={}", at("client.pem"), at("client.key"));
    let no_certificate = format!("{url}?ca={}", at("ca.pem"));
    let other_name = format!("{full}&server_name=other.example");
    for wrong in [unknown_authority, other_name] {
        let error = within(limit, "the refusal", open(&wrong)).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Misconfigured, Applied::No), "{wrong}: {error}");
        assert!(error.advice().is_some_and(|advice| advice.contains("`ca`")), "{error}");
    }
    // In TLS 1.3 the server refuses after the handshake, and its reason arrives or does not.
    let error = within(limit, "the refusal", open(&no_certificate)).await.unwrap_err();
    assert!(error.advice().is_some_and(|advice| advice.contains("`cert` and `key`")), "{error}");
    let missing = open(&format!("{url}?ca=/nowhere")).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::InvalidInput);
    // A plain connection to the port of TLS, and the other way round.
    let plain = within(limit, "the refusal", open(&format!("etcd://{}", cluster.address(0)))).await.unwrap_err();
    assert!(matches!(plain.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{plain}");
    let other = EtcdCluster::start(1);
    let crossed = format!("etcds://{}?ca={}", other.address(0), at("ca.pem"));
    let crossed = within(limit, "the refusal", open(&crossed)).await.unwrap_err();
    assert!(crossed.advice().is_some_and(|advice| advice.contains("`etcd:` is without")), "{crossed}");
}

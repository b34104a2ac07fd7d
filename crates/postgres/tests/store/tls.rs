//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use std::{path::Path, process::Command};

use fencepost_core::error::{Applied, ErrorKind};
use fencepost_servers::PostgresServer;

use super::{SOON, TTL, claim, config, granted, open, queued, within};

fn openssl(directory: &Path, arguments: &str) {
    let mut openssl = Command::new("openssl");
    let output = openssl.args(arguments.split_whitespace()).current_dir(directory).output();
    let output = output.expect("openssl must be installed for this test: the package openssl");
    assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

/// An authority, and certificates by it for a server at 127.0.0.1 and for the role `postgres`.
fn make_certificates(directory: &Path) {
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(directory, &format!("req -x509 {new_key} -keyout ca.key -out ca.pem -days 2 -subj /CN=authority"));
    std::fs::write(directory.join("names"), "subjectAltName=IP:127.0.0.1\n").unwrap();
    for (who, name) in [("server", "server"), ("client", "postgres")] {
        openssl(directory, &format!("req {new_key} -keyout {who}.key -out {who}.csr -subj /CN={name}"));
        let sign = format!("x509 -req -in {who}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names");
        openssl(directory, &format!("{sign} -out {who}.pem"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = tempfile::tempdir().unwrap();
    make_certificates(files.path());
    let at = |file: &str| files.path().join(file).display().to_string();
    let server = PostgresServer::start();
    server.encrypt(&files.path().join("server.pem"), &files.path().join("server.key"), &files.path().join("ca.pem"));
    fencepost_postgres::migrate(&config(&server.url("postgres"))).await.unwrap();
    server.demand("hostssl all all 127.0.0.1/32 cert\nhostnossl all all 127.0.0.1/32 reject");

    let url = server.url("postgres");
    let full = format!("{url}?ca={}&cert={}&key={}", at("ca.pem"), at("client.pem"), at("client.key"));
    let (a, b) = (open(&full).await.unwrap(), open(&full).await.unwrap());
    granted(&a, &claim("x", TTL)).await;
    queued(&b, &claim("x", TTL)).await;

    let plain = within(SOON, "the refusal", open(&url)).await.unwrap_err();
    assert_eq!((plain.kind(), plain.applied()), (ErrorKind::PermissionDenied, Applied::No), "{plain}");
    let no_certificate = format!("{url}?ca={}", at("ca.pem"));
    let error = within(SOON, "the refusal", open(&no_certificate)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::Misconfigured), "{error}");
    let unknown_authority = format!("{url}?sslmode=verify-full&cert={}&key={}", at("client.pem"), at("client.key"));
    let error = within(SOON, "the refusal", open(&unknown_authority)).await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Misconfigured | ErrorKind::InvalidInput), "{error}");
    let other_name = full.replace("127.0.0.1", "localhost");
    assert_eq!(within(SOON, "the refusal", open(&other_name)).await.unwrap_err().kind(), ErrorKind::Misconfigured);
    for option in ["ca", "cert", "key"] {
        let missing = full.replace(&format!("{option}={}", at("")), &format!("{option}=/nowhere/"));
        assert_eq!(open(&missing).await.unwrap_err().kind(), ErrorKind::InvalidInput, "{option}");
    }
}

//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use fencepost_core::error::{Applied, ErrorKind};
use fencepost_servers::{Certificates, PostgresServer};

use super::{SOON, TTL, claim, config, granted, open, queued, within};

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = Certificates::make(&[], "postgres");
    let at = |file: &str| files.at(file);
    let server = PostgresServer::start();
    server.encrypt(&files.path("server.pem"), &files.path("server.key"), &files.path("ca.pem"));
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

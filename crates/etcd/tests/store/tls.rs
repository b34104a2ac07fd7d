//! TLS with an authority of our own and a client certificate, both made by `openssl`.

use fencepost_core::error::{Applied, ErrorKind};
use fencepost_servers::{Certificates, EtcdCluster};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn tls_with_an_authority_of_our_own_and_a_client_certificate() {
    let files = Certificates::make(&["DNS:locks.example"], "client");
    let at = |file: &str| files.at(file);
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

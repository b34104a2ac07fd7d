//! Everything that can be wrong at the start: bounded, and said in words.

use std::net::TcpListener;

use fencepost_core::error::{Applied, Error, ErrorKind};
use fencepost_servers::{EtcdCluster, RedisServer};

use super::*;

async fn refused(url: &str) -> Error {
    let outcome = within(Duration::from_secs(12), "an answer", open(url)).await;
    let error = outcome.expect_err(url);
    assert_eq!(error.applied(), Applied::No, "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_listens() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = refused(&format!("etcd://127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&format!("nothing listens at 127.0.0.1:{port}")), "{error}");
}

/// Accepts connections and never answers.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_says_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    for url in [format!("etcd://{address}"), format!("etcd://{address},{address}"), format!("etcd://u:p@{address}")] {
        let error = within(Duration::from_secs(12), "an answer", open(&url)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{url}: {error}");
        assert!(error.to_string().contains("did not answer in time"), "{error}");
    }
    let error = within(Duration::from_secs(12), "an answer", open(&format!("etcds://{address}"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_program_behind_the_url() {
    let redis = RedisServer::start();
    let error = refused(&format!("etcd://{}", redis.address())).await;
    // It closes the connection, and its parting words arrive or do not.
    let said = match error.kind() {
        ErrorKind::Misconfigured => "does not speak the protocol of etcd",
        _ => "closed the connection before it answered anything",
    };
    assert!(error.to_string().contains(said), "{error}");
    assert!(error.advice().unwrap().contains("2379"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_majority() {
    let cluster = EtcdCluster::start(3);
    cluster.kill(1);
    cluster.kill(2);
    let url = cluster.url();
    eventually(SOON * 3, "the member knows", async || cluster.metric(0, "etcd_server_has_leader") == Some(0.0)).await;
    let error = within(Duration::from_secs(12), "an answer", open(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no leader"), "{error}");
    assert!(error.advice().unwrap().contains("majority"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_is_missing_wrong_or_not_wanted() {
    let cluster = EtcdCluster::start(1);
    let at = cluster.address(0);
    let error = refused(&format!("etcd://app:pass@{at}")).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    for step in
        ["user add root:secret", "role add root", "user grant-role root root", "user add app:pass", "auth enable"]
    {
        cluster.etcdctl(&step.split(' ').collect::<Vec<_>>());
    }
    for (login, said) in
        [("", "demands a login"), ("app:wrong@", "refused the user or the password"), ("app:pass@", "lacks the right")]
    {
        let error = refused(&format!("etcd://{login}{at}")).await;
        assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(!error.to_string().contains("wrong"), "no secret in a message: {error}");
    }
    open(&format!("etcd://root:secret@{at}")).await.unwrap();
}

/// A user with rights to one prefix can do everything, and a login that the server forgot is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_rights_to_the_namespace_can_do_everything() {
    let cluster = EtcdCluster::start(1);
    for step in [
        "user add root:secret",
        "role add root",
        "user grant-role root root",
        "user add app:pass",
        "role add locks",
        "role grant-permission locks --prefix=true readwrite fencepost/",
        "user grant-role app locks",
        "auth enable",
    ] {
        cluster.etcdctl(&step.split(' ').collect::<Vec<_>>());
    }
    let url = format!("etcd://app:pass@{}", cluster.address(0));
    let (a, b) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let mine = take(&a, "x", TTL).await;
    let waiter = claim("x", TTL);
    let turn = queue(&b, &waiter).await;
    assert!(matches!(renew(&a, &mine).await.unwrap(), fencepost_core::claim::Renewal::Renewed { .. }));
    assert_eq!(b.inspect(None).await.unwrap().len(), 1);
    release(&a, &mine).await;
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    b.force(&name("x"), None).await.unwrap();
    // A restart forgets every login.
    cluster.kill(0);
    cluster.launch(0);
    eventually(SOON * 2, "it answers again", async || a.inspect(None).await.is_ok()).await;
    take(&a, "x", TTL).await;
    a.close().await;
}

//! Bad input, and servers that are not what the URL says: a clear error, soon.

use fencepost_core::{clock::BootClock, clock::Clock, error::ErrorKind};
use fencepost_servers::{RedisServer, ZooKeeperEnsemble};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};

use super::*;

async fn refused(url: &str) -> Error {
    within(SOON + SOON, "opening ends", open(url)).await.expect_err("it must not open")
}

#[tokio::test]
async fn nothing_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = refused(&format!("zookeeper://{address}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(&address.to_string()), "it names the address: {error}");
}

/// Whatever else listens there: one that waits for more, one that says something of its own, one that hangs up.
#[tokio::test]
async fn something_else_listens() {
    let redis = RedisServer::start();
    let error = refused(&format!("zookeeper://{}", redis.address())).await;
    assert!(matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Misconfigured), "{error}");

    for (says, kind) in [
        (&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], ErrorKind::Misconfigured),
        (&b"-ERR unknown command\r\n"[..], ErrorKind::Misconfigured),
        (
            &[
                0, 0, 0, 40, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
            ][..],
            ErrorKind::Misconfigured,
        ),
        (&b""[..], ErrorKind::Unavailable),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let other = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 100]).await;
                let _ = stream.write_all(says).await;
            }
        });
        let error = refused(&format!("zookeeper://{address}")).await;
        assert_eq!(error.kind(), kind, "{error}");
        other.abort();
    }
}

#[tokio::test]
async fn a_chroot_that_is_not_there() {
    let place = Place::new();
    let error = refused(&format!("{}/nowhere", place.url())).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("/nowhere") && error.advice().is_some(), "{error}");
    // And one that vanishes later.
    let store = place.store().await;
    granted(&store, &claim("x", LONG)).await;
    store.close().await;
    let store = place.store().await;
    place.admin.delete_all(&place.chroot);
    let error = store.claim(&claim("x", LONG), Patience::Queue).await.expect_err("the chroot is gone");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
}

#[tokio::test]
async fn c4_a_login_is_missing_or_wrong() {
    let place = Place::new();
    place.admin.log_in("alice:secret");
    let private = format!("{}/private", place.chroot);
    place.admin.create_private(&private).unwrap();
    let address = place.server.address();
    for login in ["", "alice:wrong@", "mallory:secret@"] {
        let store = open(&format!("zookeeper://{login}{address}{private}")).await.unwrap();
        for patience in [Patience::Once, Patience::Queue] {
            let error = store.claim(&claim("x", LONG), patience).await.expect_err("no rights");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{login} {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
    let alice = open(&format!("zookeeper://alice:secret@{address}{private}")).await.unwrap();
    granted(&alice, &claim("x", LONG)).await;
    // What she made is hers: by default a login keeps others away from the queue.
    let other = place.server.admin();
    let container = format!("{private}/tests/x");
    assert!(other.read(&container).is_err() && other.children(&container).is_empty());
}

/// So short a session is over now and then on a busy machine, before it is believed in or before it is shown: then again.
#[tokio::test]
async fn t3_a_ttl_outside_the_servers_limits_is_granted_as_the_server_has_it() {
    let place = Place::new();
    let store = place.store().await;
    let lasted = async || {
        let grant = match store.claim(&claim("x", ms(50)), Patience::Once).await {
            Ok(Claimed::Granted(grant)) => grant,
            Ok(Claimed::Busy(_)) => return false, // the one before
            Err(error) if error.kind() == ErrorKind::LateGrant => return false,
            other => panic!("{other:?}"),
        };
        assert_eq!(grant.ttl, Some(fencepost_servers::TICK * 2), "two ticks at least");
        let shown = store.inspect(Some(&name("x"))).await.unwrap();
        let Some(holder) = shown.first().and_then(|shown| shown.holders.first()) else { return false };
        assert_eq!(holder.expires_in, grant.ttl, "and so it is shown");
        true
    };
    eventually(SOON * 4, "a session of two ticks is seen", lasted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_quorum_is_said_as_such() {
    let ensemble = ZooKeeperEnsemble::start(3).await;
    let store = open(&ensemble.url()).await.unwrap();
    granted(&store, &claim("x", LONG)).await;
    let alone = ensemble.follower().await;
    (0..3).filter(|number| *number != alone).for_each(|number| ensemble.servers()[number].kill());
    eventually(SOON * 2, "the last one notices", async || ensemble.servers()[alone].mode().is_none()).await;
    let error = refused(&ensemble.servers()[alone].url()).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no quorum"), "{error}");
    let error = refused(&ensemble.url()).await;
    assert!(error.to_string().contains("no quorum") && error.to_string().contains("refuses"), "{error}");
    let before = BootClock.now();
    let error = store.claim(&claim("y", LONG), Patience::Queue).await.expect_err("nobody can agree");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(BootClock.now().since(before) < SOON, "bounded by the store's own limit");
}

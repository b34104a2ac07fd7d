//! Cells: what is PostgreSQL's own about them.

use std::sync::Arc;

use fencepost_core::{
    cells::{Cells, Change, Changed, Expected, Version},
    error::{Applied, ErrorKind},
    limits::Ttl,
    store::Store,
};
use fencepost_postgres::PostgresStore;
use fencepost_servers::{Network, PgBouncer, PostgresServer, Weather};

use super::{SOON, TTL, claim, client, eventually, granted, migrated, ms, name, now, open, queued, within};

fn cells(store: &Arc<PostgresStore>) -> &dyn Cells {
    store.cells().unwrap()
}

async fn written(store: &Arc<PostgresStore>, change: Change) -> Version {
    match cells(store).change(&change).await.unwrap() {
        Changed::Done(version) => version,
        other => panic!("{other:?}"),
    }
}

fn write(expected: Expected, value: &'static [u8]) -> Change {
    Change::write(name("cell"), expected, value).unwrap()
}

/// Starts to wait, and answers once whoever changes the cell can see it.
async fn waiting(
    server: &PostgresServer,
    store: &Arc<PostgresStore>,
    seen: Version,
) -> tokio::task::JoinHandle<Result<(), fencepost_core::error::Error>> {
    let task = tokio::spawn({
        let store = store.clone();
        async move { cells(&store).changed(&name("cell"), Some(seen)).await }
    });
    let listens = "SELECT count(*) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND objid = 0 AND mode = 'ShareLock'";
    eventually(SOON, "it listens", async || server.value("postgres", listens) == "1").await;
    task
}

/// Many wait for one cell on one connection, and hear of its change by a message rather than by looking.
#[tokio::test(flavor = "multi_thread")]
async fn w2_a_change_is_told_to_all_who_wait_on_one_connection() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let mut seen = written(&a, write(Expected::Absent, b"0")).await;
    let mut quick = 0;
    for _ in 0..5 {
        let first = waiting(&server, &b, seen).await;
        let others: Vec<_> = (0..20)
            .map(|_| {
                let b = b.clone();
                tokio::spawn(async move { cells(&b).changed(&name("cell"), Some(seen)).await })
            })
            .collect();
        tokio::time::sleep(ms(20)).await;
        let sent = now();
        seen = written(&a, write(Expected::Version(seen), b"1")).await;
        for task in others.into_iter().chain([first]) {
            within(SOON, "all are told", task).await.unwrap().unwrap();
        }
        quick += u32::from(now().since(sent) < ms(1000)); // half of what a look would take
    }
    assert!(quick > 2, "{quick} of 5 changes were told by message");
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %'";
    assert_eq!(server.value("postgres", connections), "3", "two statements, one for messages");
}

/// Whoever waits for a cell outlives the connection on which it would have heard.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_wait_for_a_cell_outlives_its_connection() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let seen = written(&a, write(Expected::Absent, b"1")).await;
    let task = tokio::spawn({
        let b = b.clone();
        async move {
            while cells(&b).read(&name("cell")).await?.is_some_and(|cell| cell.version == seen) {
                cells(&b).changed(&name("cell"), Some(seen)).await?; // told that it may have changed
            }
            Ok::<(), fencepost_core::error::Error>(())
        }
    });
    let listener =
        "SELECT coalesce(max(pid), 0) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND objid = 0";
    let mut first = "0".to_owned();
    eventually(SOON, "it listens", async || {
        first = server.value("postgres", listener);
        first != "0"
    })
    .await;
    server.sql("postgres", &format!("SELECT pg_terminate_backend({first})"));
    eventually(SOON, "the next connection listens too", async || {
        let next = server.value("postgres", listener);
        next != "0" && next != first
    })
    .await;
    written(&a, write(Expected::Version(seen), b"2")).await;
    within(SOON, "it is told", task).await.unwrap().unwrap();
}

/// No message is sent to nobody, and locks do not wait for the queue of messages.
#[tokio::test(flavor = "multi_thread")]
async fn cells_and_locks_share_one_connection_for_messages_and_behind_a_pooler_it_is_asked() {
    let server = migrated(&[]).await;
    let a = client(&server).await;
    granted(&a, &claim("x", TTL)).await;
    queued(&a, &claim("x", TTL)).await;
    let seen = written(&a, write(Expected::Absent, b"1")).await;
    let task = waiting(&server, &a, seen).await;
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %'";
    assert_eq!(server.value("postgres", connections), "2");
    let pooler = PgBouncer::before(server.address(), 2, &[]);
    let pooled = open(&pooler.url("postgres")).await.unwrap();
    let asking = tokio::spawn({
        let pooled = pooled.clone();
        async move { cells(&pooled).changed(&name("cell"), Some(seen)).await }
    });
    tokio::time::sleep(ms(50)).await;
    written(&pooled, write(Expected::Version(seen), b"2")).await;
    within(SOON, "one that hears", task).await.unwrap().unwrap();
    within(SOON, "one that asks", asking).await.unwrap().unwrap();
}

/// Rows of cells that ended can be forgotten; their versions are not.
#[tokio::test(flavor = "multi_thread")]
async fn no_version_comes_twice_although_a_cell_was_forgotten() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    let mut last = Version(0);
    for round in 0..4 {
        let change = write(Expected::Absent, b"x");
        let version = if round % 2 == 0 {
            let version = written(&store, change).await;
            written(&store, Change::remove(name("cell"), version).unwrap()).await;
            version
        } else {
            written(&store, change.expiring(Ttl::new(ms(10)).unwrap())).await
        };
        assert!(version > last, "{version} after {last}");
        last = version;
        eventually(SOON, "it is absent", async || cells(&store).read(&name("cell")).await.unwrap().is_none()).await;
        assert_eq!(server.value("postgres", "SELECT fencepost.tidy('fencepost', '0')"), "1");
    }
    let refused = server.try_sql("postgres", "TRUNCATE fencepost.cells").unwrap_err();
    assert!(refused.contains("versions"), "{refused}");
}

/// The answer is lost, another changes the cell, then the connection breaks. Sent again on the next one it would meet a version
/// that it did not expect, and the caller would take its own change for another's: make it again, and have it twice.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_change_that_was_carried_out_unanswered_is_no_plain_conflict_after_it() {
    let server = migrated(&[]).await;
    let network = Network::before(server.address()).await.unwrap();
    let direct = client(&server).await;
    let store = open(&format!("postgres://postgres@{},{}/postgres", network.address, server.address())).await.unwrap();
    let stock = written(&store, write(Expected::Absent, b"10")).await;
    network.set(Weather::LostReplies);
    let doing = tokio::spawn({
        let store = store.clone();
        async move { cells(&store).change(&write(Expected::Version(stock), b"9")).await }
    });
    let mut changed = None;
    eventually(SOON, "it is carried out", async || {
        changed = cells(&direct).read(&name("cell")).await.unwrap().filter(|cell| cell.version != stock);
        changed.is_some()
    })
    .await;
    written(&direct, write(Expected::Version(changed.unwrap().version), b"8")).await;
    network.vanish().await; // the next connection is one to the server itself
    let error = within(SOON, "the refusal", doing).await.unwrap().expect_err("nobody there knows what came of it");
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    let left = cells(&store).read(&name("cell")).await.unwrap().unwrap();
    assert_eq!(&*left.value, b"8", "two have taken one each");
}

/// Who waits for a connection that nobody makes any more is told of it.
#[tokio::test(flavor = "multi_thread")]
async fn closing_ends_who_waits_for_a_change_while_messages_cannot_come() {
    let server = migrated(&[]).await;
    let store = open(&format!("{}?connect_timeout=60s", server.url("postgres"))).await.unwrap();
    server.demand("host all all 127.0.0.1/32 reject");
    let waiting = tokio::spawn({
        let store = store.clone();
        async move { store.cells().unwrap().changed(&name("cell"), None).await }
    });
    tokio::time::sleep(ms(200)).await; // nothing tells that it waits; sooner, it is told by its first statement
    assert!(!waiting.is_finished());
    store.close().await;
    let changed = within(SOON, "it is told", waiting).await.unwrap();
    assert_eq!(changed.unwrap_err().kind(), ErrorKind::Closed);
}

//! `mode=session`: held for as long as the client's connection lives.

use std::sync::Arc;

use fencepost_core::{
    claim::{Claimed, LossReason, Patience, Renewal},
    error::{Applied, ErrorKind},
    store::{LossReporter, Store},
};
use fencepost_postgres::PostgresStore;
use fencepost_servers::PostgresServer;
use tokio_postgres::NoTls;

use super::{SOON, TTL, claim, client, config, eventually, granted, migrated, ms, name, open, queued, renewed, within};

async fn session(server: &PostgresServer) -> Arc<PostgresStore> {
    open(&format!("{}?mode=session", server.url("postgres"))).await.unwrap()
}

/// Ends the connection that grants live by, as an administrator or a crash of the server's process would.
fn end_sessions(server: &PostgresServer) {
    let holding =
        "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND objsubid = 2";
    assert!(!server.sql("postgres", holding).is_empty());
}

/// "The server answers" is not "the lock is ours".
#[tokio::test(flavor = "multi_thread")]
async fn l4_a_heartbeat_proves_ownership() {
    let server = migrated(&[]).await;
    let store = session(&server).await;
    let mine = claim("x", TTL);
    granted(&store, &mine).await;
    assert!(matches!(renewed(&store, &mine).await, Ok(Renewal::Renewed { .. })));
    server.sql("postgres", "UPDATE fencepost.locks SET owner = NULL, ttl = NULL, expires_at = NULL");
    assert_eq!(renewed(&store, &mine).await.unwrap(), Renewal::Lost(LossReason::Deleted));
    let again = claim("x", TTL);
    granted(&store, &again).await;
    server.sql("postgres", "UPDATE fencepost.locks SET session = session + 1");
    assert_eq!(renewed(&store, &again).await.unwrap(), Renewal::Lost(LossReason::SessionExpired));
}

/// A heartbeat writes nothing, and a waiter holds no snapshot that vacuum or a concurrent index build would wait for.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_and_nothing_is_held_back_while_a_session_holds() {
    let server = migrated(&[]).await;
    let (a, b) = (session(&server).await, session(&server).await);
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    let turn = tokio::spawn({
        let (b, waiter) = (b.clone(), waiter.clone());
        async move { b.turn(&waiter).await }
    });
    server.sql("postgres", "CREATE TABLE data (id integer); INSERT INTO data VALUES (1)");
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %' \
                   AND (state = 'idle in transaction' OR wait_event_type = 'Lock')";
    for _ in 0..5 {
        assert_eq!(server.value("postgres", waiting), "0");
        tokio::time::sleep(ms(50)).await;
    }
    let server_says = server.administrator();
    let built =
        tokio::task::spawn_blocking(move || server_says.sql("postgres", "CREATE INDEX CONCURRENTLY i ON data (id)"));
    within(SOON, "the index is built while a waiter waits", built).await.unwrap();
    a.release(&holder.holding).await.unwrap();
    within(SOON, "the turn", turn).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_sessions_lock_is_free_at_once_and_its_holder_is_told() {
    let server = migrated(&[]).await;
    let (a, b) = (session(&server).await, session(&server).await);
    let (losses, mut told) = LossReporter::channel();
    a.report_losses(losses);
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    let before = granted(&a, &holder).await;
    queued(&b, &waiter).await;
    // Only the holder's: the waiter's place depends on its own.
    let cut = "SELECT pg_terminate_backend(l.pid) FROM pg_locks AS l JOIN fencepost.locks AS k \
               ON l.classid = 'fencepost.locks'::regclass AND l.objid::bigint = k.session";
    assert_eq!(server.sql("postgres", cut).len(), 1);
    let (owner, reason) = within(SOON, "the holder hears", told.recv()).await.unwrap();
    assert_eq!((owner, reason), (*holder.owner(), LossReason::SessionExpired));
    let grant = within(SOON, "the waiter has it", b.turn(&waiter)).await.unwrap();
    assert!(grant.fence > before.fence);
}

/// A new connection does not bring the grants of the former one back.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_ended_stays_ended() {
    let server = migrated(&[]).await;
    let store = session(&server).await;
    let lost = claim("x", TTL);
    granted(&store, &lost).await;
    end_sessions(&server);
    // The next claim waits for the new session.
    let other = claim("y", TTL);
    eventually(SOON, "a new session", async || {
        matches!(store.claim(&other, Patience::Once).await, Ok(Claimed::Granted(_)))
    })
    .await;
    assert_eq!(renewed(&store, &lost).await.unwrap(), Renewal::Lost(LossReason::SessionExpired));
    let next = client(&server).await;
    granted(&next, &claim("x", TTL)).await;
}

/// What shows that a session lives is a lock with a number. Were one given out twice, what a dead session held would be held
/// again for as long as the later one lives.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_sessions_and_no_client_have_one_number() {
    let server = migrated(&[]).await;
    fencepost_postgres::migrate(&config(&format!("{}?schema=other", server.url("postgres")))).await.unwrap();
    let (mut kept, mut others, mut numbers) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..6 {
        let store = session(&server).await;
        granted(&store, &claim(&format!("{round}"), TTL)).await;
        numbers.push(server.value("postgres", &format!("SELECT session FROM fencepost.locks WHERE name = '{round}'")));
        if round % 2 == 0 {
            store.close().await;
        } else {
            kept.push(store);
        }
        // One of another schema counts for itself, and brings none of ours to life.
        others.push(open(&format!("{}?mode=session&schema=other", server.url("postgres"))).await.unwrap());
    }
    let first = 1 << 30;
    assert_eq!(numbers, (1..=6).map(|number| (first + number).to_string()).collect::<Vec<_>>(), "none of them twice");
    let is_granted = async |round: usize| {
        let answer = kept[0].claim(&claim(&format!("{round}"), TTL), Patience::Once).await;
        matches!(answer, Ok(Claimed::Granted(_)))
    };
    for round in [1, 3, 5] {
        assert!(!is_granted(round).await, "its session lives");
    }
    for round in [0, 2, 4] {
        eventually(SOON, "what the dead ones held is free", async || is_granted(round).await).await;
    }
    // Clients that only listen have numbers of another range.
    let client = client(&server).await;
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&client, &holder).await;
    queued(&client, &waiter).await;
    let below =
        "SELECT count(*) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND objid BETWEEN 1 AND 1073741823";
    eventually(SOON, "it listens", async || server.value("postgres", below) == "1").await;
}

/// Somebody else's lock on the number that comes next. It is passed over, and nobody holds by it.
#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_another_program_has_locked_is_passed_over() {
    let server = migrated(&[]).await;
    let first = session(&server).await;
    let dead = claim("x", TTL);
    granted(&first, &dead).await;
    let (foreign, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    foreign
        .batch_execute(&format!("SELECT pg_advisory_lock('fencepost.locks'::regclass::integer, {})", (1 << 30) + 2))
        .await
        .unwrap();
    let second = session(&server).await;
    let mine = claim("y", TTL);
    granted(&second, &mine).await;
    let number = "SELECT session FROM fencepost.locks WHERE name = 'y'";
    assert_eq!(server.value("postgres", number), ((1 << 30) + 3).to_string());
    assert!(matches!(renewed(&second, &mine).await, Ok(Renewal::Renewed { .. })));
    drop(foreign);
    assert!(matches!(renewed(&second, &mine).await, Ok(Renewal::Renewed { .. })));
    assert!(matches!(second.claim(&claim("x", TTL), Patience::Once).await, Ok(Claimed::Busy(_))));
    first.close().await;
    eventually(SOON, "the first session's lock comes free", async || {
        matches!(second.claim(&claim("x", TTL), Patience::Once).await, Ok(Claimed::Granted(_)))
    })
    .await;
}

/// A session's number is written. Somebody's forgotten transaction keeps it from being given, for a bounded time, and is named.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_session_that_gets_no_number_says_so_in_time() {
    let server = migrated(&[]).await;
    let administrator = server.administrator();
    let forgotten = std::thread::spawn(move || {
        administrator.sql("postgres", "BEGIN; SELECT FROM fencepost.state FOR UPDATE; SELECT pg_sleep(8); COMMIT")
    });
    super::rows::row_is_locked(&server).await;
    let url = format!("{}?mode=session&timeout=1s&connect_timeout=4s", server.url("postgres"));
    let error = within(SOON * 2, "a bounded time", open(&url)).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert!(error.to_string().contains("another transaction"), "{error}");
    forgotten.join().unwrap();
    granted(&open(&url).await.unwrap(), &claim("x", TTL)).await;
}

/// A look is stopped by somebody's migration on the table. That is not the connection's end, by which all would be lost that is held.
#[tokio::test(flavor = "multi_thread")]
async fn l4_a_look_that_failed_ends_no_session() {
    let server = migrated(&[]).await;
    let (losses, mut told) = LossReporter::channel();
    let (a, b) =
        (open(&format!("{}?mode=session&timeout=2s", server.url("postgres"))).await.unwrap(), session(&server).await);
    a.report_losses(losses);
    let (mine, others, wanted) = (claim("x", TTL), claim("y", TTL), claim("y", TTL));
    granted(&a, &mine).await;
    granted(&b, &others).await; // by a session, so that who waits looks often
    queued(&a, &wanted).await;
    let administrator = server.administrator();
    let locking = std::thread::spawn(move || {
        administrator.sql("postgres", "BEGIN; LOCK TABLE fencepost.claims; SELECT pg_sleep(3.5); COMMIT")
    });
    locking.join().unwrap();
    assert!(told.try_recv().is_err(), "nothing was lost");
    within(SOON, "it is held as before", async {
        while !matches!(renewed(&a, &mine).await, Ok(Renewal::Renewed { .. })) {
            tokio::time::sleep(ms(20)).await;
        }
    })
    .await;
    b.release(&others.holding).await.unwrap();
    within(SOON, "and the turn comes", a.turn(&wanted)).await.unwrap();
}

/// A server that lets everybody in and fails every look. Before, connections came as fast as they could be made.
#[tokio::test(flavor = "multi_thread")]
async fn looks_that_go_on_failing_are_made_with_pauses() {
    let server = migrated(&[]).await;
    let (holder, waiting) = (client(&server).await, session(&server).await);
    granted(&holder, &claim("x", TTL)).await;
    server.sql(
        "postgres",
        "CREATE OR REPLACE FUNCTION fencepost.look(a_namespace text, a_names text[], a_owners bytea[], OUT place bigint, \
         OUT became text, OUT left_ms bigint) RETURNS SETOF record LANGUAGE plpgsql AS \
         $$ BEGIN RAISE 'broken' USING ERRCODE = '22008'; END $$",
    );
    queued(&waiting, &claim("x", TTL)).await;
    let sessions = "SELECT sessions FROM fencepost.state";
    let so_far: u64 = server.value("postgres", sessions).parse().unwrap();
    eventually(SOON, "it is tried again", async || {
        server.value("postgres", sessions).parse::<u64>().unwrap() >= so_far + 2
    })
    .await;
    tokio::time::sleep(ms(1500)).await;
    let made = server.value("postgres", sessions).parse::<u64>().unwrap() - so_far;
    assert!(made < 20, "{made} connections");
}

/// A thousand locks need two connections and one advisory lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_held_locks_share_the_connections() {
    let server = migrated(&[]).await;
    let store = session(&server).await;
    for number in 0..1000 {
        granted(&store, &claim(&format!("{number}"), TTL)).await;
    }
    let connections = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %'";
    assert_eq!(server.value("postgres", connections), "2");
    assert_eq!(server.value("postgres", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "1");
    assert_eq!(store.inspect(None).await.unwrap().len(), 1000);
}

/// Leases and sessions meet on one name and exclude each other; a session takes no lock twice.
#[tokio::test(flavor = "multi_thread")]
async fn both_modes_exclude_each_other() {
    let server = migrated(&[]).await;
    let (lease, session) = (client(&server).await, session(&server).await);
    let (a, b) = (claim("x", TTL), claim("y", TTL));
    granted(&lease, &a).await;
    granted(&session, &b).await;
    for store in [&lease, &session] {
        for lock in ["x", "y"] {
            let answer = store.claim(&claim(lock, TTL), Patience::Once).await.unwrap();
            assert!(matches!(answer, Claimed::Busy(_)), "{lock}: {answer:?}");
        }
    }
    let shown = lease.inspect(Some(&name("y"))).await.unwrap();
    assert_eq!(shown[0].holders[0].expires_in, None);
}

/// Some relatives of PostgreSQL grant every advisory lock, to everybody.
#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_fake_advisory_locks_is_refused() {
    let server = migrated(&[]).await;
    server.sql(
        "postgres",
        "ALTER FUNCTION pg_catalog.pg_try_advisory_lock(integer, integer) RENAME TO real_one; \
         CREATE FUNCTION pg_catalog.pg_try_advisory_lock(integer, integer) RETURNS boolean \
         LANGUAGE sql AS 'SELECT true'",
    );
    let error =
        open(&format!("{}?mode=session", server.url("postgres"))).await.expect_err("locks there exclude nobody");
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("advisory lock"), "{error}");
}

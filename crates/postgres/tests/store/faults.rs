//! Connections that are ended, processes that are stopped, a server that has no room: what was promised holds.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fencepost_core::{
    claim::{Claim, Claimed, Grant, Patience},
    error::{Applied, Error, ErrorKind, Retry},
    store::Store,
};
use fencepost_postgres::{
    PostgresStore,
    fenced::{FencedTable, Refused, fence_table},
};
use fencepost_servers::{Network, PostgresServer, Weather};
use tokio::task::JoinSet;
use tokio_postgres::NoTls;

use super::{SOON, TTL, claim, client, config, eventually, granted, migrated, ms, now, open, queued, renewed, within};

/// The server's processes for our connections for statements.
const STATEMENTS: &str = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'fencepost %' \
                          AND pid NOT IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory')";

async fn obtain(store: &PostgresStore, claim: &Claim) -> Result<Grant, Error> {
    match store.claim(claim, Patience::Queue).await? {
        Claimed::Granted(grant) => Ok(grant),
        _ => store.turn(claim).await,
    }
}

/// Adds one to a row under the lock, again and again; what is refused for its fence, or finds the store out of reach, is
/// done again. Answers how often it added.
async fn add(server: Arc<PostgresServer>, mode: &str, ttl: Duration, until: fencepost_core::clock::Moment) -> u64 {
    let url = format!("{}?mode={mode}", server.url("postgres"));
    let store = loop {
        match open(&url).await {
            Ok(store) => break store,
            Err(error) => assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error}"),
        }
    };
    let (data, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let table = FencedTable::new("accounts").unwrap();
    let mut added = 0;
    while now() < until {
        let wanted = claim("accounts/1", ttl);
        let grant = match tokio::time::timeout(SOON * 4, obtain(&store, &wanted)).await {
            Ok(Ok(grant)) => grant,
            Ok(Err(error)) => {
                assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error}");
                let _ = store.release(&wanted.holding).await;
                continue;
            }
            Err(_) => panic!("starved"),
        };
        let fence = grant.fence.unwrap();
        let read = table.advance(&data, "id = $2", &[&1_i64], fence).await;
        if let Ok(row) = read {
            let balance: i64 = row.get("balance");
            tokio::time::sleep(ms(added % 7)).await; // the work, in which the lock may be lost
            let write = "UPDATE accounts SET balance = $1, fence = $2 WHERE id = 1";
            match data.execute(write, &[&(balance + 1), &(fence.get() as i64)]).await {
                Ok(_) => added += 1,
                Err(error) => assert!(matches!(Refused::of(error), Refused::Stale { .. })),
            }
        } else {
            assert!(matches!(read, Err(Refused::Stale { .. })), "{read:?}");
        }
        let _ = store.release(&wanted.holding).await;
    }
    added
}

async fn accounts() -> Arc<PostgresServer> {
    let server = Arc::new(migrated(&[]).await);
    server.sql(
        "postgres",
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint); INSERT INTO accounts VALUES (1, 0)",
    );
    fence_table(&config(&server.url("postgres")), &FencedTable::new("accounts").unwrap()).await.unwrap();
    server
}

/// An administrator ends our connections at random, and leases run out in the middle of the work.
#[tokio::test(flavor = "multi_thread")]
async fn f1_no_update_is_lost_while_connections_are_ended_and_leases_run_out() {
    let server = accounts().await;
    let until = now().after(Duration::from_secs(4));
    let mut workers = JoinSet::new();
    for number in 0..6_u64 {
        let mode = if number % 2 == 0 { "lease" } else { "session" };
        workers.spawn(add(server.clone(), mode, ms(20 + 40 * number), until));
    }
    let ended = Arc::new(AtomicU64::new(0));
    let ending = std::thread::spawn({
        let (administrator, ended) = (server.administrator(), ended.clone());
        move || {
            while now() < until {
                let one = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                           WHERE application_name LIKE 'fencepost %' ORDER BY random() LIMIT 1";
                ended.fetch_add(administrator.sql("postgres", one).len() as u64, Ordering::Relaxed);
                std::thread::sleep(ms(30));
            }
        }
    });
    let added: u64 = within(Duration::from_secs(60), "all come to an end", workers.join_all()).await.iter().sum();
    ending.join().unwrap();
    let balance: u64 = server.value("postgres", "SELECT balance FROM accounts").parse().unwrap();
    assert_eq!(balance, added, "an update was lost or came twice");
    assert!(added > 10 && ended.load(Ordering::Relaxed) > 10, "{added} added, {ended:?} connections ended");
}

/// The server's process for our statements is stopped in the middle. Two answers that do not come end the connection, and
/// a new one serves.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_stopped_backend_costs_two_time_limits() {
    let server = migrated(&[]).await;
    let store = open(&format!("{}?timeout=300ms", server.url("postgres"))).await.unwrap();
    granted(&store, &claim("warm-up", TTL)).await;
    let pid = server.value("postgres", STATEMENTS);
    let signal = |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    signal("-STOP");
    let wanted = claim("x", TTL);
    for _ in 0..2 {
        let error = within(SOON, "every call ends", store.claim(&wanted, Patience::Once)).await.unwrap_err();
        assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error}");
    }
    let fence = granted(&store, &wanted).await.fence;
    signal("-CONT");
    // What the stopped process had still to do are repeats of the same claim: they find it held by its own owner.
    tokio::time::sleep(ms(100)).await;
    assert_eq!(granted(&store, &wanted).await.fence, fence);
}

/// The waiter may be anywhere in its asking when the store is closed, or still be making its connection for messages.
#[tokio::test(flavor = "multi_thread")]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let server = migrated(&[]).await;
    let holder = client(&server).await;
    granted(&holder, &claim("x", TTL)).await;
    for round in 0..100 {
        let store = client(&server).await;
        let waiter = claim("x", TTL);
        queued(&store, &waiter).await;
        let turn = tokio::spawn({
            let store = store.clone();
            async move { store.turn(&waiter).await }
        });
        tokio::time::sleep(Duration::from_micros(100 * round)).await;
        store.close().await;
        let error = within(SOON, "the waiter is told", turn).await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
    }
}

/// Others have used up the server's table of locks, so that it cannot be found out whether a waiter is in reach. Nothing is
/// changed, nothing panics, and the message says what to raise.
#[tokio::test(flavor = "multi_thread")]
async fn c4_a_full_lock_table_is_unavailable_and_changes_nothing() {
    let server = migrated(&["max_locks_per_transaction=10", "max_connections=12", "max_prepared_transactions=0"]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    let hears = "SELECT count(*) FROM fencepost.claims WHERE client IS NOT NULL";
    eventually(SOON, "the waiter hears", async || server.value("postgres", hears) == "1").await;
    // Its connection is a new one by now: whether it lives needs a place in the table.
    server.sql(
        "postgres",
        "CREATE TABLE kept AS SELECT client FROM fencepost.claims; UPDATE fencepost.claims SET client = 1",
    );
    let administrator = server.administrator();
    let fill = std::thread::spawn(move || {
        let all = "DO $$ BEGIN FOR i IN 1 .. 1000000 LOOP BEGIN PERFORM pg_advisory_lock(i); \
                   EXCEPTION WHEN OTHERS THEN EXIT; END; END LOOP; PERFORM pg_sleep(1.5); END $$";
        administrator.sql("postgres", all);
    });
    let late = claim("x", TTL);
    let mut refused = None;
    eventually(SOON, "the table is full", async || {
        refused = a.claim(&late, Patience::Queue).await.err();
        if refused.is_none() {
            let _ = a.release(&late.holding).await; // its place, for another try
        }
        refused.is_some()
    })
    .await;
    let error = refused.unwrap();
    assert_eq!((error.kind(), error.applied(), error.retry()), (ErrorKind::Unavailable, Applied::No, Retry::Later));
    assert!(error.advice().unwrap().contains("max_locks_per_transaction"), "{error}");
    fill.join().unwrap();
    // Its process gives the locks back when it ends, which is after its last answer.
    let room = "DO $$ BEGIN PERFORM pg_advisory_xact_lock(i) FROM generate_series(-100, -1) AS i; END $$";
    eventually(SOON, "there is room again", async || server.try_sql("postgres", room).is_ok()).await;
    a.release(&late.holding).await.unwrap(); // an earlier try may have got its place, and could not give it back
    assert_eq!(server.value("postgres", "SELECT string_agg(fence || ' ' || waiters, ',') FROM fencepost.locks"), "1 1");
    server.sql("postgres", "UPDATE fencepost.claims SET missing = NULL, client = (SELECT client FROM kept)");
    a.release(&holder.holding).await.unwrap();
    within(SOON, "it goes on", b.turn(&waiter)).await.unwrap();
}

/// Stopped for longer than any TTL, a session's holder still holds, and nobody else gets in. Seen from the server: its
/// kernel goes on answering for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_outlasts_its_ttl() {
    let server = migrated(&[]).await;
    let (a, b) = (open(&format!("{}?mode=session", server.url("postgres"))).await.unwrap(), client(&server).await);
    granted(&a, &claim("x", ms(10))).await;
    tokio::time::sleep(ms(300)).await;
    assert!(matches!(b.claim(&claim("x", TTL), Patience::Once).await, Ok(Claimed::Busy(_))));
}

/// What is asked for on a way that loses the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Claim,
    Renew,
    Release,
    Force,
}

/// The answer is lost, then the connection, and there is no other. Nobody there knows what came of it: all of it was done.
#[tokio::test(flavor = "multi_thread")]
async fn c2_what_was_carried_out_before_the_connection_broke_is_not_called_not_applied() {
    let server = migrated(&[]).await;
    for verb in [Verb::Claim, Verb::Renew, Verb::Release, Verb::Force] {
        carried_out_unanswered(&server, "lease", verb).await;
    }
    // A session's renewal changes nothing.
    for verb in [Verb::Claim, Verb::Release, Verb::Force] {
        carried_out_unanswered(&server, "session", verb).await;
    }
}

/// Each verb is the second of its kind on its connection, the one that is prepared: an answer that is lost must not keep it from
/// being carried out either.
async fn carried_out_unanswered(server: &PostgresServer, mode: &str, verb: Verb) {
    let network = Network::before(server.address()).await.unwrap();
    let store = open(&format!("postgres://postgres@{}/postgres?mode={mode}", network.address)).await.unwrap();
    let (wanted, warm_up) = (claim(&format!("{verb:?} {mode}"), TTL), claim("warm-up", TTL));
    granted(&store, &warm_up).await;
    renewed(&store, &warm_up).await.unwrap();
    store.force(warm_up.name(), None).await.unwrap();
    store.release(&warm_up.holding).await.unwrap();
    if verb != Verb::Claim {
        granted(&store, &wanted).await;
    }
    if mode == "session" && verb == Verb::Release {
        // Given back on the session, and when that breaks on the other connection: this one is gone by then.
        server.sql("postgres", &format!("SELECT pg_terminate_backend(pid) FROM ({STATEMENTS}) AS ours"));
    }
    let row = format!("SELECT coalesce(max(xmin::text), '') FROM fencepost.locks WHERE name = '{}'", wanted.name());
    let before = server.value("postgres", &row);
    network.set(Weather::LostReplies);
    let doing = tokio::spawn({
        let wanted = wanted.clone();
        async move {
            match verb {
                Verb::Claim => store.claim(&wanted, Patience::Once).await.map(drop),
                Verb::Renew => renewed(&store, &wanted).await.map(drop),
                Verb::Release => store.release(&wanted.holding).await.map(drop),
                Verb::Force => store.force(wanted.name(), None).await.map(drop),
            }
        }
    });
    eventually(SOON, "it is carried out", async || server.value("postgres", &row) != before).await;
    network.vanish().await;
    let error = within(SOON, "the refusal", doing).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{mode}: {error}");
}

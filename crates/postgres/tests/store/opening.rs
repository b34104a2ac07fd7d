//! What can be wrong before the first lock: each is a clear error at once.

use std::net::TcpListener;

use fencepost_core::{
    claim::{Claimed, Mode, Patience},
    error::{Applied, Error, ErrorKind, Retry},
    name::{LockName, MAX_NAME_BYTES, Namespace},
    store::Store,
};
use fencepost_postgres::{Migrated, PostgresStore, fenced::FencedTable, migrate};
use fencepost_servers::PostgresServer;

use super::{SOON, TTL, claim, claim_as, config, granted, migrated, ms, open, within};

async fn refused(url: &str) -> Error {
    let error = within(SOON, "an answer at once", open(url)).await.expect_err("it must be refused");
    assert_eq!(error.applied(), Applied::No, "{error}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn without_tables_the_message_names_the_command_that_makes_them() {
    let server = PostgresServer::start();
    let url = server.url("postgres");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("fencepost migrate"), "{error}");
    let config = config(&url);
    let (a, b) = tokio::join!(migrate(&config), migrate(&config));
    let mut both = [a.unwrap(), b.unwrap()];
    both.sort_by_key(|done| *done == Migrated::UpToDate);
    assert_eq!(both, [Migrated::Created, Migrated::UpToDate], "two at once do it once");
    granted(&open(&url).await.unwrap(), &claim("x", TTL)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_another_version_are_refused() {
    let server = migrated(&[]).await;
    let url = server.url("postgres");
    let early = open(&url).await.unwrap();
    server.sql("postgres", "UPDATE fencepost.state SET version = 7, oldest = 5");
    let error = refused(&url).await;
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("version 7") && error.advice().unwrap().contains("newer"), "{error}");
    assert_eq!(migrate(&config(&url)).await.unwrap_err().kind(), ErrorKind::Misconfigured);
    server.sql("postgres", "UPDATE fencepost.state SET version = 7, oldest = 1");
    open(&url).await.expect("a newer version that still serves this one");
    server.sql("postgres", "UPDATE fencepost.state SET version = 0, oldest = 0");
    assert!(refused(&url).await.to_string().contains("fencepost migrate"));
    // A client that was connected meanwhile meets functions that are gone, and says the same.
    server.sql("postgres", "DROP FUNCTION fencepost.claim");
    let error = early.claim(&claim("x", TTL), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Misconfigured, Applied::No), "{error}");
}

/// Whoever held and waited under version 1 does so afterwards, and all is as if it had been made new.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_version_1_are_brought_to_this_one() {
    let (server, fresh) = (PostgresServer::start(), migrated(&[]).await);
    server.sql("postgres", include_str!("version_1.sql"));
    let url = server.url("postgres");
    let error = refused(&url).await;
    assert!(error.to_string().contains("old version 1") && error.advice().unwrap().contains("migrate"), "{error}");
    let held = |lock: &str, how: &str, owner: &str| {
        format!(
            "SELECT fencepost.claim('fencepost', '{lock}', '{owner}', 60000, '{{}}', 7, 'queue', false, false, {how}, NULL, NULL)"
        )
    };
    for (lock, how, owner) in [("x", "false", "a"), ("r", "true", "b"), ("r", "true", "c")] {
        server.sql("postgres", &held(lock, how, &owner.repeat(20)));
    }
    let (a, b) = (config(&url), config(&url));
    let (a, b) = tokio::join!(migrate(&a), migrate(&b));
    let mut both = [a.unwrap(), b.unwrap()];
    both.sort_by_key(|done| *done == Migrated::UpToDate);
    assert_eq!(both, [Migrated::Upgraded, Migrated::UpToDate], "two at once do it once");

    let store = open(&url).await.unwrap();
    assert_eq!(store.inspect(None).await.unwrap().iter().map(|lock| lock.holders.len()).sum::<usize>(), 3);
    assert!(matches!(store.claim(&claim("x", TTL), Patience::Once).await, Ok(Claimed::Busy(_))));
    let (reader, writer) = (claim_as("r", TTL, Mode::Shared), claim("r", TTL));
    granted(&store, &reader).await;
    super::queued(&store, &writer).await;
    store.release(&reader.holding).await.unwrap();
    for owner in ["b", "c"] {
        server.sql("postgres", &format!("SELECT fencepost.release('fencepost', 'r', '{}')", owner.repeat(20)));
    }
    within(SOON, "the writer's turn", store.turn(&writer)).await.unwrap();

    for made in [
        "SELECT string_agg(concat_ws(' ', proname, pg_get_function_arguments(oid), prosrc, proconfig::text, provolatile), '|' \
         ORDER BY proname, pg_get_function_arguments(oid)) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace",
        "SELECT string_agg(concat_ws(' ', table_name, column_name, data_type, is_nullable, column_default), '|' \
         ORDER BY table_name, ordinal_position) FROM information_schema.columns WHERE table_schema = 'fencepost'",
        "SELECT string_agg(pg_get_triggerdef(oid), '|' ORDER BY tgname) FROM pg_trigger WHERE NOT tgisinternal",
        "SELECT version || ' ' || oldest FROM fencepost.state",
    ] {
        assert_eq!(server.value("postgres", made), fresh.value("postgres", made));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_documented_rights_are_enough_and_less_is_told() {
    let server = migrated(&[]).await;
    server.sql("postgres", "CREATE ROLE app LOGIN; CREATE ROLE viewer LOGIN; CREATE ROLE nobody LOGIN");
    let script = fencepost_postgres::script(&config(&server.url("postgres")));
    let grants: Vec<_> =
        script.lines().filter_map(|line| line.trim_start_matches("--").trim().strip_prefix("GRANT ")).collect();
    assert_eq!(grants.len(), 6, "{grants:?}");
    for (role, granted) in [("app", &grants[..4]), ("viewer", &grants[4..])] {
        for grant in granted {
            server.sql("postgres", &format!("GRANT {}", grant.replace("TO role", &format!("TO {role}"))));
        }
    }
    let of = |role: &str| format!("postgres://{role}@{}/postgres", server.address());
    let app = open(&of("app")).await.unwrap();
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&app, &holder).await;
    super::queued(&app, &waiter).await;
    assert!(super::renewed(&app, &holder).await.is_ok());
    app.release(&holder.holding).await.unwrap();
    within(SOON, "the turn", app.turn(&waiter)).await.unwrap();
    let session = open(&format!("{}?mode=session", of("app"))).await.unwrap();
    granted(&session, &super::claim_of(&["new", "newer"], TTL, Mode::Exclusive)).await;

    let viewer = open(&of("viewer")).await.unwrap();
    assert_eq!(viewer.inspect(None).await.unwrap().len(), 3);
    let error = viewer.claim(&claim("y", TTL), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::PermissionDenied, Applied::No), "{error}");
    assert!(error.to_string().contains("permission denied") && error.advice().unwrap().contains("rights"), "{error}");
    assert_eq!(refused(&of("nobody")).await.kind(), ErrorKind::PermissionDenied);
    let error = migrate(&config(&format!("{}?schema=other", of("nobody")))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn passwords_databases_and_addresses_that_are_wrong() {
    let server = migrated(&["password_encryption=scram-sha-256"]).await;
    server.sql("postgres", "CREATE ROLE bob LOGIN PASSWORD 'hunter2'");
    server.demand_passwords_of("bob");
    let bob = |password: &str| format!("postgres://bob{password}@{}/postgres", server.address());
    for wrong in ["", ":hunter3"] {
        let error = refused(&bob(wrong)).await;
        assert_eq!((error.kind(), error.retry()), (ErrorKind::PermissionDenied, Retry::AfterChange), "{error}");
        assert!(!error.to_string().contains("hunter"), "{error}");
    }
    // The right password gets as far as the rights.
    assert!(refused(&bob(":hunter2")).await.to_string().contains("schema"));
    let error = refused(&server.url("nowhere")).await;
    assert!(error.kind() == ErrorKind::Misconfigured && error.to_string().contains("nowhere"), "{error}");

    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = refused(&format!("postgres://postgres@{closed}/postgres")).await;
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error}");
    // Something that accepts and says nothing, and something that talks another protocol.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("postgres://postgres@{}/postgres?connect_timeout=300ms", silent.local_addr().unwrap());
    assert_eq!(refused(&url).await.kind(), ErrorKind::Unavailable);
    let error = refused(&format!("postgres://postgres@{}/postgres?sslmode=verify-full", server.address())).await;
    assert!(error.kind() == ErrorKind::Misconfigured && error.to_string().contains("TLS"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused_and_the_message_says_what_to_name() {
    let server = migrated(&[]).await;
    let standby = server.standby("s1");
    for mode in ["lease", "session"] {
        let error = refused(&format!("{}?mode={mode}", standby.url("postgres"))).await;
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("standby") && error.advice().unwrap().contains("primary"), "{error}");
    }
}

/// The longest ones fit into every row, index and message; 10 kB never get as far as a server.
#[tokio::test(flavor = "multi_thread")]
async fn c3_the_longest_names_work_and_longer_ones_are_refused_at_the_edge() {
    let server = migrated(&[]).await;
    let longest = "이".repeat(MAX_NAME_BYTES / 3) + &"x".repeat(MAX_NAME_BYTES % 3);
    let longer = "x".repeat(10 * 1024);
    let namespace = Namespace::new(&longest).unwrap();
    let store = PostgresStore::open(&config(&server.url("postgres")), &namespace).await.unwrap();
    let holder = super::claim_of(&[&longest, "y"], TTL, Mode::Exclusive);
    granted(&store, &holder).await;
    super::queued(&store, &claim(&longest, TTL)).await;
    assert_eq!(store.inspect(Some(&super::name(&longest))).await.unwrap()[0].waiters.len(), 1);
    store.release(&holder.holding).await.unwrap();
    for error in [LockName::new(&longer).unwrap_err(), Namespace::new(&longer).unwrap_err()] {
        assert_eq!((error.kind(), error.applied()), (ErrorKind::InvalidInput, Applied::No));
        let said = error.to_string();
        assert!(said.contains("512") && said.len() < 300, "it says the limit, and not the name: {said}");
    }
    let error = FencedTable::new(&longer).unwrap_err();
    assert!(error.kind() == ErrorKind::InvalidInput && error.advice().unwrap().contains("63"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_free_connection_is_unavailable() {
    let server = migrated(&["max_connections=6", "superuser_reserved_connections=2", "max_wal_senders=0"]).await;
    server.sql("postgres", "CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA fencepost TO app");
    server.sql("postgres", "GRANT ALL ON ALL TABLES IN SCHEMA fencepost TO app");
    let url = format!("postgres://app@{}/postgres", server.address());
    let mut stores = Vec::new();
    let error = loop {
        match within(SOON, "an answer at once", open(&url)).await {
            Ok(store) => stores.push(store),
            Err(error) => break error,
        }
        assert!(stores.len() < 6);
    };
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Later), "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    // A waiter that finds no connection for messages has its place all the same, and asks for its turn.
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&stores[0], &holder).await;
    super::queued(&stores[1], &waiter).await;
    let turn = tokio::spawn({
        let (store, waiter) = (stores[1].clone(), waiter.clone());
        async move { store.turn(&waiter).await }
    });
    tokio::time::sleep(ms(2500)).await; // an outage of the messages that is not bridged any more
    stores[0].release(&holder.holding).await.unwrap();
    within(SOON * 2, "its turn comes", turn).await.unwrap().unwrap();
    drop(stores);
    let ours = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'fencepost %'";
    super::eventually(SOON, "there is room again", async || server.value("postgres", ours) == "0").await;
    // A session needs a second connection, and says the same of that one.
    let _others = [open(&url).await.unwrap(), open(&url).await.unwrap(), open(&url).await.unwrap()];
    let error = within(SOON * 2, "a bounded time", open(&format!("{url}?mode=session"))).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
}

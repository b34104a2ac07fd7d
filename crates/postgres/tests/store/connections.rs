//! Our connections: what is set on them, what goes over them, and what is left alone.

use std::future::poll_fn;

use fencepost_core::{
    cells::{Change, Expected},
    claim::{Claim, Claimant},
    error::ErrorKind,
    store::Store,
};
use fencepost_servers::PostgresServer;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

use super::{SOON, TTL, claim, client, eventually, granted, migrated, name, open, queued, within};

/// On the connection for statements and on the one that sessions hold by.
#[tokio::test(flavor = "multi_thread")]
async fn our_sessions_notice_a_vanished_client_and_show_who_holds() {
    let server = migrated(&[]).await;
    server.sql(
        "postgres",
        "CREATE TABLE seen (setting text, value text);
         CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             INSERT INTO public.seen SELECT s, current_setting(s) FROM unnest(ARRAY['application_name', 'tcp_keepalives_idle',
                 'tcp_user_timeout', 'client_connection_check_interval', 'idle_session_timeout']) AS s;
             RETURN NEW;
         END $$;
         CREATE TRIGGER note BEFORE UPDATE ON fencepost.locks FOR EACH ROW EXECUTE FUNCTION note()",
    );
    let here = Claimant::here();
    let mut who = format!("fencepost {}@{} {}", here.user, here.host, here.pid);
    who.truncate(63);
    for mode in ["lease", "session"] {
        server.sql("postgres", "TRUNCATE seen");
        let store = open(&format!("{}?mode={mode}", server.url("postgres"))).await.unwrap();
        granted(&store, &claim(mode, TTL)).await;
        let seen = server.value("postgres", "SELECT string_agg(DISTINCT value, ',' ORDER BY value) FROM seen");
        assert_eq!(seen, format!("0,10s,20,30000,{who}"), "{mode}");
    }
}

/// Hears what the server sends on some channels.
async fn heard(server: &PostgresServer, channels: &[&str]) -> mpsc::UnboundedReceiver<String> {
    let (listener, mut connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    let (to, messages) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(heard) = message {
                to.send(heard.payload().to_owned()).unwrap();
            }
        }
    });
    for channel in channels {
        listener.batch_execute(&format!("LISTEN {channel}")).await.unwrap();
    }
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(listener); // with the test's runtime
    });
    messages
}

/// A message takes a lock of the whole server when its transaction is committed.
#[tokio::test(flavor = "multi_thread")]
async fn w2_messages_are_sent_only_when_somebody_waits() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    let channel = "SELECT 'fencepost_' || client FROM fencepost.claims WHERE client IS NOT NULL";
    eventually(SOON, "the waiter hears", async || !server.sql("postgres", channel).is_empty()).await;
    let mut messages = heard(&server, &[&server.value("postgres", channel), "fencepost_cells"]).await;
    for other in ["y", "z"].map(|other| claim(other, TTL)) {
        for store in [&a, &b] {
            granted(store, &other).await;
            store.release(&other.holding).await.unwrap();
        }
    }
    let change = Change::write(name("cell"), Expected::Absent, *b"1").unwrap();
    b.cells().unwrap().change(&change).await.unwrap();
    a.release(&holder.holding).await.unwrap();
    let first = within(SOON, "the hand-over is told", messages.recv()).await.unwrap();
    assert_eq!(first, told(&waiter), "the first message of all");
    within(SOON, "the turn", b.turn(&waiter)).await.unwrap();
}

/// A letter and the first half of the owner value.
fn told(waiter: &Claim) -> String {
    format!("g{}", &waiter.owner().to_string()[..16])
}

/// What calls itself PostgreSQL and is a relative, with other promises.
#[tokio::test(flavor = "multi_thread")]
async fn c4_a_relative_of_postgresql_is_refused_by_its_name() {
    let server = migrated(&[]).await;
    server.sql("postgres", "ALTER FUNCTION pg_catalog.version() RENAME TO real_version");
    for (version, refused) in [
        ("CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu)", true),
        ("PostgreSQL 11.2-YB-2.18.3.0-b0 on x86_64-pc-linux-gnu", true),
        ("PostgreSQL 8.0.2 on i686-pc-linux-gnu, Redshift 1.0.54321", true),
        ("PostgreSQL 15.5 (Debian 15.5-0+deb12u1) on x86_64-pc-linux-gnu", false),
    ] {
        let fake = "CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS";
        server.sql("postgres", &format!("{fake} $$ SELECT '{version}' $$"));
        match open(&server.url("postgres")).await {
            Ok(_) => assert!(!refused, "{version}"),
            Err(error) => {
                assert!(refused && error.kind() == ErrorKind::Misconfigured, "{version}: {error}");
                assert!(error.to_string().contains(&version[..20]), "it says what is there: {error}");
            }
        }
    }
}

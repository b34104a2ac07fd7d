//! Tables that refuse stale fences.

use fencepost_core::{error::ErrorKind, fence::Fence, store::Store};
use fencepost_postgres::fenced::{FencedTable, Refused, STALE_FENCE, fence_table};
use fencepost_servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

use super::{TTL, claim, client, config, granted, migrated};

async fn connected(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// The story that fences are for: a holder that was paused writes after the next one has looked.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_holders_write_is_refused_by_the_row() {
    let server = migrated(&[]).await;
    server.sql(
        "postgres",
        "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint); INSERT INTO accounts VALUES (1, 100), (2, 0)",
    );
    let table = FencedTable::new("accounts").unwrap();
    fence_table(&config(&server.url("postgres")), &table).await.unwrap();
    fence_table(&config(&server.url("postgres")), &table).await.expect("it can be run again");
    let store = client(&server).await;
    let (first, second) = (claim("accounts/1", TTL), claim("accounts/1", TTL));
    let stale = granted(&store, &first).await.fence.unwrap();
    let data = connected(&server).await;
    let id: i64 = 1;
    let read: i64 = table.advance(&data, "id = $2", &[&id], stale).await.unwrap().get("balance");
    // Paused here; the lock is passed on meanwhile.
    store.force(first.name(), None).await.unwrap();
    let fence = granted(&store, &second).await.fence.unwrap();
    let row = table.advance(&data, "id = $2", &[&id], fence).await.unwrap();
    let seen: i64 = row.get("balance");
    let write = "UPDATE accounts SET balance = $1, fence = $2 WHERE id = 1";
    let late = data.execute(write, &[&(read - 10), &(stale.get() as i64)]).await.unwrap_err();
    assert_eq!(late.code().unwrap().code(), STALE_FENCE);
    assert!(matches!(Refused::of(late), Refused::Stale { seen } if seen == fence.get()));
    data.execute(write, &[&(seen - 30), &(fence.get() as i64)]).await.unwrap();
    assert_eq!(server.value("postgres", "SELECT balance FROM accounts WHERE id = 1"), "70");
    let stale_look = table.advance(&data, "id = $2", &[&id], stale).await.unwrap_err();
    assert!(matches!(stale_look, Refused::Stale { seen } if seen == fence.get()), "{stale_look}");
    assert!(matches!(table.advance(&data, "id = $2", &[&9_i64], fence).await, Err(Refused::Missing)));
    // Other rows are not concerned, and the same fence may write again and again.
    for _ in 0..2 {
        data.execute("UPDATE accounts SET balance = 1, fence = 1 WHERE id = 2", &[]).await.unwrap();
    }
}

/// An upsert is an update where the row exists.
#[tokio::test(flavor = "multi_thread")]
async fn upserts_and_odd_names_are_fenced_too() {
    let server = PostgresServer::start();
    server
        .sql("postgres", "CREATE SCHEMA \"My Shop\"; CREATE TABLE \"My Shop\".\"Order \"\"s\" (id bigint PRIMARY KEY)");
    let table = FencedTable::new("My Shop.Order \"s").unwrap().column("sæen by'").unwrap();
    fence_table(&config(&server.url("postgres")), &table).await.unwrap();
    let data = connected(&server).await;
    let upsert = "INSERT INTO \"My Shop\".\"Order \"\"s\" VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET \"sæen by'\" = excluded.\"sæen by'\"";
    for (fence, passes) in [(5_i64, true), (7, true), (6, false), (7, true)] {
        assert_eq!(data.execute(upsert, &[&fence]).await.is_ok(), passes, "{fence}");
    }
    let fence = |number| Fence::new(number).unwrap();
    table.advance(&data, "id = $2", &[&1_i64], fence(8)).await.unwrap();
    assert!(table.advance(&data, "id = $2", &[&1_i64], fence(7)).await.is_err());
    for bad in ["", ".", "a.", "a.b.c", "a\nb", &"x".repeat(64)] {
        assert_eq!(FencedTable::new(bad).unwrap_err().kind(), ErrorKind::InvalidInput, "{bad:?}");
    }
    let missing = fence_table(&config(&server.url("postgres")), &FencedTable::new("nowhere").unwrap()).await;
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::Misconfigured);
}

/// A column that was there before, and may be NULL: that is no way around the fence, and no row without one is left out.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_fence_is_not_taken_away() {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE TABLE t (id bigint, fence bigint); INSERT INTO t VALUES (1, NULL), (2, 9)");
    let table = FencedTable::new("t").unwrap();
    fence_table(&config(&server.url("postgres")), &table).await.unwrap();
    let data = connected(&server).await;
    table.advance(&data, "id = $2", &[&1_i64], Fence::new(5).unwrap()).await.expect("it has seen none");
    for fence in [None, Some(4_i64)] {
        let late = data.execute("UPDATE t SET fence = $1 WHERE id = 1", &[&fence]).await.unwrap_err();
        assert!(matches!(Refused::of(late), Refused::Stale { seen: 5 }), "{fence:?}");
    }
}

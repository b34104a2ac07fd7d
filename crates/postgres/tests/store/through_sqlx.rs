//! The documented SQL in transactions of `sqlx`, which knows nothing of us.

use fencepost_core::{claim::Attempt, error::ErrorKind, limits::Wait, name::Namespace, store::Store};
use fencepost_postgres::{
    fenced::{FencedTable, STALE_FENCE, fence_table},
    transaction::{self, RowWait, TRY_XACT, XactAnswer, advisory_key, row_sql},
};
use fencepost_servers::PostgresServer;
use sqlx_core::{connection::Connection, query::query, query_scalar::query_scalar, transaction::Transaction};
use sqlx_postgres::{PgConnection, Postgres};
use tokio_postgres::NoTls;

use super::{TTL, claim, client, config, granted, migrated, name};

async fn connected(server: &PostgresServer) -> PgConnection {
    PgConnection::connect(&server.url("postgres")).await.unwrap()
}

async fn data() -> PostgresServer {
    let server = migrated(&[]).await;
    server.sql(
        "postgres",
        "CREATE TABLE orders (id bigint PRIMARY KEY, state text); INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
    );
    server
}

/// What the server said to a statement that failed.
fn code(error: &sqlx_core::Error) -> String {
    error.as_database_error().and_then(|told| told.code()).expect("the server refused it").into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_held_until_a_transaction_of_sqlx_ends() {
    let server = data().await;
    let (mut a, mut b) = (connected(&server).await, connected(&server).await);
    let key = advisory_key(&Namespace::default(), &name("stock/recount"));
    let ask = async |transaction: &mut Transaction<'_, Postgres>| {
        let answer: String = query_scalar(TRY_XACT).bind(key).fetch_one(&mut **transaction).await.unwrap();
        XactAnswer::read(&answer)
    };
    let (mut first, mut second) = (a.begin().await.unwrap(), b.begin().await.unwrap());
    assert_eq!(ask(&mut first).await.unwrap(), XactAnswer::Taken);
    assert_eq!(ask(&mut first).await.unwrap_err().kind(), ErrorKind::InvalidInput, "it would count twice");
    assert_eq!(ask(&mut second).await.unwrap(), XactAnswer::Busy);
    // The same lock as that of our own function, on whatever client.
    let (mut ours, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut third = ours.transaction().await.unwrap();
    let lock = name("stock/recount");
    let outcome = transaction::xact(&mut third, &Namespace::default(), &lock, Wait::Once).await;
    assert!(matches!(outcome, Ok(Attempt::Busy(_))), "{outcome:?}");
    // One that found it busy goes on as if nothing had been asked.
    query("UPDATE orders SET state = 'seen' WHERE id = 2").execute(&mut *second).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(ask(&mut second).await.unwrap(), XactAnswer::Taken);
    second.rollback().await.unwrap(); // one that is dropped ends when its connection is used again
    assert_eq!(server.value("postgres", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"), "0");
    assert_eq!(server.value("postgres", "SELECT state FROM orders WHERE id = 2"), "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_locked_in_a_transaction_of_sqlx() {
    let server = data().await;
    let (mut a, mut b) = (connected(&server).await, connected(&server).await);
    let (mut first, mut second) = (a.begin().await.unwrap(), b.begin().await.unwrap());
    let one = row_sql("SELECT id FROM orders WHERE id = $1", RowWait::No);
    let any = row_sql("SELECT id FROM orders ORDER BY id LIMIT 1", RowWait::Skip);
    let locked: i64 = query_scalar(&one).bind(1_i64).fetch_one(&mut *first).await.unwrap();
    assert_eq!(locked, 1);
    query("INSERT INTO orders VALUES (3, 'mine')").execute(&mut *second).await.unwrap();
    {
        let mut savepoint = second.begin().await.unwrap();
        let busy = query_scalar::<_, i64>(&one).bind(1_i64).fetch_one(&mut *savepoint).await.unwrap_err();
        assert_eq!(code(&busy), "55P03");
        savepoint.rollback().await.unwrap();
    }
    let next: Option<i64> = query_scalar(&any).fetch_optional(&mut *second).await.unwrap();
    assert_eq!(next, Some(2), "the first one that is free");
    first.commit().await.unwrap();
    let passed_on: i64 = query_scalar(&one).bind(1_i64).fetch_one(&mut *second).await.unwrap();
    assert_eq!(passed_on, 1);
    second.commit().await.unwrap();
    assert_eq!(server.value("postgres", "SELECT state FROM orders WHERE id = 3"), "mine", "the savepoint lost nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fenced_table_refuses_a_stale_fence_in_a_transaction_of_sqlx() {
    let server = data().await;
    let table = FencedTable::new("orders").unwrap();
    fence_table(&config(&server.url("postgres")), &table).await.unwrap();
    let store = client(&server).await;
    let mut fences = Vec::new();
    for _ in 0..2 {
        let holder = claim("orders/1", TTL);
        fences.push(i64::try_from(granted(&store, &holder).await.fence.unwrap().get()).unwrap());
        store.release(&holder.holding).await.unwrap();
    }
    let mut connection = connected(&server).await;
    let write = "UPDATE orders SET state = $1, fence = $2 WHERE id = 1";
    let advance = table.advance_sql("id = $2");
    // The newer holder lets the row see its fence, reads, writes.
    let mut newer = connection.begin().await.unwrap();
    let seen = query(&advance).bind(fences[1]).bind(1_i64).fetch_optional(&mut *newer).await.unwrap();
    assert!(seen.is_some());
    query(write).bind("newer").bind(fences[1]).execute(&mut *newer).await.unwrap();
    newer.commit().await.unwrap();
    // The older one comes late.
    let mut late = connection.begin().await.unwrap();
    let seen = query(&advance).bind(fences[0]).bind(1_i64).fetch_optional(&mut *late).await.unwrap();
    assert!(seen.is_none(), "stale");
    let refused = query(write).bind("late").bind(fences[0]).execute(&mut *late).await.unwrap_err();
    assert_eq!(code(&refused), STALE_FENCE);
    late.rollback().await.unwrap();
    assert_eq!(server.value("postgres", "SELECT state FROM orders WHERE id = 1"), "newer");
}

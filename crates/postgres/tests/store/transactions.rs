//! Locks inside the user's own transaction, on connections that the user lends.

use fencepost_core::{
    claim::Attempt,
    error::{Applied, ErrorKind},
    limits::Wait,
    name::{LockName, Namespace},
};
use fencepost_postgres::transaction::{self, RowWait, TRY_XACT, XactAnswer, advisory_key};
use fencepost_servers::PostgresServer;
use tokio_postgres::{Client, NoTls};

use super::{SOON, eventually, ms, name, within};

async fn connected(server: &PostgresServer) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.url("postgres"), NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn data() -> PostgresServer {
    let server = PostgresServer::start();
    server.sql(
        "postgres",
        "CREATE TABLE orders (id bigint PRIMARY KEY, state text); INSERT INTO orders VALUES (1, 'new'), (2, 'new')",
    );
    server
}

async fn xact<'a, 'c>(
    transaction: &'a mut tokio_postgres::Transaction<'c>,
    lock: &LockName,
    wait: impl Into<Wait>,
) -> Result<Attempt<transaction::Held<'a, 'c>>, fencepost_core::error::Error> {
    transaction::xact(transaction, &Namespace::default(), lock, wait).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_held_until_the_transaction_ends() {
    let server = data();
    let (mut a, mut b) = (connected(&server).await, connected(&server).await);
    let lock = name("stock/recount");
    let mut first = a.transaction().await.unwrap();
    let Attempt::Acquired(held) = xact(&mut first, &lock, Wait::Once).await.unwrap() else { panic!("it is free") };
    held.execute("UPDATE orders SET state = 'counted' WHERE id = 1", &[]).await.unwrap();
    {
        let mut second = b.transaction().await.unwrap();
        assert!(matches!(xact(&mut second, &lock, Wait::Once).await, Ok(Attempt::Busy(_))));
        assert!(matches!(xact(&mut second, &lock, ms(60)).await, Ok(Attempt::Busy(_))));
        assert!(matches!(xact(&mut second, &name("other"), Wait::Once).await, Ok(Attempt::Acquired(_))));
        // Its transaction goes on as if nothing had been asked.
        second.query("SELECT * FROM orders", &[]).await.unwrap();
    }
    let again = xact(&mut first, &lock, Wait::Once).await.expect_err("it would count twice");
    assert_eq!((again.kind(), again.applied(), again.lock()), (ErrorKind::InvalidInput, Applied::No, Some(&lock)));
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move {
            let mut second = b.transaction().await.unwrap();
            matches!(xact(&mut second, &lock, SOON).await, Ok(Attempt::Acquired(_)))
        }
    });
    first.commit().await.unwrap();
    assert!(within(SOON, "it passes on at the end", waiting).await.unwrap());
    let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
    eventually(SOON, "nothing stays on lent connections", async || server.value("postgres", left) == "0").await;
}

/// However the client dies. What it had written goes as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_transaction_and_a_dead_client_give_it_back() {
    let server = data();
    let (mut a, mut b) = (connected(&server).await, connected(&server).await);
    let lock = name("x");
    {
        let mut dropped = a.transaction().await.unwrap();
        assert!(matches!(xact(&mut dropped, &lock, Wait::Once).await, Ok(Attempt::Acquired(_))));
    }
    {
        let mut second = b.transaction().await.unwrap();
        let outcome = xact(&mut second, &lock, SOON).await;
        let Ok(Attempt::Acquired(held)) = outcome else { panic!("free after a rollback") };
        held.execute("UPDATE orders SET state = 'lost'", &[]).await.unwrap();
        server.sql(
            "postgres",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'",
        );
    }
    let mut third = a.transaction().await.unwrap();
    assert!(matches!(xact(&mut third, &lock, SOON).await, Ok(Attempt::Acquired(_))));
    assert_eq!(server.value("postgres", "SELECT count(*) FROM orders WHERE state = 'lost'"), "0");
}

/// Dropped while it waits, it leaves nothing in the server's queue: the connection serves the next statement at once.
#[tokio::test(flavor = "multi_thread")]
async fn c1_a_wait_that_is_dropped_leaves_no_statement_behind() {
    let server = data();
    let (mut a, mut b) = (connected(&server).await, connected(&server).await);
    let lock = name("x");
    let mut first = a.transaction().await.unwrap();
    assert!(matches!(xact(&mut first, &lock, Wait::Once).await, Ok(Attempt::Acquired(_))));
    let mut second = b.transaction().await.unwrap();
    for micros in [0, 100, 1000, 5000, 20_000] {
        let limit = std::time::Duration::from_micros(micros);
        assert!(tokio::time::timeout(limit, xact(&mut second, &lock, Wait::Forever)).await.is_err());
        within(ms(2000), "the connection is free", second.query("SELECT 1", &[])).await.unwrap();
    }
    first.rollback().await.unwrap();
    assert!(matches!(xact(&mut second, &lock, SOON).await, Ok(Attempt::Acquired(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_are_locked_and_a_busy_one_leaves_the_transaction_usable() {
    let server = data();
    let (mut a, mut b) = (connected(&server).await, connected(&server).await);
    let (one, any) = ("SELECT id FROM orders WHERE id = $1", "SELECT id FROM orders ORDER BY id LIMIT 1");
    let mut first = a.transaction().await.unwrap();
    let locked = transaction::row(&mut first, one, &[&1_i64], RowWait::No).await.unwrap();
    assert_eq!(locked.acquired().unwrap().rows().len(), 1);
    let mut second = b.transaction().await.unwrap();
    second.execute("INSERT INTO orders VALUES (3, 'mine')", &[]).await.unwrap();
    for wait in [RowWait::No, RowWait::AtMost(ms(60))] {
        let outcome = transaction::row(&mut second, one, &[&1_i64], wait).await;
        assert!(matches!(outcome, Ok(Attempt::Busy(_))), "{outcome:?}");
    }
    let next = transaction::row(&mut second, any, &[], RowWait::Skip).await.unwrap().acquired().unwrap();
    assert_eq!(next.rows()[0].get::<_, i64>(0), 2, "the first one that is free");
    let waiting = transaction::row(&mut second, one, &[&1_i64], RowWait::AtMost(SOON));
    let (outcome, ended) = tokio::join!(waiting, first.commit());
    ended.unwrap();
    assert!(matches!(outcome, Ok(Attempt::Acquired(held)) if held.rows().len() == 1), "it passes on");
    second.commit().await.unwrap();
    assert_eq!(server.value("postgres", "SELECT state FROM orders WHERE id = 3"), "mine");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_failed_before_and_a_standby_are_told() {
    let server = data();
    let mut client = connected(&server).await;
    let mut failed = client.transaction().await.unwrap();
    failed.query("SELECT 1 / 0", &[]).await.unwrap_err();
    let outcome = xact(&mut failed, &name("x"), Wait::Once).await;
    let error = outcome.expect_err("nothing can be asked in it");
    assert_eq!((error.kind(), error.applied()), (ErrorKind::InvalidInput, Applied::No), "{error}");
    assert!(error.advice().unwrap().contains("roll it back"));
    drop(failed);
    let standby = server.standby("s1");
    let mut there = connected(&standby).await;
    let mut transaction = there.transaction().await.unwrap();
    let outcome = xact(&mut transaction, &name("x"), Wait::Once).await;
    assert_eq!(outcome.expect_err("it would exclude nobody").kind(), ErrorKind::Misconfigured);
}

/// For clients of other crates: the statement, its parameter and its answer are all there is.
#[tokio::test(flavor = "multi_thread")]
async fn the_statement_alone_does_the_same() {
    let server = data();
    let (a, mut b) = (connected(&server).await, connected(&server).await);
    let key = advisory_key(&Namespace::default(), &name("x"));
    a.batch_execute("BEGIN").await.unwrap();
    let ask = async |client: &Client| client.query_one(TRY_XACT, &[&key]).await.unwrap().get::<_, String>(0);
    assert_eq!(XactAnswer::read(&ask(&a).await).unwrap(), XactAnswer::Taken);
    assert_eq!(XactAnswer::read(&ask(&b).await).unwrap(), XactAnswer::Busy);
    let mut other = b.transaction().await.unwrap();
    assert!(matches!(xact(&mut other, &name("x"), Wait::Once).await, Ok(Attempt::Busy(_))));
    assert_eq!(transaction::row_sql("SELECT 1 FROM t", RowWait::Skip), "SELECT 1 FROM t FOR UPDATE SKIP LOCKED");
}

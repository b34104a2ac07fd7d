//! Tickets: ten thousand of them, eight workers, some killed, each done once.

use std::{collections::HashSet, path::PathBuf, time::Duration};

use fencepost_patterns::claims::{Ticket, Worker, postgres, redis::Tickets};
use fencepost_servers::{RedisServer, Reply};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::{
    database::{Database, client},
    fenced::connection,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

const TICKETS: usize = 10_000;
/// Short, so that what a killed worker had comes back while the test runs.
const SPAN: Duration = Duration::from_secs(3);
const AT_ONCE: u32 = 25;

/// Works until no ticket is left.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    url: String,
    log: PathBuf,
}

enum Place {
    Redis(MultiplexedConnection, Tickets),
    Postgres(Client, postgres::Tickets),
}

impl Job {
    pub(crate) async fn work(self) {
        let mut place = Place::at(&self.url).await;
        let worker = Worker::new().unwrap();
        while place.left().await > 0 {
            let taken = place.take(&worker).await;
            if taken.is_empty() {
                tokio::time::sleep(Duration::from_millis(50)).await; // what others have may come back
                continue;
            }
            let done = place.done(&worker, taken).await;
            if !done.is_empty() {
                note(&self.log, &done.join("\n"));
            }
        }
    }
}

impl Place {
    async fn at(url: &str) -> Self {
        if url.starts_with("redis") {
            Self::Redis(connection(url).await, Tickets::called("mails").unwrap())
        } else {
            Self::Postgres(client(url).await, postgres::Tickets::of("mails", "id"))
        }
    }

    async fn left(&mut self) -> u64 {
        match self {
            Self::Redis(redis, tickets) => {
                let (free, out) = tickets.count(redis).await.unwrap();
                free + out
            }
            Self::Postgres(client, _) => {
                let left = client.query_one("SELECT count(*) FROM mails WHERE done_at IS NULL", &[]).await.unwrap();
                u64::try_from(left.get::<_, i64>(0)).unwrap()
            }
        }
    }

    async fn take(&mut self, worker: &Worker) -> Vec<String> {
        match self {
            Self::Redis(redis, tickets) => {
                let taken = tickets.take(redis, worker, AT_ONCE, SPAN).await.unwrap();
                taken.into_iter().map(|ticket| ticket.key).collect()
            }
            Self::Postgres(client, tickets) => {
                let taken = tickets.take::<_, i64>(client, worker, AT_ONCE, SPAN).await.unwrap();
                taken.into_iter().map(|ticket| ticket.key.to_string()).collect()
            }
        }
    }

    async fn done(&mut self, worker: &Worker, tickets: Vec<String>) -> Vec<String> {
        match self {
            Self::Redis(redis, place) => {
                let tickets: Vec<_> = tickets.iter().map(String::as_str).collect();
                place.done(redis, worker, &tickets).await.unwrap()
            }
            Self::Postgres(client, place) => {
                let tickets: Vec<i64> = tickets.iter().map(|ticket| ticket.parse().unwrap()).collect();
                let done = place.done(client, worker, &tickets).await.unwrap();
                done.iter().map(i64::to_string).collect()
            }
        }
    }
}

/// Nobody heard "done" for a ticket that another was told of, and all are done: but for what killed ones could not note, the log has
/// each exactly once.
fn each_ticket_is_done_once(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |_| processes::Job::Claims(Job { url: url.to_owned(), log: log.clone() });
    eight_of_which_two_are_killed(job, 500, || lines(&log).len());
    let noted = lines(&log);
    let once: HashSet<_> = noted.iter().collect();
    assert_eq!(once.len(), noted.len(), "a ticket was done twice");
    assert!((TICKETS - 2 * AT_ONCE as usize..=TICKETS).contains(&noted.len()), "{} were noted", noted.len());
}

#[test]
fn each_of_ten_thousand_tickets_in_redis_is_done_once() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut redis = connection(&server.url()).await;
        let all: Vec<_> = (0..TICKETS).map(|ticket| ticket.to_string()).collect();
        let all: Vec<_> = all.iter().map(String::as_str).collect();
        let tickets = Tickets::called("mails").unwrap();
        for some in all.chunks(1000) {
            assert_eq!(tickets.put(&mut redis, some).await.unwrap(), 1000);
            assert_eq!(tickets.put(&mut redis, some).await.unwrap(), 0, "put twice");
        }
    });
    each_ticket_is_done_once(&server.url());
    assert_eq!(server.command(&["KEYS", "*"]), Reply::List(vec![]), "something is left of them");
}

#[test]
fn each_of_ten_thousand_tickets_in_postgres_is_done_once() {
    let server = database();
    server.sql(&format!("INSERT INTO mails SELECT generate_series(1, {TICKETS})"));
    each_ticket_is_done_once(&server.url());
    let done = server.value("SELECT count(*) FROM mails WHERE done_at IS NOT NULL");
    assert_eq!(done, TICKETS.to_string());
}

fn database() -> Database {
    let server = Database::new();
    server.sql("CREATE TABLE mails (id bigint PRIMARY KEY)");
    for _ in 0..2 {
        server.sql(&postgres::Tickets::of("mails", "id").script());
    }
    server
}

/// Who lets its time pass is not heard any more; who extends it in time keeps it.
#[tokio::test(flavor = "multi_thread")]
async fn tickets_in_redis_come_back_to_another_who_alone_is_heard() {
    let server = RedisServer::start();
    let mut redis = connection(&server.url()).await;
    let tickets = Tickets::called("{x}mails").unwrap();
    let (a, b) = (Worker::new().unwrap(), Worker::new().unwrap());
    let long = Duration::from_secs(600);
    tickets.put(&mut redis, &["one", "two"]).await.unwrap();
    let first = tickets.take(&mut redis, &a, 1, Duration::from_millis(1)).await.unwrap();
    assert_eq!(first, [Ticket { key: "one".to_owned(), tries: 1 }]);
    tokio::time::sleep(Duration::from_millis(20)).await;
    let again = tickets.take(&mut redis, &b, 1, long).await.unwrap();
    assert_eq!(again, [Ticket { key: "one".to_owned(), tries: 2 }], "what came back goes first");
    assert!(tickets.done(&mut redis, &a, &["one"]).await.unwrap().is_empty());
    assert!(tickets.extend(&mut redis, &a, &["one"], long).await.unwrap().is_empty());
    assert!(tickets.give_back(&mut redis, &a, &["one"]).await.unwrap().is_empty());
    assert_eq!(tickets.give_back(&mut redis, &b, &["one"]).await.unwrap(), ["one"]);
    assert_eq!(tickets.take(&mut redis, &a, 5, Duration::from_millis(200)).await.unwrap().len(), 2);
    assert_eq!(tickets.extend(&mut redis, &a, &["one", "two", "none"], long).await.unwrap(), ["one", "two"]);
    tokio::time::sleep(Duration::from_millis(250)).await;
    assert!(tickets.take(&mut redis, &b, 5, long).await.unwrap().is_empty());
    assert_eq!(tickets.done(&mut redis, &a, &["one"]).await.unwrap(), ["one"]);
    assert!(tickets.done(&mut redis, &a, &["one"]).await.unwrap().is_empty());
    assert_eq!(tickets.count(&mut redis).await.unwrap(), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_in_postgres_come_back_to_another_who_alone_is_heard() {
    let server = database();
    server.sql("INSERT INTO mails VALUES (1), (2)");
    let mut client = client(&server.url()).await;
    let tickets = postgres::Tickets::of("mails", "id");
    let (a, b) = (Worker::new().unwrap(), Worker::new().unwrap());
    let long = Duration::from_secs(600);
    let first = tickets.take::<_, i64>(&client, &a, 1, Duration::from_millis(1)).await.unwrap();
    assert_eq!(first, [Ticket { key: 1, tries: 1 }]);
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(tickets.take::<_, i64>(&client, &b, 1, long).await.unwrap(), [Ticket { key: 1, tries: 2 }]);
    assert!(tickets.done(&client, &a, &[1_i64]).await.unwrap().is_empty());
    assert!(tickets.extend(&client, &a, &[1_i64], long).await.unwrap().is_empty());
    assert!(tickets.give_back(&client, &a, &[1_i64]).await.unwrap().is_empty());
    assert_eq!(tickets.give_back(&client, &b, &[1_i64]).await.unwrap(), [1]);
    assert_eq!(tickets.take::<_, i64>(&client, &a, 5, Duration::from_millis(500)).await.unwrap().len(), 2);
    assert_eq!(tickets.extend(&client, &a, &[1_i64, 2, 3], long).await.unwrap().len(), 2);
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(tickets.take::<_, i64>(&client, &b, 5, long).await.unwrap().is_empty());
    // With the work: neither without the other.
    let transaction = client.transaction().await.unwrap();
    assert_eq!(tickets.done(&transaction, &a, &[1_i64]).await.unwrap(), [1]);
    transaction.rollback().await.unwrap();
    assert_eq!(tickets.done(&client, &a, &[1_i64]).await.unwrap(), [1]);
    assert!(tickets.done(&client, &a, &[1_i64]).await.unwrap().is_empty());
    // In the order of their keys, however they lie in the table.
    server.sql("INSERT INTO mails SELECT id FROM generate_series(1, 500) AS id WHERE id > 2 ORDER BY md5(id::text)");
    let many = tickets.take::<_, i64>(&client, &b, 400, long).await.unwrap();
    assert!(many.len() == 400 && many.is_sorted_by_key(|ticket| ticket.key), "{many:?}");
}

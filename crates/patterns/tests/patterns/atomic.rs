//! Atomic changes: what is refused by type, and sums that stay exact while processes are killed.

use std::path::PathBuf;

use fencepost_patterns::{
    atomic::{
        Refusal, postgres,
        redis::{Amounts, Scripted, Values, Watching},
    },
    update::{CompareAndSet, Edit, Update},
};
use fencepost_servers::{RedisServer, Reply};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio_postgres::{Client, Statement};

use crate::{
    database::{Database, client},
    fenced::connection,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

/// What a process does over and over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Moves amounts between accounts, in Redis or PostgreSQL.
    Transfer { url: String, seed: u64, log: PathBuf },
    /// Adds one to two numbers that must stay the same.
    Add { how: How, url: String, log: PathBuf },
    /// Sells for orders of its own until all is sold.
    Sell { url: String, worker: u32, log: PathBuf },
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum How {
    Script,
    Watch,
    Version,
}

const ACCOUNTS: u64 = 5;
const TRANSFERS: u64 = 150;
const ADDITIONS: u64 = 60;

impl Job {
    pub(crate) async fn work(self) {
        match self {
            Job::Transfer { url, mut seed, log } => {
                let mut bank = Bank::open(&url).await;
                for _ in 0..TRANSFERS {
                    let mut drawn = |most: u64| {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        (seed >> 33) % most
                    };
                    let (from, to, amount) = (drawn(ACCOUNTS), drawn(ACCOUNTS), drawn(60) as i64 + 1);
                    match bank.transfer(&account(from), &account(to), amount).await {
                        Ok(()) => note(&log, "moved"),
                        Err(Refusal::Insufficient { has }) => {
                            assert!(has < amount, "{has} would have done for {amount}")
                        }
                        Err(Refusal::SameAccount) => assert_eq!(from, to),
                        Err(other) => panic!("{other}"),
                    }
                }
            }
            Job::Add { how, url, log } => add(how, &url, &log).await,
            Job::Sell { url, worker, log } => {
                let mut redis = connection(&url).await;
                for order in 0.. {
                    let order = format!("{{shop}}:order {worker}-{order}");
                    // Each twice, as after an answer that was lost.
                    let mut amounts = Amounts::on(&mut redis).in_a_cluster();
                    let first = amounts.reserve("{shop}:stock", &order, 3).await.unwrap();
                    let again = amounts.reserve("{shop}:stock", &order, 3).await.unwrap();
                    match first {
                        Ok(_) => assert!(again.is_ok(), "{again:?}"),
                        Err(Refusal::Insufficient { has: 0..=2 }) => return,
                        Err(other) => panic!("{other}"),
                    }
                    note(&log, &order);
                }
            }
        }
    }
}

fn account(number: u64) -> String {
    format!("{{bank}}:{number}")
}

enum Bank {
    Redis(MultiplexedConnection),
    Postgres(Client, postgres::Amounts<Statement>),
}

impl Bank {
    async fn open(url: &str) -> Self {
        if url.starts_with("redis") {
            return Self::Redis(connection(url).await);
        }
        let client = client(url).await;
        let accounts = accounts().prepare(&client).await.unwrap();
        Self::Postgres(client, accounts)
    }

    async fn transfer(&mut self, from: &str, to: &str, amount: i64) -> Result<(), Refusal> {
        match self {
            Self::Redis(redis) => Amounts::on(redis).transfer(from, to, amount).await.unwrap().map(drop),
            Self::Postgres(client, accounts) => {
                let transaction = client.transaction().await.unwrap();
                let moved = accounts.transfer(&transaction, &from, &to, amount).await.unwrap();
                transaction.commit().await.unwrap();
                moved.map(drop)
            }
        }
    }
}

fn accounts() -> postgres::Amounts {
    postgres::Amounts::of("accounts", "name", "balance")
}

/// A database with accounts, and pairs of numbers.
fn database() -> Database {
    let database = Database::new();
    database.sql("CREATE TABLE accounts (name text PRIMARY KEY, balance bigint NOT NULL CHECK (balance >= 0))");
    database.sql("CREATE TABLE pairs (id bigint PRIMARY KEY, body text NOT NULL, version bigint NOT NULL DEFAULT 0)");
    database
}

/// Eight processes move amounts, two are killed; nothing is made and nothing is lost, and nobody is below zero.
fn the_sum_stays(url: &str, balances: impl Fn() -> Vec<i64>) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |worker: u32| {
        let (url, log) = (url.to_owned(), log.clone());
        processes::Job::Atomic(Job::Transfer { url, seed: u64::from(worker) + 1, log })
    };
    eight_of_which_two_are_killed(job, 30, || lines(&log).len());
    let balances = balances();
    assert_eq!(balances.iter().sum::<i64>(), ACCOUNTS as i64 * 100, "{balances:?}");
    assert!(balances.iter().all(|balance| *balance >= 0), "{balances:?}");
    assert!(lines(&log).len() > 100, "hardly anything was moved");
}

#[test]
fn transfers_in_redis_keep_the_sum_while_processes_are_killed() {
    let server = RedisServer::start();
    (0..ACCOUNTS).for_each(|number| drop(server.command(&["SET", &account(number), "100"])));
    the_sum_stays(&server.url(), || (0..ACCOUNTS).map(|number| number_in(&server, &account(number))).collect());
}

#[test]
fn transfers_in_postgres_keep_the_sum_while_processes_are_killed() {
    let server = database();
    for number in 0..ACCOUNTS {
        server.sql(&format!("INSERT INTO accounts VALUES ('{}', 100)", account(number)));
    }
    the_sum_stays(&server.url(), || {
        let rows = server.sql("SELECT balance FROM accounts");
        rows.into_iter().map(|row| row[0].as_ref().unwrap().parse().unwrap()).collect()
    });
}

fn number_in(server: &RedisServer, key: &str) -> i64 {
    match server.command(&["GET", key]) {
        Reply::Text(number) => number.parse().unwrap(),
        other => panic!("{other:?}"),
    }
}

/// One more in both of a pair, whatever the others do to it.
async fn add(how: How, url: &str, log: &std::path::Path) {
    let one_more = |old: Values| {
        let number = |value: &Option<Vec<u8>>| {
            value.as_ref().map_or(0, |text| String::from_utf8_lossy(text).parse::<u64>().unwrap())
        };
        assert_eq!(number(&old[0]), number(&old[1]), "half a change was seen");
        let next = Some((number(&old[0]) + 1).to_string().into_bytes());
        Edit::Write(vec![next.clone(), next])
    };
    let keys = ["{pair}:a", "{pair}:b"];
    for _ in 0..ADDITIONS {
        let written = match how {
            How::Script => {
                let mut redis = connection(url).await;
                let updated = Scripted::on(&mut redis).in_a_cluster().update(&keys, one_more).await.unwrap();
                matches!(updated, Update::Written { .. })
            }
            How::Watch => {
                let mut watching = Watching::open(&redis::Client::open(url).unwrap()).await.unwrap();
                matches!(watching.update(&keys, one_more).await.unwrap(), Update::Written { .. })
            }
            How::Version => {
                let client = client(url).await;
                let pairs = postgres::Versioned::of("pairs", "id", "body", "version");
                let next = |old: Option<String>| {
                    Edit::Write((old.map_or(0, |old| old.parse::<u64>().unwrap()) + 1).to_string())
                };
                matches!(pairs.update(&client, &7_i64, next).await.unwrap(), Update::Written { .. })
            }
        };
        assert!(written);
        note(log, "added");
    }
}

/// What was acknowledged was added once; of what was not, at most one by each that was killed.
fn nothing_is_added_twice(how: How, url: &str, sum: impl Fn() -> u64) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |_| processes::Job::Atomic(Job::Add { how, url: url.to_owned(), log: log.clone() });
    eight_of_which_two_are_killed(job, 20, || lines(&log).len());
    let (sum, noted) = (sum(), lines(&log).len() as u64);
    assert!((noted..=noted + 2).contains(&sum), "{sum} for {noted} acknowledged");
    assert!(noted >= 6 * ADDITIONS);
}

#[test]
fn no_compare_and_set_by_script_is_lost_while_processes_are_killed() {
    let server = RedisServer::start();
    nothing_is_added_twice(How::Script, &server.url(), || {
        let both = [number_in(&server, "{pair}:a"), number_in(&server, "{pair}:b")];
        assert_eq!(both[0], both[1]);
        both[0] as u64
    });
}

#[test]
fn no_compare_and_set_by_watch_is_lost_while_processes_are_killed() {
    let server = RedisServer::start();
    nothing_is_added_twice(How::Watch, &server.url(), || {
        let both = [number_in(&server, "{pair}:a"), number_in(&server, "{pair}:b")];
        assert_eq!(both[0], both[1]);
        both[0] as u64
    });
}

#[test]
fn no_compare_and_set_by_version_is_lost_while_processes_are_killed() {
    let server = database();
    server.sql("INSERT INTO pairs VALUES (7, '0')");
    nothing_is_added_twice(How::Version, &server.url(), || {
        let row = server.sql("SELECT body, version FROM pairs WHERE id = 7").remove(0);
        assert_eq!(row[0], row[1], "the version counts the changes");
        row[0].as_ref().unwrap().parse().unwrap()
    });
}

#[test]
fn no_more_is_sold_than_there_is_and_each_order_has_its_share() {
    let server = RedisServer::start();
    server.command(&["SET", "{shop}:stock", "1000"]);
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |worker| processes::Job::Atomic(Job::Sell { url: server.url(), worker, log: log.clone() });
    eight_of_which_two_are_killed(job, 20, || lines(&log).len());
    let Reply::List(orders) = server.command(&["KEYS", "{shop}:order *"]) else { panic!("no list of keys") };
    assert_eq!((number_in(&server, "{shop}:stock"), orders.len()), (1, 333));
    assert!(lines(&log).len() <= 333);
}

fn missing<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::Missing { what: what.into() })
}

fn no_number<T>(what: &str) -> Result<T, Refusal> {
    Err(Refusal::NotANumber { what: what.into() })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_refuses_is_told_by_type_and_changes_nothing() {
    let server = RedisServer::start();
    let most = i64::MAX.to_string();
    for (key, value) in
        [("a", "5"), ("full", most.as_str()), ("text", "five"), ("below", "-3"), ("long", "99999999999999999999")]
    {
        server.command(&["SET", key, value]);
    }
    server.command(&["RPUSH", "list", "1"]);
    let mut redis = connection(&server.url()).await;
    let mut amounts = Amounts::on(&mut redis);
    assert_eq!(amounts.take("a", 3).await.unwrap(), Ok(2));
    assert_eq!(amounts.take("a", 3).await.unwrap(), Err(Refusal::Insufficient { has: 2 }));
    assert_eq!(amounts.take("a", i64::MAX).await.unwrap(), Err(Refusal::Insufficient { has: 2 }));
    assert_eq!(amounts.take("below", i64::MAX).await.unwrap(), Err(Refusal::Insufficient { has: -3 }));
    assert_eq!(amounts.take("full", i64::MAX - 1).await.unwrap(), Ok(1), "beyond 53 bits");
    server.command(&["SET", "full", &most]);
    assert_eq!(amounts.take("none", 3).await.unwrap(), missing("none"));
    for key in ["text", "list", "long"] {
        assert_eq!(amounts.take(key, 3).await.unwrap(), no_number(key));
        assert_eq!(amounts.transfer("a", key, 1).await.unwrap(), no_number(key));
        assert_eq!(amounts.transfer(key, "a", 1).await.unwrap(), no_number(key));
    }
    for amount in [0, -1, i64::MIN] {
        assert_eq!(amounts.take("a", amount).await.unwrap(), Err(Refusal::NotPositive { amount }));
        assert_eq!(amounts.transfer("a", "full", amount).await.unwrap(), Err(Refusal::NotPositive { amount }));
    }
    assert_eq!(amounts.transfer("a", "a", 1).await.unwrap(), Err(Refusal::SameAccount));
    assert_eq!(amounts.transfer("a", "none", 1).await.unwrap(), missing("none"));
    assert_eq!(amounts.transfer("none", "a", 1).await.unwrap(), missing("none"));
    assert_eq!(amounts.transfer("a", "full", 1).await.unwrap(), Err(Refusal::Overflow { has: i64::MAX }));
    assert_eq!(amounts.transfer("a", "below", 3).await.unwrap(), Err(Refusal::Insufficient { has: 2 }));
    assert_eq!(amounts.transfer("a", "below", 2).await.unwrap(), Ok((0, -1)));

    assert_eq!(amounts.reserve("full", "order", 7).await.unwrap(), Ok(i64::MAX - 7));
    let other = Refusal::OtherOrder { amount: 7, state: "reserved".into() };
    assert_eq!(amounts.reserve("full", "order", 8).await.unwrap(), Err(other));
    assert_eq!(amounts.confirm("full", "none").await.unwrap(), missing("none"));
    for _ in 0..2 {
        assert_eq!(amounts.cancel("full", "order").await.unwrap(), Ok(()));
        assert_eq!(number_in(&server, "full"), i64::MAX, "given back once");
    }
    let cancelled = Refusal::OtherOrder { amount: 7, state: "cancelled".into() };
    assert_eq!(amounts.confirm("full", "order").await.unwrap(), Err(cancelled.clone()));
    assert_eq!(amounts.reserve("full", "order", 7).await.unwrap(), Err(cancelled));

    // SET would write over it.
    let wrong = Refusal::WrongType { what: "list".into(), holds: "list".into() };
    let list = Scripted::on(&mut redis).key("list").update(|_| panic!("it was shown")).await.unwrap();
    assert_eq!(list.written(), Err(wrong.clone()));
    let mut watching = Watching::open(&redis::Client::open(server.url()).unwrap()).await.unwrap();
    assert_eq!(watching.update(&["a", "list"], |_| panic!("it was shown")).await.unwrap().written(), Err(wrong));
    assert_eq!(server.command(&["LLEN", "list"]), Reply::Number(1));

    let mut amounts = Amounts::on(&mut redis).in_a_cluster();
    let apart = amounts.transfer("a", "b", 1).await.unwrap().unwrap_err();
    assert!(apart.to_string().contains("give both the same hash tag, such as {shop}:a"), "{apart}");
    let apart = Scripted::on(&mut redis).in_a_cluster().update(&["a", "b"], |_| panic!("it was read")).await.unwrap();
    assert!(matches!(apart, Update::Refused(Refusal::OtherSlot { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_postgres_refuses_is_told_by_type_and_changes_nothing() {
    let server = database();
    server.sql(&format!("INSERT INTO accounts VALUES ('a', 5), ('full', {})", i64::MAX));
    let mut client = client(&server.url()).await;
    let accounts = accounts();
    assert_eq!(accounts.take(&client, &"a", 3).await.unwrap(), Ok(2));
    assert_eq!(accounts.take(&client, &"a", 3).await.unwrap(), Err(Refusal::Insufficient { has: 2 }));
    assert_eq!(accounts.take(&client, &"a", 0).await.unwrap(), Err(Refusal::NotPositive { amount: 0 }));
    assert!(matches!(accounts.take(&client, &"none", 1).await.unwrap(), Err(Refusal::Missing { .. })));
    let transaction = client.transaction().await.unwrap();
    let transfer = async |from, to, amount| accounts.transfer(&transaction, &from, &to, amount).await.unwrap();
    assert_eq!(transfer("a", "full", 1).await, Err(Refusal::Overflow { has: i64::MAX }));
    assert_eq!(transfer("a", "full", 3).await, Err(Refusal::Insufficient { has: 2 }));
    assert_eq!(transfer("a", "full", -3).await, Err(Refusal::NotPositive { amount: -3 }));
    assert_eq!(transfer("a", "a", 1).await, Err(Refusal::SameAccount));
    assert!(matches!(transfer("a", "none", 1).await, Err(Refusal::Missing { .. })));
    assert!(matches!(transfer("none", "a", 1).await, Err(Refusal::Missing { .. })));
    assert_eq!(transfer("full", "a", 1).await, Ok((i64::MAX - 1, 3)));
    transaction.rollback().await.unwrap();
    assert_eq!(server.value("SELECT balance FROM accounts WHERE name = 'a'"), "2");
    // What keeps every change from happening looks as if others were always faster.
    server.sql("CREATE FUNCTION no() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$");
    server.sql("CREATE TRIGGER no BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION no()");
    assert!(matches!(accounts.take(&client, &"a", 1).await.unwrap(), Err(Refusal::Contended { conflicts: 1.. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_update_counts_its_conflicts_leaves_and_removes() {
    let server = RedisServer::start();
    let mut redis = connection(&server.url()).await;
    let mut watching = Watching::open(&redis::Client::open(server.url()).unwrap()).await.unwrap();
    let value = |text: &str| vec![Some(text.as_bytes().to_vec())];
    for round in 0..2 {
        // Twice another is faster.
        let mut others = 2;
        let edit = |old: Values| {
            if others > 0 {
                server.command(&["SET", "x", &format!("another's {round} {others}")]);
                others -= 1;
            }
            assert!(old[0].is_some() || round == 0);
            Edit::Write(value("ours"))
        };
        let updated = match round {
            0 => Scripted::on(&mut redis).update(&["x"], edit).await.unwrap(),
            _ => watching.update(&["x"], edit).await.unwrap(),
        };
        assert_eq!(updated, Update::Written { value: value("ours"), conflicts: 2 });
        assert_eq!(server.command(&["GET", "x"]), Reply::Text("ours".into()));
    }
    server.command(&["EXPIRE", "x", "1000"]);
    let left = Scripted::on(&mut redis).update(&["x"], |_| Edit::Leave).await.unwrap();
    assert_eq!((left, watching.update(&["x"], |_| Edit::Leave).await.unwrap()), (Update::Left, Update::Left));
    watching.update(&["x"], |_| Edit::Write(value("again"))).await.unwrap();
    assert!(matches!(server.command(&["TTL", "x"]), Reply::Number(1..)), "its life goes on as it was");
    for _ in 0..2 {
        watching.update(&["x"], |_| Edit::Write(vec![None])).await.unwrap();
        assert_eq!(server.command(&["GET", "x"]), Reply::Nil);
        let none = Scripted::on(&mut redis).update(&["x"], Edit::Write).await.unwrap();
        assert_eq!(none, Update::Written { value: vec![None], conflicts: 0 });
    }
    // Another is faster each time.
    let mut tries = 0;
    let mut beaten = |old: Option<Vec<u8>>| {
        tries += 1;
        server.command(&["SET", "x", &tries.to_string()]);
        Edit::Write(old.unwrap_or_default())
    };
    let scripted = Scripted::on(&mut redis).key("x").update_within(3, &mut beaten).await.unwrap();
    assert_eq!(scripted, Update::Contended { conflicts: 3 });
    let watched = watching.key("x").update_within(1, &mut beaten).await.unwrap();
    assert_eq!(watched.written(), Err(Refusal::Contended { conflicts: 1 }));
    assert_eq!((tries, number_in(&server, "x")), (4, 4), "one try for each conflict, and nothing of ours is there");
}

//! One way to update a value: the same is played on every store.

use std::{collections::BTreeSet, fmt::Debug, path::PathBuf};

use fencepost::Locks;
use fencepost_patterns::{
    atomic::{
        Refusal, postgres,
        redis::{Scripted, Watching},
    },
    update::{CompareAndSet, Edit, Set, Update},
};
use fencepost_servers::{EtcdCluster, RedisServer, ZooKeeperServer};
use serde::{Deserialize, Serialize};

use crate::{
    database::{Database, client},
    fenced::connection,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

/// Two users of one value that is not there yet. `remembers` says whether a value that was changed and changed back counts as changed.
async fn is_updated<V>(
    mut one: impl CompareAndSet<Value = V, Error: Debug>,
    mut other: impl CompareAndSet<Value = V, Error: Debug>,
    remembers: bool,
) where
    V: From<Number> + Into<Number> + Clone + Debug + PartialEq + Send + Sync,
{
    let value = |number: i64| V::from(Number(number));
    let read = |old: Option<V>| old.map(|old| old.into().0);

    // Made, by one of two who both saw that it was not there.
    let seen = one.read().await.unwrap().unwrap();
    assert!(seen.value.is_none());
    let made = other.update(|old| Edit::Write(value(read(old).unwrap_or(5)))).await.unwrap();
    assert_eq!(made, Update::Written { value: value(5), conflicts: 0 });
    assert!(matches!(one.set(seen.seen, Some(&value(7))).await.unwrap(), Set::Conflict(_)), "it was made by another");

    // Changed, unless another was faster.
    let seen = one.read().await.unwrap().unwrap();
    assert_eq!(read(seen.value), Some(5));
    other.update(|_| Edit::Write(value(6))).await.unwrap();
    assert!(matches!(one.set(seen.seen, Some(&value(7))).await.unwrap(), Set::Conflict(_)), "another was faster");
    let mut shown = Vec::new();
    let taken = one.update(|old| {
        shown.push(read(old));
        Edit::Write(value(2))
    });
    assert_eq!(taken.await.unwrap().written(), Ok(Some((value(2), 0))));
    assert_eq!(shown, [Some(6)]);

    // Refused and left.
    let short = Refusal::Insufficient { has: 2 };
    let refused = one.update(|old| Edit::Refuse(Refusal::Insufficient { has: read(old).unwrap() })).await.unwrap();
    assert_eq!(refused, Update::Refused(short.clone()));
    assert_eq!(refused.written(), Err(short));
    assert_eq!(one.update(|_| Edit::Leave).await.unwrap(), Update::Left);
    assert_eq!(read(other.read().await.unwrap().unwrap().value), Some(2), "it is as it was");

    // Removed, and made again as it was.
    let mut anew = async || {
        for _ in 0..2 {
            assert_eq!(other.update(|_| Edit::Remove).await.unwrap(), Update::Removed { conflicts: 0 });
        }
        other.update(|_| Edit::Write(value(2))).await.unwrap();
    };
    anew().await;
    let seen = one.read().await.unwrap().unwrap();
    anew().await;
    let late = one.set(seen.seen, Some(&value(2))).await.unwrap();
    assert_eq!(matches!(late, Set::Conflict(_)), remembers);

    // Both at once.
    let add = |old: Option<V>| Edit::Write(value(read(old).unwrap() + 1));
    let both = tokio::join!(adding(&mut one, add), adding(&mut other, add));
    assert_eq!(read(one.read().await.unwrap().unwrap().value), Some(2 + 2 * i64::from(ADDITIONS)), "{both:?}");
}

const ADDITIONS: u32 = 25;

/// Answers the conflicts.
async fn adding<P: CompareAndSet<Error: Debug>>(
    place: &mut P,
    mut add: impl FnMut(Option<P::Value>) -> Edit<P::Value> + Send,
) -> u32 {
    let mut all = 0;
    for _ in 0..ADDITIONS {
        match place.update(&mut add).await.unwrap() {
            Update::Written { conflicts, .. } => all += conflicts,
            Update::Removed { .. } | Update::Left | Update::Refused(_) | Update::Contended { .. } => panic!("left"),
        }
    }
    all
}

/// A number as the stores keep it.
struct Number(i64);

impl From<Number> for i64 {
    fn from(number: Number) -> Self {
        number.0
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Self {
        Number(number)
    }
}

impl From<Number> for Vec<u8> {
    fn from(number: Number) -> Self {
        number.0.to_string().into_bytes()
    }
}

impl From<Vec<u8>> for Number {
    fn from(text: Vec<u8>) -> Self {
        Number(String::from_utf8(text).unwrap().parse().unwrap())
    }
}

/// A cell, by two clients.
async fn a_cell_is_updated(url: &str) {
    let (one, other) = (Locks::open(url).await.unwrap(), Locks::open(url).await.unwrap());
    is_updated(one.cell::<i64>("number").unwrap(), other.cell::<i64>("number").unwrap(), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_redis_is_updated_by_script_by_watch_and_as_a_cell() {
    let server = RedisServer::start();
    let (mut one, mut other) = (connection(&server.url()).await, connection(&server.url()).await);
    is_updated(Scripted::on(&mut one).key("script"), Scripted::on(&mut other).key("script"), false).await;
    let client = redis::Client::open(server.url()).unwrap();
    let (mut one, mut other) = (Watching::open(&client).await.unwrap(), Watching::open(&client).await.unwrap());
    is_updated(one.key("watch"), other.key("watch"), true).await;
    a_cell_is_updated(&server.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_in_postgres_is_updated_by_version_and_as_a_cell() {
    let database = Database::of_locks().await;
    database.sql("CREATE TABLE numbers (id bigint PRIMARY KEY, number bigint NOT NULL, version bigint NOT NULL)");
    let numbers = postgres::Versioned::of("numbers", "id", "number", "version");
    let (one, other) = (client(&database.url()).await, client(&database.url()).await);
    is_updated::<i64>(numbers.row(&one, &7_i64), numbers.row(&other, &7_i64), true).await;
    a_cell_is_updated(&database.url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_in_a_directory_and_in_memory_is_updated() {
    let directory = tempfile::tempdir().unwrap();
    a_cell_is_updated(&format!("file:{}", directory.path().display())).await;
    a_cell_is_updated("memory:updates").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_in_etcd_is_updated() {
    a_cell_is_updated(&EtcdCluster::start(1).url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cell_in_zookeeper_is_updated() {
    a_cell_is_updated(&ZooKeeperServer::shared().url()).await;
}

/// A process that counts in a cell.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    url: String,
    log: PathBuf,
}

impl Job {
    pub(crate) async fn work(self) {
        let locks = Locks::open(&self.url).await.unwrap();
        let count = locks.cell::<usize>("count").unwrap();
        for _ in 0..ADDITIONS {
            let updated = count.update(|old| Edit::Write(old.unwrap_or(0) + 1)).await.unwrap();
            let Update::Written { value, .. } = updated else { panic!("{updated:?}") };
            note(&self.log, &value.to_string());
        }
    }
}

/// Each was told a count of its own, and of what nobody was told there is at most one by each that was killed.
fn nobody_is_counted_twice_or_left_out(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |_| processes::Job::Updates(Job { url: url.to_owned(), log: log.clone() });
    eight_of_which_two_are_killed(job, 15, || lines(&log).len());
    let told: Vec<usize> = lines(&log).iter().map(|count| count.parse().unwrap()).collect();
    assert!(told.len() >= 6 * ADDITIONS as usize);
    assert_eq!(told.iter().collect::<BTreeSet<_>>().len(), told.len(), "two were told the same count");
    let count = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let locks = Locks::open(url).await.unwrap();
        locks.cell::<usize>("count").unwrap().read().await.unwrap().unwrap()
    });
    assert!((told.len()..=told.len() + 2).contains(&count), "{count} for {} that were told", told.len());
    assert!(told.iter().all(|told| *told <= count), "a count was taken back");
}

#[test]
fn a_cell_in_etcd_counts_everybody_once_while_processes_are_killed() {
    nobody_is_counted_twice_or_left_out(&EtcdCluster::start(1).url());
}

#[test]
fn a_cell_in_zookeeper_counts_everybody_once_while_processes_are_killed() {
    nobody_is_counted_twice_or_left_out(&ZooKeeperServer::shared().url());
}

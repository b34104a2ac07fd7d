//! The examples of a single writer, by eight processes of which two are killed.

use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use fencepost::{LockName, Locks};
use fencepost_patterns::fenced::FencedFile;
use fencepost_servers::{EtcdCluster, RedisServer};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use self::example::{ACCOUNT, Log, order, own, take};
use crate::{
    database::Database,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

#[allow(dead_code)] // its own main
#[path = "../../examples/single_writer.rs"]
mod example;

/// What a process does over and over.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Takes from an account whose balance is what its events come to, until there is too little.
    Withdraw { url: String, worker: i64, log: PathBuf },
    /// Owns an account for a while, over and over, until enough was added to it.
    Own { locks: String, account: PathBuf, log: PathBuf },
}

const DEPOSIT: i64 = 600;
const ORDERS: usize = 240;

impl Job {
    pub(crate) async fn work(self) {
        match self {
            Job::Withdraw { url, worker, log } => {
                let locks = Locks::open(&url).await.unwrap();
                let mut events = Log::of("account", &locks);
                for number in 0.. {
                    let (amount, name) = (worker % 3 + 4, format!("{worker}-{number}"));
                    let decided =
                        events.decide(|events| (balance(events) >= amount).then(|| format!("-{amount} {name}")));
                    if !decided.await.unwrap().appended {
                        return;
                    }
                    note(&log, &name);
                }
            }
            Job::Own { locks, account, log } => {
                let locks = Locks::open(&locks).await.unwrap().fenced().unwrap();
                while lines(&log).len() < ORDERS {
                    let (orders, received) = mpsc::channel(1);
                    let owner = tokio::spawn(own(take(&locks).await.unwrap(), FencedFile::at(&account), received));
                    for _ in 0..10 {
                        // An owner that was robbed answers that its write was refused, and is gone then.
                        match order(&orders, 1).await {
                            Ok(Ok(_)) => note(&log, "added"),
                            Ok(Err(_)) | Err(_) => break,
                        }
                    }
                    drop(orders);
                    let _ = owner.await.unwrap();
                }
            }
        }
    }
}

/// What the events come to.
fn balance(events: &[String]) -> i64 {
    DEPOSIT + events.iter().map(|event| event.split(' ').next().unwrap().parse::<i64>().unwrap()).sum::<i64>()
}

/// Everybody decides on what is there at that time: never below zero, and nothing is appended twice or lost.
fn each_decision_is_on_what_is_there(url: &str) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |worker: u32| {
        let (url, log) = (url.to_owned(), log.clone());
        processes::Job::SingleWriter(Job::Withdraw { url, worker: worker.into(), log })
    };
    eight_of_which_two_are_killed(job, 15, || lines(&log).len());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let events = runtime.block_on(async {
        let locks = Locks::open(url).await.unwrap();
        Log::of("account", &locks).read().await.unwrap().to_vec()
    });
    let left = balance(&events);
    assert!((0..4).contains(&left), "{left} is left: somebody decided on what was no longer so");
    let names: Vec<_> = events.iter().map(|event| event.split(' ').nth(1).unwrap()).collect();
    let noted = lines(&log);
    assert!(noted.iter().all(|name| names.iter().filter(|there| *there == name).count() == 1), "lost, or twice");
    assert!((noted.len()..=noted.len() + 2).contains(&names.len()), "{} for {} noted", names.len(), noted.len());
}

#[test]
fn events_in_redis_are_appended_by_who_has_read_all_before_them() {
    let server = RedisServer::start();
    each_decision_is_on_what_is_there(&server.url());
}

#[test]
fn events_in_a_directory_are_appended_by_who_has_read_all_before_them() {
    let directory = tempfile::tempdir().unwrap();
    each_decision_is_on_what_is_there(&locks_of(directory.path()));
}

/// Also when the test fails, whose scope would wait for ever else.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn locks_of(directory: &Path) -> String {
    format!("file:{}/locks", directory.display())
}

/// Owners are killed and robbed of their lease all the time; what was answered is in the account, and nothing else but at most one
/// order of each that was killed.
fn an_account_has_what_its_owners_have_answered(locks: &str) {
    let directory = tempfile::tempdir().unwrap();
    let (account, log) = (directory.path().join("alice"), directory.path().join("log"));
    let job = |_| {
        let (locks, account, log) = (locks.to_owned(), account.clone(), log.clone());
        processes::Job::SingleWriter(Job::Own { locks, account, log })
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let runtime = tokio::runtime::Runtime::new().unwrap();
            let locks = runtime.block_on(Locks::open(locks)).unwrap();
            let name = LockName::new(ACCOUNT).unwrap();
            while !over.load(Ordering::Relaxed) {
                runtime.block_on(locks.store().force(&name, None)).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let _over = Over(&over);
        eight_of_which_two_are_killed(job, 30, || lines(&log).len());
    });
    let balance: usize = std::fs::read_to_string(&account).unwrap().parse().unwrap();
    let answered = lines(&log).len();
    assert!((answered..=answered + 2).contains(&balance), "{balance} for {answered} that were answered");
    assert!(answered >= ORDERS);
}

#[test]
fn an_account_has_what_its_owners_have_answered_while_they_are_killed_and_robbed() {
    let directory = tempfile::tempdir().unwrap();
    an_account_has_what_its_owners_have_answered(&locks_of(directory.path()));
}

#[test]
fn an_account_under_leases_of_etcd_has_what_its_owners_have_answered() {
    an_account_has_what_its_owners_have_answered(&EtcdCluster::start(1).url());
}

#[test]
fn an_account_under_leases_of_postgres_has_what_its_owners_have_answered() {
    let database = tokio::runtime::Runtime::new().unwrap().block_on(Database::of_locks());
    an_account_has_what_its_owners_have_answered(&database.url());
}

//! Rates: what eight processes get through together, and that no edge lets a second burst through.

use std::{path::PathBuf, time::Duration};

use fencepost::clock::{BootClock, Clock};
use fencepost_patterns::rate::{self, Decision, Rate};
use fencepost_servers::RedisServer;
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::{
    database::{Database, client},
    fenced::connection,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

/// Asks for a while, as soon as it is told that it may get through.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    place: Where,
    log: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Where {
    Redis(String),
    Postgres(String),
    File(PathBuf),
}

enum Limiter {
    Redis(MultiplexedConnection),
    Postgres(Client),
    File(rate::file::Rates),
}

impl Limiter {
    async fn at(place: &Where) -> Self {
        match place {
            Where::Redis(url) => Self::Redis(connection(url).await),
            Where::Postgres(url) => Self::Postgres(client(url).await),
            Where::File(directory) => Self::File(rate::file::Rates::open(directory).unwrap()),
        }
    }

    async fn ask(&mut self, key: &str, rate: Rate, count: u32) -> Decision {
        match self {
            Self::Redis(redis) => rate::redis::ask(redis, key, rate, count).await.unwrap(),
            Self::Postgres(client) => rate::postgres::Rates::of("rates").ask(client, key, rate, count).await.unwrap(),
            Self::File(rates) => rates.ask(key, rate, count).unwrap(),
        }
    }
}

/// Twenty in a second, five of them at once.
fn twenty() -> Rate {
    Rate::new(20, Duration::from_secs(1), 5).unwrap()
}

impl Job {
    pub(crate) async fn work(self) {
        let mut limiter = Limiter::at(&self.place).await;
        let until = BootClock.now().after(Duration::from_secs(3));
        while BootClock.now() < until {
            let before = BootClock.now();
            match limiter.ask("shared", twenty(), 1).await {
                Decision::Through { .. } => {
                    note(&self.log, &format!("{} {}", before.as_nanos(), BootClock.now().as_nanos()));
                }
                // All come back at the same moment, in which one gets through.
                Decision::Denied { retry_in } => tokio::time::sleep(retry_in).await,
            }
        }
    }
}

/// In any stretch of time no more get through than the burst and what comes evenly in it. Two that were killed may have got through
/// unnoted.
fn no_more_get_through(place: Where) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |_| processes::Job::Rates(Job { place: place.clone(), log: log.clone() });
    eight_of_which_two_are_killed(job, 8, || lines(&log).len());
    // Each was let through at some moment between the two that are noted.
    let through = lines(&log).into_iter().map(|line| {
        let (before, after) = line.split_once(' ').unwrap();
        (before.parse().unwrap(), after.parse().unwrap())
    });
    let through: Vec<(u64, u64)> = through.collect();
    for (began, _) in &through {
        for (_, ended) in through.iter().filter(|(_, ended)| ended > began) {
            let inside = through.iter().filter(|(before, after)| before >= began && after <= ended).count();
            let evenly = (ended - began) / twenty_apart();
            assert!(inside <= 5 + evenly as usize + 1, "{inside} in {} ns", ended - began);
        }
    }
    assert!(through.len() >= 20, "only {} got through in three seconds", through.len());
}

fn twenty_apart() -> u64 {
    Duration::from_millis(50).as_nanos() as u64
}

async fn decides_as_it_says(place: &Where) {
    let mut limiter = Limiter::at(place).await;
    let slow = Rate::new(3, Duration::from_secs(3 * 3600), 3).unwrap();
    assert_eq!(limiter.ask("a", slow, 4).await, Decision::Denied { retry_in: Duration::MAX });
    for left in [2, 1, 0] {
        assert_eq!(limiter.ask("a", slow, 1).await, Decision::Through { left });
    }
    let Decision::Denied { retry_in } = limiter.ask("a", slow, 1).await else { panic!("a fourth got through") };
    assert!(retry_in > Duration::from_secs(3500) && retry_in <= Duration::from_secs(3600), "{retry_in:?}");
    let Decision::Denied { retry_in } = limiter.ask("a", slow, 2).await else { panic!("two got through") };
    assert!(retry_in > Duration::from_secs(7100) && retry_in <= Duration::from_secs(7200), "{retry_in:?}");
    assert_eq!(limiter.ask("b", slow, 2).await, Decision::Through { left: 1 }, "another key");
    assert!(matches!(limiter.ask("b", slow, 2).await, Decision::Denied { .. }), "all or none");
    assert_eq!(limiter.ask("b", slow, 1).await, Decision::Through { left: 0 }, "what was denied was not counted");
    // No edge: after a burst it goes on evenly.
    let quick = Rate::new(10, Duration::from_secs(1), 2).unwrap();
    assert_eq!(limiter.ask("c", quick, 2).await, Decision::Through { left: 0 });
    let Decision::Denied { retry_in } = limiter.ask("c", quick, 1).await else { panic!("a second burst") };
    tokio::time::sleep(retry_in + Duration::from_millis(5)).await;
    assert!(matches!(limiter.ask("c", quick, 1).await, Decision::Through { .. }), "it said when it would");
}

fn put_to_the_test(place: Where) {
    tokio::runtime::Runtime::new().unwrap().block_on(decides_as_it_says(&place));
    no_more_get_through(place);
}

#[test]
fn a_rate_in_redis_lets_no_more_through() {
    let server = RedisServer::start();
    put_to_the_test(Where::Redis(server.url()));
}

#[test]
fn a_rate_in_postgres_lets_no_more_through() {
    let server = Database::new();
    for _ in 0..2 {
        server.sql(&rate::postgres::Rates::of("rates").script());
    }
    put_to_the_test(Where::Postgres(server.url()));
}

#[test]
fn a_rate_in_a_directory_lets_no_more_through() {
    let directory = tempfile::tempdir().unwrap();
    put_to_the_test(Where::File(directory.path().join("rates")));
}

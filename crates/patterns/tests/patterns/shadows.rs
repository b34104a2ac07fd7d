//! Keys that are built beside and swapped in: what readers see while builders publish, give up and are killed.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use fencepost_patterns::atomic::redis::{SHADOW_LASTS, Shadow};
use fencepost_servers::{RedisServer, Reply, WallClock};
use redis::aio::MultiplexedConnection;
use serde::{Deserialize, Serialize};

use crate::{
    fenced::connection,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

const KEY: &str = "prices";
const PARTS: usize = 10;
const ROUNDS: usize = 60;

/// Builds over and over, reads what is in place meanwhile, and gives up each third one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    url: String,
    worker: u32,
    log: PathBuf,
}

impl Job {
    pub(crate) async fn work(self) {
        let mut redis = connection(&self.url).await;
        for round in 0..ROUNDS {
            let shadow = Shadow::of(KEY).unwrap();
            let content = format!("{}-{round}", self.worker);
            for part in 0..PARTS {
                write_part(&mut redis, &shadow, part, &content).await;
                in_place(&mut redis).await;
            }
            if round % 3 == 0 {
                note(&self.log, &format!("abandoned {}", shadow.key()));
            } else {
                assert!(shadow.publish(&mut redis).await.unwrap());
                note(&self.log, &format!("published {content}"));
            }
        }
    }
}

async fn write_part(redis: &mut MultiplexedConnection, shadow: &Shadow, part: usize, content: &str) {
    let filled = shadow.write(redis, |pipeline, key| {
        pipeline.hset(key, part, content);
    });
    filled.await.unwrap();
}

/// What a reader sees: all parts, of one builder.
async fn in_place(redis: &mut MultiplexedConnection) -> String {
    let parts: Vec<(usize, String)> = redis::cmd("HGETALL").arg(KEY).query_async(redis).await.unwrap();
    assert_eq!(parts.len(), PARTS, "half of it was seen: {parts:?}");
    assert!(parts.iter().all(|(_, content)| *content == parts[0].1), "two were mixed: {parts:?}");
    parts[0].1.clone()
}

/// What follows this word in the log.
fn noted(log: &Path, word: &str) -> BTreeSet<String> {
    lines(log).iter().filter_map(|line| Some(line.strip_prefix(word)?.trim().to_owned())).collect()
}

/// The server counts how often a key was put in its place: once for each publication that was acknowledged, and at most once more for
/// each builder that was killed. What was given up, and what the killed have left, goes when its time is over.
#[test]
fn all_is_swapped_or_nothing_and_what_was_abandoned_goes_while_builders_are_killed() {
    let clock = Arc::new(WallClock::new().unwrap());
    let server = RedisServer::start_on(&clock);
    for part in 0..PARTS {
        server.command(&["HSET", KEY, &part.to_string(), "at first"]);
    }
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |worker| processes::Job::Shadows(Job { url: server.url(), worker, log: log.clone() });
    eight_of_which_two_are_killed(job, 30, || lines(&log).len());

    let (published, abandoned) = (noted(&log, "published"), noted(&log, "abandoned"));
    assert_eq!(published.len() + abandoned.len(), lines(&log).len(), "each once");
    assert!(published.len() >= 6 * ROUNDS * 2 / 3);
    let swaps = swaps(&server);
    assert!((published.len()..=published.len() + 2).contains(&swaps), "{swaps} for {}", published.len());

    let left = shadows(&server);
    assert!(abandoned.is_subset(&left), "gone too early: {:?}", abandoned.difference(&left));
    assert!(left.len() <= abandoned.len() + 2, "{} are left of {}", left.len(), abandoned.len());
    clock.stand_apart(SHADOW_LASTS.as_secs() as i64 + 1).unwrap();
    assert_eq!(shadows(&server).len(), 0, "what was abandoned stays");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async { in_place(&mut connection(&server.url()).await).await });
}

fn shadows(server: &RedisServer) -> BTreeSet<String> {
    let Reply::List(keys) = server.command(&["KEYS", "*shadow*"]) else { panic!("no list of keys") };
    let text = |key| match key {
        Reply::Text(key) => key,
        other => panic!("{other:?}"),
    };
    keys.into_iter().map(text).collect()
}

/// How often the server has renamed a key.
fn swaps(server: &RedisServer) -> usize {
    let Reply::Text(text) = server.command(&["INFO", "commandstats"]) else { panic!("no statistics") };
    let renamed = text.lines().find_map(|line| line.strip_prefix("cmdstat_rename:calls=")).unwrap();
    renamed.split(',').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_shadowed_key_see_all_of_one_or_all_of_the_other() {
    let server = RedisServer::start();
    let mut redis = connection(&server.url()).await;
    let publish = async |redis: &mut MultiplexedConnection, round: u32| {
        let shadow = Shadow::of("prices").unwrap();
        for part in 0..10 {
            shadow
                .write(redis, |pipeline, key| {
                    pipeline.hset(key, part, round);
                })
                .await
                .unwrap();
        }
        assert!(shadow.publish(redis).await.unwrap());
        assert!(!shadow.publish(redis).await.unwrap(), "it is in its place");
    };
    publish(&mut redis, 0).await;
    let reading = tokio::spawn({
        let mut redis = connection(&server.url()).await;
        async move {
            let mut seen = 0;
            while seen < 50 {
                let parts: Vec<(u32, u32)> = redis::cmd("HGETALL").arg("prices").query_async(&mut redis).await.unwrap();
                assert_eq!(parts.len(), 10, "half of it was seen");
                assert!(parts.iter().all(|(_, round)| *round == parts[0].1 && *round >= seen), "{parts:?}");
                seen = parts[0].1;
            }
        }
    });
    for round in 1..=50 {
        publish(&mut redis, round).await;
    }
    tokio::time::timeout(Duration::from_secs(30), reading).await.unwrap().unwrap();
    assert_eq!(server.command(&["TTL", "prices"]), Reply::Number(-1), "it was made to expire");
    // Abandoned, it goes by itself.
    let abandoned = Shadow::of("prices").unwrap();
    abandoned
        .write(&mut redis, |pipeline, key| {
            pipeline.set(key, 1);
        })
        .await
        .unwrap();
    assert!(matches!(server.command(&["TTL", abandoned.key()]), Reply::Number(3000..=3600)));
    server.command(&["PEXPIRE", abandoned.key(), "1"]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!abandoned.publish(&mut redis).await.unwrap(), "it published nothing");
    let discarded = Shadow::of("prices").unwrap();
    discarded
        .write(&mut redis, |pipeline, key| {
            pipeline.set(key, 1);
        })
        .await
        .unwrap();
    discarded.discard(&mut redis).await.unwrap();
    assert_eq!(server.command(&["KEYS", "*shadow*"]), Reply::List(vec![]));
}

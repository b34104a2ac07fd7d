//! What is said in the log, to people who would otherwise never hear of it.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fencepost_core::{
    claim::{Release, Renewal},
    store::Store,
};
use fencepost_servers::RedisServer;
use tracing_subscriber::fmt::MakeWriter;

use super::{Administered, SOON, claim, client, open, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);

/// The log of this thread, and so of everything that runs on a runtime of one thread.
#[derive(Clone, Debug, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn begin() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let subscriber = tracing_subscriber::fmt().with_ansi(false).with_writer(log.clone()).finish();
        (log, tracing::subscriber::set_default(subscriber))
    }

    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap()
    }

    /// How many lines warn with these words.
    fn warnings(&self, words: &str) -> usize {
        let text = String::from_utf8(self.bytes().clone()).unwrap();
        text.lines().filter(|line| line.contains("WARN") && line.contains(words)).count()
    }
}

impl Write for &Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = &'a Log;

    fn make_writer(&'a self) -> &'a Log {
        self
    }
}

#[tokio::test]
async fn a_server_that_may_evict_locks_is_warned_of() {
    const EVICTS: &str = "this Redis evicts keys when its memory is full";
    let server = RedisServer::start();
    for (memory, policy, warnings) in
        [("0", "allkeys-lru", 0), ("100mb", "noeviction", 0), ("100mb", "allkeys-lru", 1), ("100mb", "volatile-ttl", 1)]
    {
        server.cli(&["CONFIG", "SET", "maxmemory", memory, "maxmemory-policy", policy]);
        let (log, _guard) = Log::begin();
        let store = client(&server).await;
        assert_eq!(log.warnings(EVICTS), warnings, "{memory} {policy}");
        take(&store, &format!("{memory} {policy}"), TTL).await;
        assert_eq!(log.warnings(EVICTS), warnings, "said once, when it is opened");
    }
}

#[tokio::test]
async fn forbidden_messages_are_said_once_for_each_client() {
    let (log, _guard) = Log::begin();
    let server = RedisServer::start();
    server.cli(&["ACL", "SETUSER", "locks", "on", ">s3cret", "~*", "resetchannels", "+@all"]);
    let store = open(&format!("redis://locks:s3cret@{}", server.address())).await.unwrap();
    let (mine, first) = (take(&store, "x", TTL).await, claim("x", TTL));
    let second = claim("x", TTL);
    let turns = [queue(&store, &first).await, queue(&store, &second).await];
    assert_eq!(release(&store, &mine).await, Release::Released);
    let [turn, next] = turns;
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    assert_eq!(release(&store, &first).await, Release::Released);
    within(SOON, "the next turn", next).await.unwrap().unwrap();
    assert_eq!(log.warnings("Redis forbids messages to this user"), 1);
    assert_eq!(log.warnings("s3cret"), 0);
}

#[tokio::test]
async fn an_expiry_taken_off_by_hand_is_put_back_and_said() {
    const PERSISTED: &str = "had lost its expiry";
    let (log, _guard) = Log::begin();
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    server.cli(&["PERSIST", "fencepost:{x}"]);
    for _ in 0..2 {
        let renewed = store.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
        assert!(matches!(renewed, Renewal::Renewed { .. }), "{renewed:?}");
        assert_eq!(log.warnings(PERSISTED), 1, "the second renewal finds it as it should be");
    }
    assert_ne!(server.cli(&["PTTL", "fencepost:{x}"]), "-1");
}

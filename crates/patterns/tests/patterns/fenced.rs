//! Resources that check fences: by hand, and by eight processes that are killed and robbed of their lock.

use std::{any::Any, collections::BTreeSet, io::Write as _, path::PathBuf, sync::Arc, time::Duration};

use fencepost::{Acquired, Attempt, Correctness, ErrorKind, Fence, FencedBy, LockName, Locks};
use fencepost_patterns::fenced::{
    DirectoryObjects, FencedDirectory, FencedFile, FencedKeys, FencedObject, Object, Objects, Put, Refused, Tag,
};
use fencepost_postgres::fenced::{self as rows, FencedTable};
use fencepost_servers::RedisServer;
use redis::aio::MultiplexedConnection;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::{Deserialize, Serialize};
use tokio_postgres::Client;

use crate::{
    database::{self, Database},
    fenced_http,
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

pub(crate) fn fence(number: u64) -> Fence {
    Fence::new(number).unwrap()
}

/// Which resource, and where.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Place {
    File(PathBuf),
    Directory(PathBuf),
    Object(PathBuf),
    Redis(String),
    /// A row of a table whose trigger checks.
    Row {
        url: String,
        id: i64,
    },
    Http(String),
}

enum Resource {
    File(FencedFile),
    Directory(FencedDirectory),
    Object(FencedObject<DirectoryObjects>),
    Redis(MultiplexedConnection),
    Row { client: Client, id: i64 },
    Http(String),
}

/// The newest fence that it has seen.
type Checked<T> = Result<T, u64>;

fn checked<T, E: std::fmt::Debug>(outcome: Result<T, Refused<E>>) -> Checked<T> {
    match outcome {
        Ok(done) => Ok(done),
        Err(Refused::Stale { seen }) => Err(seen.get()),
        Err(other) => panic!("{other:?}"),
    }
}

fn stale(refused: rows::Refused) -> u64 {
    match refused {
        rows::Refused::Stale { seen } => seen,
        other => panic!("{other:?}"),
    }
}

fn table() -> FencedTable {
    FencedTable::new("resources").unwrap()
}

pub(crate) async fn connection(url: &str) -> MultiplexedConnection {
    redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap()
}

impl Resource {
    async fn at(place: &Place) -> Self {
        match place.clone() {
            Place::File(path) => Self::File(FencedFile::at(path)),
            Place::Directory(path) => Self::Directory(FencedDirectory::at(path)),
            Place::Object(path) => Self::Object(FencedObject::new(DirectoryObjects::at(path), "a/key")),
            Place::Redis(url) => Self::Redis(connection(&url).await),
            Place::Row { url, id } => Self::Row { client: database::client(&url).await, id },
            Place::Http(address) => Self::Http(address),
        }
    }

    async fn advance(&mut self, fence: Fence) -> Checked<String> {
        let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap_or_default()).unwrap();
        match self {
            Self::File(file) => checked(file.advance(fence)).map(text),
            Self::Directory(directory) => {
                checked(directory.advance(fence)).map(|()| text(directory.read("x").unwrap()))
            }
            Self::Object(object) => checked(object.advance(fence).await).map(text),
            Self::Redis(redis) => checked(FencedKeys::on(redis).advance("x", fence).await).map(text),
            Self::Row { client, id } => {
                let row = table().advance(client, "id = $2", &[id], fence).await.map_err(stale)?;
                Ok(row.get("content"))
            }
            Self::Http(address) => fenced_http::get(address, fence).await,
        }
    }

    async fn write(&mut self, fence: Fence, content: &str) -> Checked<()> {
        let bytes = content.as_bytes();
        match self {
            Self::File(file) => checked(file.replace(fence, bytes)),
            Self::Directory(directory) => checked(directory.replace(fence, "x", bytes)),
            Self::Object(object) => checked(object.replace(fence, bytes).await),
            Self::Redis(redis) => checked(FencedKeys::on(redis).call("x", fence, "SET", bytes).await),
            Self::Row { client, id } => {
                let write = "UPDATE resources SET content = $1, fence = $2 WHERE id = $3";
                let written = client.execute(write, &[&content, &(fence.get() as i64), id]).await;
                assert_eq!(written.map_err(|error| stale(rows::Refused::of(error)))?, 1);
                Ok(())
            }
            Self::Http(address) => fenced_http::put(address, fence, content).await,
        }
    }
}

/// What each of them promises, step by step, with numbers beyond what a float can tell apart.
pub(crate) async fn refuses_what_is_late(place: Place) {
    let mut resource = Resource::at(&place).await;
    let base = 1 << 60;
    assert_eq!(resource.advance(fence(base + 1)).await, Ok(String::new()));
    resource.write(fence(base + 1), "one").await.unwrap();
    assert_eq!(resource.write(fence(base), "late").await, Err(base + 1));
    assert_eq!(resource.advance(fence(base)).await, Err(base + 1));
    assert_eq!(resource.advance(fence(base + 2)).await, Ok("one".to_owned()));
    assert_eq!(resource.write(fence(base + 1), "late").await, Err(base + 2));
    resource.write(fence(base + 2), "two").await.unwrap();
    resource.write(fence(base + 2), "two again").await.unwrap();
    // A newer one that did not advance is let through, and seen.
    resource.write(fence(base + 4), "four").await.unwrap();
    // Opened anew, by another process for instance, it has forgotten nothing. A longer number is a newer one.
    let mut again = Resource::at(&place).await;
    for late in [1, 9, base + 3] {
        assert_eq!(again.write(fence(late), "late").await, Err(base + 4));
    }
    assert_eq!(again.advance(fence(10 * base / 3)).await, Ok("four".to_owned()));
}

/// A process that adds lines under the lock, whoever takes that away.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    place: Place,
    locks: String,
    /// Where fences come from, when not from the locks.
    issuer: Option<String>,
    worker: u32,
    log: PathBuf,
}

/// Lines that each process adds.
const LINES: usize = 20;

impl Job {
    pub(crate) async fn work(self) {
        let locks = Source::open(&self.locks, self.issuer.as_deref()).await;
        let mut resource = Resource::at(&self.place).await;
        let mut line = 0;
        while line < LINES {
            let Some((fence, _lease)) = locks.take().await else { continue };
            let Ok(before) = resource.advance(fence).await else { continue };
            tokio::time::sleep(Duration::from_millis(line as u64 % 4)).await; // in which the lock is taken from it
            let added = format!("{before}{} {line}\n", self.worker);
            if resource.write(fence, &added).await.is_ok() {
                note(&self.log, &format!("{} {line}", self.worker));
                line += 1;
            }
        }
    }
}

/// Where a lock and its fence come from.
enum Source {
    One(Locks<Correctness>),
    Two(FencedBy),
}

impl Source {
    async fn open(locks: &str, issuer: Option<&str>) -> Self {
        let locks = Locks::open(locks).await.unwrap();
        match issuer {
            None => Self::One(locks.fenced().unwrap()),
            Some(issuer) => {
                let issuer = Locks::open(issuer).await.unwrap().fenced().unwrap();
                Self::Two(locks.for_efficiency().fenced_by(&issuer).unwrap())
            }
        }
    }

    /// The fence, and what gives the lock back; `None` when the lease was lost before there was one.
    async fn take(&self) -> Option<(Fence, Box<dyn Any + Send>)> {
        match self {
            Self::One(locks) => match locks.lock("x").acquire().await.unwrap() {
                Acquired(lease) => Some((lease.fence(), Box::new(lease))),
                Attempt::Busy(busy) => panic!("busy without a limit: {busy:?}"),
            },
            Self::Two(locks) => match locks.lock("x").acquire().await {
                Ok(Acquired(lease)) => Some((lease.fence(), Box::new(lease))),
                Ok(Attempt::Busy(busy)) => panic!("busy without a limit: {busy:?}"),
                Err(error) => {
                    assert!(matches!(error.kind(), ErrorKind::Lost(_)), "{error}");
                    None
                }
            },
        }
    }
}

/// Under locks of a directory.
pub(crate) fn loses_nothing(place: &Place) {
    let directory = tempfile::tempdir().unwrap();
    loses_nothing_by(place, &format!("file:{}/locks", directory.path().display()), None);
}

/// Under locks that are broken again and again: nothing that was acknowledged is lost or there twice, and of what was not there is
/// at most one line of each that was killed.
pub(crate) fn loses_nothing_by(place: &Place, locks: &str, issuer: Option<&str>) {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let breaking = runtime.spawn({
        let locks = locks.to_owned();
        async move {
            let locks = Locks::open(&locks).await.unwrap();
            loop {
                let _ = locks.store().force(&LockName::new("x").unwrap(), None).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    let job = |worker| {
        let (place, locks, issuer) = (place.clone(), locks.to_owned(), issuer.map(str::to_owned));
        processes::Job::Fenced(Job { place, locks, issuer, worker, log: log.clone() })
    };
    eight_of_which_two_are_killed(job, 10, || lines(&log).len());
    breaking.abort();
    let (written, noted) = runtime.block_on(async {
        let written = Resource::at(place).await.advance(fence(Fence::MAX)).await.unwrap();
        (written.lines().map(str::to_owned).collect::<Vec<_>>(), lines(&log))
    });
    let once: BTreeSet<_> = written.iter().collect();
    assert_eq!(once.len(), written.len(), "a line is there twice");
    let lost: Vec<_> = noted.iter().filter(|line| !once.contains(line)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert!(written.len() <= noted.len() + 2, "{} written, {} noted", written.len(), noted.len());
    assert!(noted.len() >= 6 * LINES);
}

#[test]
fn f1_a_file_refuses_what_is_late_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    tokio::runtime::Runtime::new().unwrap().block_on(refuses_what_is_late(Place::File(directory.path().join("x"))));
    loses_nothing(&Place::File(directory.path().join("y")));
}

#[test]
fn f1_a_directory_refuses_what_is_late_and_loses_nothing() {
    let [one, two] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    tokio::runtime::Runtime::new().unwrap().block_on(refuses_what_is_late(Place::Directory(one.path().into())));
    loses_nothing(&Place::Directory(two.path().into()));
    let directory = FencedDirectory::at(two.path());
    for bad in ["", ".fence", "a/b", "..", "/etc/passwd"] {
        assert_eq!(directory.read(bad).unwrap_err().kind(), std::io::ErrorKind::InvalidInput, "{bad}");
    }
    assert!(directory.remove(fence(Fence::MAX), "x").unwrap());
    assert!(matches!(directory.replace(fence(1), "x", b"late"), Err(Refused::Stale { .. })), "it forgot with the file");
}

#[test]
fn f1_an_object_refuses_what_is_late_and_loses_nothing() {
    let [one, two] = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    tokio::runtime::Runtime::new().unwrap().block_on(refuses_what_is_late(Place::Object(one.path().into())));
    loses_nothing(&Place::Object(two.path().into()));
}

#[test]
fn f1_a_redis_key_refuses_what_is_late_and_loses_nothing() {
    let (one, two) = (RedisServer::start(), RedisServer::start());
    tokio::runtime::Runtime::new().unwrap().block_on(refuses_what_is_late(Place::Redis(one.url())));
    loses_nothing(&Place::Redis(two.url()));
}

#[test]
fn f1_a_row_in_postgres_refuses_what_is_late_and_loses_nothing() {
    let database = Database::new();
    database.sql("CREATE TABLE resources (id bigint PRIMARY KEY, content text NOT NULL)");
    database.sql(&table().script());
    database.sql("INSERT INTO resources VALUES (1, ''), (2, '')");
    let [one, two] = [1, 2].map(|id| Place::Row { url: database.url(), id });
    tokio::runtime::Runtime::new().unwrap().block_on(refuses_what_is_late(one));
    loses_nothing(&two);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_key_of_any_type_is_checked_and_a_refused_command_writes_nothing() {
    let server = RedisServer::start();
    let mut redis = connection(&server.url()).await;
    let mut keys = FencedKeys::on(&mut redis);
    let length: u64 = keys.call("list", fence(5), "RPUSH", &["a", "b"]).await.unwrap();
    assert_eq!(length, 2);
    let late = keys.call::<u64>("list", fence(4), "RPUSH", "c").await;
    assert!(matches!(late, Err(Refused::Stale { seen }) if seen.get() == 5), "{late:?}");
    let wrong = keys.advance::<Option<String>>("list", fence(6)).await;
    assert!(matches!(&wrong, Err(Refused::Failed(error)) if error.to_string().contains("WRONGTYPE")), "{wrong:?}");
    server.command(&["SCRIPT", "FLUSH"]);
    let () = keys.call("list", fence(6), "DEL", &[] as &[&str]).await.unwrap();
    let late = keys.call::<u64>("list", fence(5), "RPUSH", "c").await;
    assert!(matches!(late, Err(Refused::Stale { .. })), "the fence went with the key");
    assert!(matches!(keys.advance::<Option<String>>("a}b", fence(1)).await, Err(Refused::Failed(_))));
}

/// A step of a file holds off everybody from its comparison to its end: else one that compared in time would write late.
#[test]
fn f1_nobody_advances_in_the_midst_of_a_step() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x");
    let file = FencedFile::at(&path);
    // Reading waits here, as a process does that is stopped.
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let older = std::thread::spawn({
        let file = file.clone();
        move || file.advance(fence(1)).unwrap()
    });
    let mut midst = std::fs::File::options().write(true).open(&path).unwrap(); // once it reads
    let newer = std::thread::spawn(move || file.replace(fence(2), b"newer").unwrap());
    std::thread::sleep(Duration::from_millis(300));
    let (read, replaced) = (older.is_finished(), newer.is_finished());
    midst.write_all(b"older").unwrap();
    drop(midst);
    assert!(!read && !replaced, "it was replaced in the midst of another's step");
    assert_eq!(older.join().unwrap().as_deref(), Some(&b"older"[..]));
    newer.join().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"newer");
}

/// A store whose object another writes whenever it is read.
#[derive(Debug)]
struct Contended(Arc<DirectoryObjects>);

impl Objects for Contended {
    type Error = std::io::Error;

    fn get<'a>(&'a self, key: &'a str) -> fencepost::store::BoxFuture<'a, Result<Option<Object>, std::io::Error>> {
        Box::pin(async move {
            let found = self.0.get(key).await?;
            let tag = found.as_ref().map(|object| &object.tag);
            assert!(matches!(self.0.put(key, b"another's", fence(1), tag).await?, Put::Done(_)));
            Ok(found)
        })
    }

    fn put<'a>(
        &'a self,
        key: &'a str,
        body: &'a [u8],
        fence: Fence,
        expected: Option<&'a Tag>,
    ) -> fencepost::store::BoxFuture<'a, Result<Put, std::io::Error>> {
        self.0.put(key, body, fence, expected)
    }
}

#[tokio::test]
async fn c1_an_object_that_others_always_write_first_is_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let objects = Arc::new(DirectoryObjects::at(directory.path()));
    let object = FencedObject::new(Contended(objects.clone()), "x");
    assert!(matches!(object.replace(fence(1), b"ours").await, Err(Refused::Contended { tries: 100 })));
    assert_eq!(objects.get("x").await.unwrap().unwrap().body, b"another's");
}

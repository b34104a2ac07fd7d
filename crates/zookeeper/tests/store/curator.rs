//! Beside kazoo: with `recipe=curator` its lock, which honours Curator's nodes when told to, and Fencepost exclude each
//! other; and its transactions take a grant's guard.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use fencepost_core::claim::Release;
use fencepost_zookeeper::ZooKeeperGuard;

use super::*;

#[path = "../../examples/guarded_zookeeper.rs"]
#[allow(dead_code, unreachable_pub)] // its `main`
mod example;

#[tokio::test]
async fn the_example_does_what_it_says() {
    let server = ZooKeeperServer::shared();
    let told = example::story(&server.url()).await.unwrap();
    assert_eq!(told, ["while it is held: true", "after it was given back: false", "and once more: None"]);
}

const SCRIPT: &str = r#"
import os, sys, time
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start(timeout=20)
lock = client.Lock(sys.argv[2], "kazoo", extra_lock_patterns=["-lock-"])
for line in sys.stdin:
    word = line.split()
    if word[0] == "try":
        print(lock.acquire(blocking=False), flush=True)
    elif word[0] == "acquire":
        print(lock.acquire(timeout=30), flush=True)
    elif word[0] == "release":
        print(lock.release(), flush=True)
    elif word[0] == "write":
        client.ensure_path("/stock")
        transaction = client.transaction()
        transaction.check(word[1], -1)
        transaction.set_data("/stock", word[2].encode())
        print(not any(isinstance(result, Exception) for result in transaction.commit()), flush=True)
    elif word[0] == "contend":
        for _ in range(int(word[1])):
            lock.acquire(timeout=30)
            os.close(os.open(word[2], os.O_CREAT | os.O_EXCL))
            time.sleep(0.001)
            os.unlink(word[2])
            lock.release()
        print("done", flush=True)
"#;

struct Kazoo {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Kazoo {
    fn start(place: &Place, path: &str) -> Self {
        let python = ["python3", "/usr/bin/python3"].into_iter().find(|python| {
            let tried = Command::new(python).args(["-c", "import kazoo"]).stderr(Stdio::null()).status();
            tried.is_ok_and(|status| status.success())
        });
        let mut process = Command::new(python.expect("the package python3-kazoo must be installed"))
            .args(["-c", SCRIPT, &format!("{}{}", place.server.address(), place.chroot), path])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (orders, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self { process, orders, answers }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.orders, "{order}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }
}

impl Drop for Kazoo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn curator(place: &Place) -> ZooKeeperStore {
    open(&format!("{}?recipe=curator", place.url())).await.unwrap()
}

#[tokio::test]
async fn each_waits_for_the_other() {
    let place = Place::new();
    let store = curator(&place).await;
    let mut kazoo = Kazoo::start(&place, "/tests/x");
    let (first, second) = (claim("x", LONG), claim("x", LONG));
    let fence = granted(&store, &first).await.fence;
    assert_eq!(kazoo.ask("try"), "False");
    kazoo.order("acquire");
    eventually(SOON, "it waits", async || place.nodes("x").iter().any(|node| node.contains("__lock__"))).await;
    queued(&store, &second).await;
    assert_eq!(store.release(&first.holding).await.unwrap(), Release::Released);
    assert_eq!(kazoo.answer(), "True");
    let listed = store.inspect(Some(&name("x"))).await.unwrap();
    assert_eq!((listed[0].holders[0].claimant.host.as_str(), listed[0].waiters.len()), ("kazoo", 1), "first come");
    assert!(matches!(store.claim(&claim("x", LONG), Patience::Once).await, Ok(Claimed::Busy(_))));
    let turn = store.turn(&second);
    assert_eq!(kazoo.ask("release"), "True");
    let grant = within(SOON, "the turn comes", turn).await.unwrap();
    assert!(grant.fence > fence);
    // A layout that does not know the other's nodes would not see it at all.
    assert_eq!(place.nodes("x").len(), 1);
    assert!(place.nodes("x")[0].starts_with("_c_"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_inside_with_the_other() {
    const ROUNDS: usize = 40;
    let place = Place::new();
    let arena = tempfile::tempdir().unwrap();
    let inside = arena.path().join("inside");
    let mut kazoo = Kazoo::start(&place, "/tests/x");
    kazoo.order(&format!("contend {ROUNDS} {}", inside.display()));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let (store, inside) = (curator(&place).await, inside.clone());
        clients.spawn(async move {
            for _ in 0..ROUNDS {
                let claim = claim("x", LONG);
                if let Claimed::Queued(_) = store.claim(&claim, Patience::Queue).await.unwrap() {
                    store.turn(&claim).await.unwrap();
                }
                enter(&inside);
                tokio::time::sleep(ms(1)).await;
                std::fs::remove_file(&inside).unwrap();
                store.release(&claim.holding).await.unwrap();
            }
        });
    }
    let answer = tokio::task::spawn_blocking(move || kazoo.answer());
    within(SOON * 8, "everybody is served", clients.join_all()).await;
    assert_eq!(within(SOON * 8, "kazoo too", answer).await.unwrap(), "done");

    fn enter(inside: &Path) {
        std::fs::File::create_new(inside).expect("nobody else is inside");
    }
}

/// A writer that was paused past its lease and does not know yet: the ensemble refuses it in the very step that would write.
#[tokio::test]
async fn a_guarded_write_takes_effect_only_while_the_lock_is_held() {
    let place = Place::new();
    let mut kazoo = Kazoo::start(&place, "/tests/x");
    let url = place.url();
    let opening = fencepost::Locks::builder(&url).namespace(Namespace::new("tests").unwrap()).open();
    let locks = opening.await.unwrap().fenced().unwrap();
    let mut lease = locks.lock("x").ttl(LONG).acquire().await.unwrap().acquired().unwrap();
    let guard: ZooKeeperGuard = lease.guard().expect("it is held");
    let node = guard.below(&place.chroot).expect("it lies there").to_owned();
    assert_eq!(kazoo.ask(&format!("write {node} 17")), "True");
    let other = place.store().await;
    other.force(&name("x"), None).await.unwrap();
    assert_eq!(kazoo.ask(&format!("write {node} 3")), "False", "whether the holder knows or not");
    eventually(SOON, "the holder knows", async || lease.guard::<ZooKeeperGuard>().is_none()).await;
    drop(lease);
    lease = locks.lock("x").ttl(LONG).acquire().await.unwrap().acquired().unwrap();
    assert_eq!(kazoo.ask(&format!("write {node} 3")), "False", "a guard is of one grant");
    assert_eq!(place.admin.read(&format!("{}/stock", place.chroot)).unwrap().0, b"17");
    lease.release().await.unwrap();
    assert!(lease.guard::<ZooKeeperGuard>().is_none());
}

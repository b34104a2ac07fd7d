//! Users with few rights, or none.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimed, Forced, Holding, Mode, Patience, Release, Renewal, Want},
    error::{Applied, ErrorKind},
    owner::Owner,
    store::Store,
};
use fencepost_redis::RedisStore;
use fencepost_servers::RedisServer;

use super::{Administered, SOON, claim, ms, name, open, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);
/// As documented in the crate's front page.
const COMMANDS: &str = "-@all +select +ping +info +time +scan +eval +evalsha +get +set +del +exists +pttl +pexpire \
    +zadd +zrem +zrange +zrank +zcard +zscore +hget +hset +hdel +hincrby +hgetall +publish +subscribe";

fn with_user(server: &RedisServer, rules: &str) -> String {
    let mut command = vec!["ACL", "SETUSER", "locks", "on", ">s3cret"];
    command.extend(rules.split_whitespace());
    assert_eq!(server.cli(&command), "OK");
    format!("redis://locks:s3cret@127.0.0.1:{}", server.address().port())
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_user_limited_to_the_prefix_can_do_everything() {
    let server = RedisServer::start();
    let url = with_user(&server, &format!("~fencepost:* &fencepost:* {COMMANDS}"));
    let (a, b) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let mine = take(&a, "x", TTL).await;
    let (first, second) = (claim("x", TTL), claim("x", TTL));
    let turn = queue(&b, &first).await;
    let gives_up = queue(&b, &second).await;
    let renewed = a.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Renewed { .. }));
    assert_eq!(a.inspect(None).await.unwrap()[0].waiters.len(), 2);
    assert_eq!(release(&a, &mine).await, Release::Released);
    within(ms(1000), "the turn, by message", turn).await.unwrap().unwrap();
    gives_up.abort();
    assert_eq!(release(&b, &second).await, Release::Released);
    readers_permits_and_several(&a, &b).await;
    assert!(matches!(a.force(&name("x"), None).await.unwrap(), Forced::Broken(_)));
    assert_eq!(server.cli(&["ACL", "LOG"]), "", "nothing was refused");
}

async fn readers_permits_and_several(a: &Arc<RedisStore>, b: &Arc<RedisStore>) {
    let (writer, reader) = (take(a, "rw", TTL).await, beside("rw", Mode::Shared));
    let turn = queue(b, &reader).await;
    assert!(matches!(a.downgrade(&writer).await.unwrap(), Renewal::Renewed { .. }));
    within(ms(1000), "the reader, by message", turn).await.unwrap().unwrap();
    assert_eq!(a.inspect(Some(&name("rw"))).await.unwrap()[0].holders.len(), 2);
    assert!(matches!(a.force(&name("rw"), None).await.unwrap(), Forced::Broken(_)));

    let (two, one) = (Mode::Permits { count: 2, of: 2 }, Mode::Permits { count: 1, of: 2 });
    let holder = beside("sem", two);
    assert!(matches!(a.claim(&holder, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    let waiter = beside("sem", one);
    let turn = queue(b, &waiter).await;
    assert_eq!(a.resize(&name("sem"), 3).await.unwrap(), Some(2));
    within(ms(1000), "the permit, by message", turn).await.unwrap().unwrap();
    assert_eq!(release(a, &holder).await, Release::Released);
    assert_eq!(release(b, &waiter).await, Release::Released);

    let wants = ["a", "b", "c"].map(|lock| Want { name: name(lock), mode: Mode::Exclusive });
    let holding = Holding::several(wants.to_vec(), Owner::random().unwrap()).unwrap();
    let several = Arc::new(Claim { holding, ..(*holder).clone() });
    assert!(matches!(a.claim(&several, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    let renewed = a.renew(std::slice::from_ref(&several)).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Renewed { .. }));
    assert_eq!(release(a, &several).await, Release::Released);
}

fn beside(lock: &str, mode: Mode) -> Arc<Claim> {
    let holding = Holding::one(Want { name: name(lock), mode }, Owner::random().unwrap());
    Arc::new(Claim { holding, ..(*claim(lock, TTL)).clone() })
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_poll_where_messages_are_forbidden() {
    for forbidden in ["-subscribe", "-publish", "resetchannels"] {
        let server = RedisServer::start();
        let url = with_user(&server, &format!("~fencepost:* &fencepost:* {COMMANDS} {forbidden}"));
        let (a, b) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let mine = take(&a, "x", TTL).await;
        let (first, second) = (claim("x", TTL), claim("x", TTL));
        let turns = [queue(&b, &first).await, queue(&a, &second).await];
        assert_eq!(release(&a, &mine).await, Release::Released);
        let [turn, next] = turns;
        within(ms(1500), "the turn, by asking", turn).await.unwrap().unwrap();
        assert_eq!(release(&b, &first).await, Release::Released);
        within(ms(1500), "the next turn, by asking", next).await.unwrap().unwrap();
    }
}

/// They are recorded as hearing messages, and no release can reach them by one any more.
#[tokio::test(flavor = "multi_thread")]
async fn w1_waiters_who_queued_before_messages_were_forbidden_get_their_turn() {
    let server = RedisServer::start();
    let url = with_user(&server, &format!("~fencepost:* &fencepost:* {COMMANDS}"));
    let (a, b) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    let mine = take(&a, "x", TTL).await;
    let mut turns = Vec::new();
    for _ in 0..3 {
        let waiter = claim("x", TTL);
        let turn = queue(&b, &waiter).await;
        let store = b.clone();
        turns.push(tokio::spawn(async move {
            turn.await.unwrap().unwrap();
            release(&store, &waiter).await
        }));
    }
    with_user(&server, "-subscribe -publish");
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(release(&a, &mine).await, Release::Released);
    // Who asked again first may go first: the others were out of reach at that moment.
    for turn in turns {
        assert_eq!(within(SOON, "the turn, by asking", turn).await.unwrap(), Release::Released);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_missing_rights_are_named_at_once() {
    let server = RedisServer::start();
    let url = with_user(&server, &format!("~other:* &* {COMMANDS}"));
    let store = open(&url).await.unwrap();
    let error = store.claim(&claim("x", TTL), Patience::Queue).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::PermissionDenied, Applied::No), "{error}");
    let url = with_user(&server, "~fencepost:* resetkeys ~fencepost:* -evalsha -eval");
    let store = open(&url).await.unwrap();
    let error = store.release(&claim("x", TTL).holding).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_wrong_password_is_refused_and_not_repeated() {
    let server = RedisServer::start_with(&["--requirepass", "s3cret"]);
    let port = server.address().port();
    for url in [
        format!("redis://:hunter2@127.0.0.1:{port}"),
        format!("redis://nobody:hunter2@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}"),
    ] {
        let error = within(SOON, "the refusal", open(&url)).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::PermissionDenied, Applied::No), "{error}");
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("password");
    std::fs::write(&file, "s3cret\n").unwrap();
    let store = open(&format!("redis://127.0.0.1:{port}?password_file={}", file.display())).await.unwrap();
    take(&store, "x", TTL).await;
}

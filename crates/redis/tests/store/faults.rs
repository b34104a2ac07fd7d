//! A server that restarts, forgets, freezes or is in somebody else's hands.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, Forced, Patience, Release, Renewal},
    clock::{BootClock, Clock},
    error::{Applied, Error, ErrorKind},
    store::Store,
};
use fencepost_servers::{Network, RedisServer, Weather};

use super::{Administered, SOON, claim, client, ms, name, open, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);

/// Source: redlock-rb 148.
#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_after_script_flush() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let flush = || assert_eq!(server.cli(&["SCRIPT", "FLUSH"]), "OK");
    let mine = take(&store, "x", TTL).await;
    flush();
    let waiter = claim("x", TTL);
    let turn = queue(&store, &waiter).await;
    flush();
    let renewed = store.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Renewed { .. }));
    flush();
    assert_eq!(release(&store, &mine).await, Release::Released);
    flush();
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    flush();
    assert!(matches!(store.force(&name("x"), None).await.unwrap(), Forced::Broken(_)));
    flush();
    assert_eq!(store.inspect(None).await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_verb_works_after_a_restart() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let restart = || {
        server.kill();
        server.launch();
    };
    let mine = take(&store, "x", TTL).await;
    restart();
    let renewed = soon(async || store.renew(std::slice::from_ref(&mine)).await.pop().unwrap()).await;
    assert!(matches!(renewed, Renewal::Renewed { .. }));
    restart();
    assert_eq!(soon(async || store.inspect(None).await).await.len(), 1);
    restart();
    assert_eq!(soon(async || store.release(&mine.holding).await).await, Release::Released);
    restart();
    let mine = claim("x", TTL);
    let claimed = soon(async || store.claim(&mine, Patience::Once).await).await;
    assert!(matches!(claimed, Claimed::Granted(_)), "{claimed:?}");
    let turn = queue(&store, &claim("x", TTL)).await;
    restart();
    assert_eq!(soon(async || store.release(&mine.holding).await).await, Release::Released);
    within(SOON, "the turn after a restart", turn).await.unwrap().unwrap();
}

/// The verb's answer. A store that tried to connect while the server was away lets a moment pass before it tries again,
/// and says so meanwhile.
async fn soon<T>(mut verb: impl AsyncFnMut() -> Result<T, Error>) -> T {
    let until = BootClock.now().after(SOON);
    loop {
        match verb().await {
            Err(error) if error.kind() == ErrorKind::Unavailable && BootClock.now() < until => {
                super::sleep(&BootClock, ms(5)).await;
            }
            answer => return answer.unwrap(),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_the_server_forgot_is_built_again() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    let turns = [queue(&store, &claim("x", TTL)).await, queue(&store, &claim("x", TTL)).await];
    server.cli(&["DEL", "fencepost:{x}:queue", "fencepost:{x}:waiters"]);
    assert_eq!(release(&store, &mine).await, Release::Released);
    super::eventually(SOON, "one has its turn", || turns.iter().any(|turn| turn.is_finished())).await;
    turns.iter().for_each(|turn| turn.abort());
}

/// Source: rslock 0.10; pottery 404.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_dead_server_is_unavailable_at_once_and_never_busy() {
    let server = RedisServer::start();
    let store = client(&server).await;
    server.kill();
    for _ in 0..5 {
        let wanted = claim("x", TTL);
        let error = within(ms(1000), "the refusal", store.claim(&wanted, Patience::Once)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let error = store.claim(&claim("x", TTL), Patience::Once).await.unwrap_err();
    assert_eq!(error.applied(), Applied::No, "{error}");
    let error = within(ms(1000), "the refusal", open(&server.url())).await.unwrap_err();
    assert!(error.to_string().contains("nothing listens at 127.0.0.1:"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_frozen_server_costs_the_limit_and_the_outcome_is_unknown() {
    let server = RedisServer::start();
    let url = format!("{}?timeout=300ms&connect_timeout=400ms", server.url());
    let store = open(&url).await.unwrap();
    server.freeze();
    let lost = claim("x", TTL);
    let sent = BootClock.now();
    let error = within(SOON, "the limit", store.claim(&lost, Patience::Once)).await.unwrap_err();
    assert!(BootClock.now().since(sent) >= ms(300));
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown));
    for _ in 0..4 {
        let error = within(ms(2000), "the limit", store.claim(&claim("y", TTL), Patience::Once)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
    }
    let error = within(ms(2000), "the limit", open(&url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    server.thaw();
    // What it took while nobody heard the answer is given back by its owner value.
    let given_back = async {
        while store.release(&lost.holding).await.is_err() {
            fencepost_core::clock::sleep(&BootClock, ms(50)).await;
        }
    };
    within(SOON, "the server answers again", given_back).await;
    take(&store, "x", TTL).await;
}

/// The command is sent once more after its connection broke. That this is refused says nothing of the first time.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_claim_that_was_carried_out_before_the_connection_broke_is_not_called_not_applied() {
    let server = RedisServer::start();
    let network = Network::before(server.address()).await.unwrap();
    let store = open(&format!("redis://{}", network.address)).await.unwrap();
    network.set(Weather::LostReplies);
    let wanted = claim("x", TTL);
    let claiming = tokio::spawn({
        let wanted = wanted.clone();
        async move { store.claim(&wanted, Patience::Once).await }
    });
    super::eventually(SOON, "the claim is carried out", || server.cli(&["EXISTS", "fencepost:{x}"]) == "1").await;
    network.vanish().await;
    let error = within(SOON, "the refusal", claiming).await.unwrap().unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_a_waiter_hears_of_an_outage() {
    let server = RedisServer::start();
    let store = client(&server).await;
    take(&store, "x", TTL).await;
    let turn = queue(&store, &claim("x", TTL)).await;
    server.kill();
    let error = within(Duration::from_secs(10), "the waiter is told", turn).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_foreign_value_is_named_at_once_and_left_alone() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let claimed = take(&store, "ours", TTL).await;
    server.cli(&["SET", "fencepost:{text}", "somebody else's"]);
    server.cli(&["LPUSH", "fencepost:{list}", "a"]);
    server.cli(&["SET", "fencepost:{x:y}", "not even a name of ours"]);
    for lock in ["text", "list"] {
        let foreign = claim(lock, TTL);
        for patience in [Patience::Once, Patience::Queue] {
            let error = store.claim(&foreign, patience).await.unwrap_err();
            assert_eq!((error.kind(), error.applied()), (ErrorKind::ForeignValue, Applied::No));
        }
        assert_eq!(store.release(&foreign.holding).await.unwrap_err().kind(), ErrorKind::ForeignValue);
        assert_eq!(store.force(&name(lock), None).await.unwrap_err().kind(), ErrorKind::ForeignValue);
        assert_eq!(store.inspect(Some(&name(lock))).await.unwrap_err().kind(), ErrorKind::ForeignValue);
    }
    let listed = store.inspect(None).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].holders[0].owner, Some(claimed.holding.owner));
    assert_eq!(server.cli(&["GET", "fencepost:{text}"]), "somebody else's");
}

/// The server answers nobody else while a script looks at a value, so that looking must not take longer for a long one.
#[tokio::test(flavor = "multi_thread")]
async fn c4_a_long_foreign_value_that_looks_like_ours_is_refused_without_holding_the_server_up() {
    let server = RedisServer::start();
    let store = client(&server).await;
    server.cli(&["SET", "fencepost:{x}", &format!("1-{}", "1".repeat(1_000_000))]);
    let foreign = claim("x", TTL);
    let sent = BootClock.now();
    for patience in [Patience::Once, Patience::Queue] {
        assert_eq!(store.claim(&foreign, patience).await.unwrap_err().kind(), ErrorKind::ForeignValue);
    }
    let renewed = store.renew(std::slice::from_ref(&foreign)).await.pop().unwrap();
    assert_eq!(renewed.unwrap_err().kind(), ErrorKind::ForeignValue);
    assert_eq!(store.release(&foreign.holding).await.unwrap_err().kind(), ErrorKind::ForeignValue);
    assert_eq!(store.force(&name("x"), None).await.unwrap_err().kind(), ErrorKind::ForeignValue);
    let took = BootClock.now().since(sent);
    assert!(took < ms(2000), "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_replica_given_as_the_master_is_misconfigured() {
    let master = RedisServer::start();
    let replica = RedisServer::start();
    let store = client(&replica).await;
    replica.cli(&["REPLICAOF", "127.0.0.1", &master.address().port().to_string()]);
    let error = store.claim(&claim("x", TTL), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Misconfigured, Applied::No));
    assert!(error.to_string().contains("replica"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_memory_is_said_in_words() {
    let server = RedisServer::start();
    let store = client(&server).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = store.claim(&claim("x", TTL), Patience::Once).await.unwrap_err();
    assert!(error.to_string().contains("no memory left"), "{error}");
    assert_eq!(error.applied(), Applied::No);
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let server = RedisServer::start();
    let holder = client(&server).await;
    take(&holder, "x", TTL).await;
    super::closing_reaches_a_waiter(async || client(&server).await as Arc<dyn Store>).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_store_says_so() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    let turn = queue(&store, &claim("x", TTL)).await;
    store.close().await;
    let error = within(SOON, "the waiter is told", turn).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
    assert_eq!(store.release(&mine.holding).await.unwrap_err().kind(), ErrorKind::Closed);
    // Its connections are gone, and the other's question is the only one left.
    super::eventually(SOON, "the connections end", || server.cli(&["CLIENT", "LIST"]).lines().count() == 1).await;
    let other = client(&server).await;
    let busy = other.claim(&claim("x", TTL), Patience::Once).await.unwrap();
    assert!(matches!(busy, Claimed::Busy(_)), "{busy:?}");
}

//! Waiting: the order, the hand-over, and waiters who are gone.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, Patience, Release, Renewal},
    clock::{BootClock, Clock, sleep},
    store::Store,
};
use fencepost_servers::RedisServer;
use tokio::task::JoinHandle;

use super::{Administered, SOON, claim, client, eventually, ms, name, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);

async fn served<T>(waiter: JoinHandle<Result<T, fencepost_core::error::Error>>) -> T {
    within(SOON, "the waiter's turn", waiter).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn w3_waiters_of_two_clients_are_served_in_the_order_they_came() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    let claims: Vec<_> = (0..8).map(|_| claim("x", TTL)).collect();
    let mut waiters = Vec::new();
    for (i, claim) in claims.iter().enumerate() {
        waiters.push(queue(if i % 2 == 0 { &a } else { &b }, claim).await);
    }
    let state = &a.inspect(Some(&name("x"))).await.unwrap()[0];
    assert_eq!((state.holders.len(), state.waiters.len()), (1, 8));

    assert_eq!(release(&b, &first).await, Release::Released);
    for (i, waiter) in waiters.into_iter().enumerate() {
        served(waiter).await;
        let held = b.inspect(None).await.unwrap()[0].holders[0].owner;
        assert_eq!(held, Some(claims[i].holding.owner), "waiter {i}");
        assert_eq!(release(&a, &claims[i]).await, Release::Released);
    }
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn w3_a_newcomer_does_not_pass_the_queue_after_an_expiry() {
    let server = RedisServer::start();
    let (dead, waiting, newcomer) = (client(&server).await, client(&server).await, client(&server).await);
    take(&dead, "x", ms(300)).await;
    let waiter = claim("x", TTL);
    let turn = queue(&waiting, &waiter).await;
    let until = BootClock.now().after(SOON);
    while !turn.is_finished() && BootClock.now() < until {
        let got = newcomer.claim(&claim("x", TTL), Patience::Once).await.unwrap();
        assert!(matches!(got, Claimed::Busy(_)), "{got:?}");
    }
    served(turn).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w1_a_dead_holders_lock_passes_on_when_its_lease_ends() {
    let server = RedisServer::start();
    let (dead, waiting) = (client(&server).await, client(&server).await);
    take(&dead, "x", ms(500)).await;
    let waiter = claim("x", TTL);
    let turn = queue(&waiting, &waiter).await;
    within(ms(500) + ms(1000), "the turn after the lease's end", turn).await.unwrap().unwrap();
}

/// Source: redisson 1104, 3004.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_waiter_whose_client_is_gone_is_passed_over_at_once() {
    let server = RedisServer::start();
    let (a, gone, b) = (client(&server).await, client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    let lost = queue(&gone, &claim("x", TTL)).await;
    let next = queue(&b, &claim("x", TTL)).await;
    // What a killed process leaves: a place in the queue and no connection.
    lost.abort();
    gone.close().await;
    eventually(SOON, "the connection ends", || server.cli(&["PUBSUB", "CHANNELS"]).lines().count() == 2).await;
    assert_eq!(release(&a, &first).await, Release::Released);
    within(ms(1000), "the next live waiter's turn", next).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_a_hand_over_that_nobody_confirms_passes_on() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    // Queued, listening, and never asking for its turn: as a process that was stopped.
    let stopped = claim("x", TTL);
    let claimed = a.claim(&stopped, Patience::Queue).await.unwrap();
    assert!(matches!(claimed, Claimed::Queued(_)));
    let next = queue(&b, &claim("x", TTL)).await;
    assert_eq!(release(&a, &first).await, Release::Released);
    within(SOON, "the turn of the one behind", next).await.unwrap().unwrap();
    let late = a.renew(std::slice::from_ref(&stopped)).await.pop().unwrap().unwrap();
    assert!(matches!(late, Renewal::Lost(_)), "{late:?}");
    // Asking for its turn now, it queues again at the end.
    let turn = tokio::spawn(async move { a.turn(&stopped).await });
    sleep(&BootClock, ms(200)).await;
    assert!(!turn.is_finished());
    turn.abort();
}

/// Source: redisson 3891, 5762.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_killed_connection_for_messages_costs_less_than_a_second() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    let turn = queue(&b, &claim("x", TTL)).await;
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(release(&a, &first).await, Release::Released);
    within(ms(1000), "the hand-over", turn).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_waiter_that_gives_up_leaves_no_place_behind() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    let waiter = claim("x", TTL);
    queue(&b, &waiter).await.abort();
    assert_eq!(release(&b, &waiter).await, Release::Released);
    assert_eq!(release(&b, &waiter).await, Release::HeldByOther);
    assert_eq!(server.cli(&["KEYS", "*"]), "fencepost:{x}");
    // With nobody waiting, the key ends with the lease again.
    assert!(server.cli(&["PTTL", "fencepost:{x}"]).parse::<u64>().unwrap() <= 30_000);
    assert_eq!(release(&a, &first).await, Release::Released);
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn w2_many_waiters_cost_as_few_commands_as_one() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    let mut turns = Vec::new();
    for _ in 0..200 {
        turns.push(queue(&b, &claim("x", TTL)).await);
    }
    server.cli(&["CONFIG", "RESETSTAT"]);
    assert_eq!(release(&a, &first).await, Release::Released);
    eventually(SOON, "one waiter's turn", || turns.iter().any(JoinHandle::is_finished)).await;
    sleep(&BootClock, ms(300)).await;
    assert_eq!(turns.iter().filter(|turn| turn.is_finished()).count(), 1);
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap();
    // The release, the confirmation, a poke or two.
    let calls: u32 = line.split_once("calls=").unwrap().1.split_once(',').unwrap().0.parse().unwrap();
    assert!(calls <= 6, "{line}");
    turns.iter().for_each(JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_nothing_stays_when_holder_and_waiters_die() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    take(&a, "x", ms(500)).await;
    queue(&b, &claim("x", ms(500))).await.abort();
    take(&a, "y", ms(500)).await;
    for store in [a, b] {
        store.close().await;
        drop::<Arc<_>>(store);
    }
    eventually(Duration::from_secs(14), "every key expires", || server.cli(&["KEYS", "*"]).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn w1_a_lock_deleted_by_hand_goes_to_the_one_who_waits() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let first = take(&a, "x", TTL).await;
    let turn = queue(&b, &claim("x", TTL)).await;
    server.cli(&["DEL", "fencepost:{x}"]);
    served(turn).await;
    let renewed = a.renew(&[first]).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Lost(_)), "{renewed:?}");
}

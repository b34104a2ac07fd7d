//! Renewal, release and force.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimed, Forced, Holding, LossReason, Mode, Patience, Release, Renewal, Want},
    clock::{BootClock, sleep},
    error::{Error, ErrorKind},
    fence::Fence,
    owner::Owner,
    store::{LossReporter, Store},
};
use fencepost_redis::RedisStore;
use fencepost_servers::RedisServer;

use super::{Administered, SOON, claim, client, ms, name, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);

async fn renew(store: &RedisStore, claim: &Arc<Claim>) -> Result<Renewal, Error> {
    store.renew(std::slice::from_ref(claim)).await.pop().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn o2_nothing_is_changed_for_another_owner() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    let stranger = claim("x", TTL);
    assert_eq!(release(&store, &stranger).await, Release::HeldByOther);
    assert_eq!(renew(&store, &stranger).await.unwrap(), Renewal::Lost(LossReason::TakenOver));
    assert!(matches!(renew(&store, &mine).await.unwrap(), Renewal::Renewed { ttl: TTL, .. }));
    assert_eq!(release(&store, &mine).await, Release::Released);
    assert_eq!(release(&store, &mine).await, Release::AlreadyExpired);
    assert_eq!(renew(&store, &mine).await.unwrap(), Renewal::Lost(LossReason::Deleted));
    assert_eq!(server.cli(&["KEYS", "*"]), "", "a renewal never creates");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_can_be_repeated_held_or_queued() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    let again = store.claim(&mine, Patience::Queue).await.unwrap();
    assert!(matches!(again, Claimed::Granted(_)), "{again:?}");
    let (second, third) = (claim("x", TTL), claim("x", TTL));
    for ahead in [0, 1, 0, 1] {
        let waiter = if ahead == 0 { &second } else { &third };
        let Claimed::Queued(busy) = store.claim(waiter, Patience::Queue).await.unwrap() else { panic!("queued") };
        assert_eq!(busy.ahead, Some(ahead));
        assert_eq!(busy.holder.unwrap().owner, Some(mine.holding.owner));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t3_the_lease_is_as_long_as_asked_for_with_and_without_a_queue() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    let left = |states: Vec<fencepost_core::claim::LockState>| states[0].holders[0].expires_in.unwrap();
    let turn = queue(&store, &claim("x", TTL)).await;
    sleep(&BootClock, ms(100)).await;
    let queued = left(store.inspect(None).await.unwrap());
    assert!(queued < TTL && queued > TTL - SOON, "{queued:?}");
    renew(&store, &mine).await.unwrap();
    let renewed = left(store.inspect(None).await.unwrap());
    assert!(renewed > queued && renewed <= TTL, "{renewed:?}");
    turn.abort();
}

/// Source: redisson 6303, 6962, 6483.
#[tokio::test(flavor = "multi_thread")]
async fn r1_one_bad_key_disturbs_no_other_lease() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mut claims = Vec::new();
    for i in 0..450 {
        claims.push(take(&store, &format!("x{i}"), TTL).await);
    }
    server.cli(&["DEL", "fencepost:{x7}"]);
    server.cli(&["LPUSH", "fencepost:{x7}", "a"]);
    server.cli(&["SET", "fencepost:{x300}", "somebody else's"]);
    server.cli(&["DEL", "fencepost:{x301}"]);
    server.cli(&["CONFIG", "RESETSTAT"]);
    let answers = store.renew(&claims).await;
    assert_eq!(answers.len(), 450);
    for (i, answer) in answers.into_iter().enumerate() {
        match (i, answer) {
            (7 | 300, Err(error)) => assert_eq!(error.kind(), ErrorKind::ForeignValue),
            (301, answer) => assert_eq!(answer.unwrap(), Renewal::Lost(LossReason::Deleted)),
            (_, answer) => assert!(matches!(answer, Ok(Renewal::Renewed { .. })), "{i}: {answer:?}"),
        }
    }
    // 450 leases in three commands.
    let stats = server.cli(&["INFO", "commandstats"]);
    let of = |command: &str| {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:")));
        line.map_or(0, |line| line.split_once("calls=").unwrap().1.split_once(',').unwrap().0.parse().unwrap())
    };
    assert!(of("evalsha") + of("eval") <= 6, "{stats}");
}

/// Source: redis-py 818.
#[tokio::test(flavor = "multi_thread")]
async fn t3_a_lock_without_expiry_gets_one_again() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let mine = take(&store, "x", TTL).await;
    let left = || server.cli(&["PTTL", "fencepost:{x}"]).parse::<i64>().unwrap();
    server.cli(&["PERSIST", "fencepost:{x}"]);
    assert_eq!(left(), -1);
    assert!(matches!(renew(&store, &mine).await.unwrap(), Renewal::Renewed { .. }));
    assert!(left() > 0);
    // With its holder dead, whoever wants it next sees to that.
    server.cli(&["PERSIST", "fencepost:{x}"]);
    let Claimed::Busy(busy) = store.claim(&claim("x", TTL), Patience::Once).await.unwrap() else { panic!("busy") };
    assert!(busy.holder.unwrap().expires_in.unwrap() <= TTL);
    assert!(left() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn l4_a_holder_hears_at_once_that_its_lock_was_broken() {
    let server = RedisServer::start();
    let (holder, admin, waiting) = (client(&server).await, client(&server).await, client(&server).await);
    let (reporter, mut losses) = LossReporter::channel();
    holder.report_losses(reporter);
    let mine = take(&holder, "x", TTL).await;
    assert_eq!(admin.force(&name("y"), None).await.unwrap(), Forced::NotHeld);
    assert_eq!(admin.force(&name("x"), Fence::new(1)).await.unwrap(), Forced::OtherFence(None));

    let turn = queue(&waiting, &claim("x", TTL)).await;
    super::eventually(SOON, "the holder listens", || server.cli(&["PUBSUB", "CHANNELS"]).lines().count() == 2).await;
    let Forced::Broken(Some(was)) = admin.force(&name("x"), None).await.unwrap() else { panic!("broken") };
    assert_eq!(was.owner, Some(mine.holding.owner));
    let loss = within(SOON, "the holder is told", losses.recv()).await.unwrap();
    assert_eq!(loss, (mine.holding.owner, LossReason::Deleted));
    within(SOON, "the waiter's turn", turn).await.unwrap().unwrap();
    assert_eq!(release(&holder, &mine).await, Release::HeldByOther);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_one_script_and_one_that_is_held_is_named() {
    let server = RedisServer::start();
    let (a, b) = (client(&server).await, client(&server).await);
    let several = |locks: &[&str]| {
        let wants = locks.iter().map(|lock| Want { name: name(lock), mode: Mode::Exclusive }).collect();
        let holding = Holding::several(wants, Owner::random().unwrap()).unwrap();
        Arc::new(Claim { holding, ..(*claim("x", TTL)).clone() })
    };
    let held = take(&b, "y", TTL).await;
    for patience in [Patience::Once, Patience::Queue] {
        let busy = a.claim(&several(&["x", "y", "z"]), patience).await.unwrap();
        let Claimed::Busy(busy) = busy else { panic!("y is held: {busy:?}") };
        assert_eq!((busy.lock, busy.holder.unwrap().owner), (Some(name("y")), Some(held.holding.owner)));
    }
    assert_eq!(server.cli(&["KEYS", "*"]), "fencepost:{y}", "nothing was taken");
    assert_eq!(release(&b, &held).await, Release::Released);

    let calls = || {
        let stats = server.cli(&["INFO", "commandstats"]);
        let calls = |name: &str| {
            let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:")));
            line.and_then(|line| line.split(['=', ',']).nth(1)?.parse::<u32>().ok()).unwrap_or(0)
        };
        calls("evalsha") + calls("eval")
    };
    let all = several(&["x", "y", "z"]);
    let before = calls();
    assert!(matches!(a.claim(&all, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    assert_eq!(calls(), before + 1, "one round trip for all");
    // A repetition answers as the first; and one that is lost is the loss of all.
    assert!(matches!(a.claim(&all, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    assert!(matches!(b.force(&name("y"), None).await.unwrap(), Forced::Broken(_)));
    let renewed = a.renew(std::slice::from_ref(&all)).await.pop().unwrap().unwrap();
    assert_eq!(renewed, Renewal::Lost(LossReason::Deleted));
    assert_eq!(release(&a, &all).await, Release::AlreadyExpired);
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_expiry_of_readers_ends_none_of_them_early() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let reader = |ttl| {
        let holding = Holding::one(Want { name: name("x"), mode: Mode::Shared }, Owner::random().unwrap());
        Arc::new(Claim { holding, ..(*claim("x", ttl)).clone() })
    };
    let (long, short) = (reader(TTL), reader(ms(1500)));
    for reader in [&long, &short] {
        assert!(matches!(store.claim(reader, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    }
    server.cli(&["PERSIST", "fencepost:{x}"]);
    // The shorter lease's renewal must not give the key that lease's end.
    let renewed = store.renew(std::slice::from_ref(&short)).await.pop().unwrap().unwrap();
    assert!(matches!(renewed, Renewal::Renewed { .. }));
    let left: u64 = server.cli(&["PTTL", "fencepost:{x}"]).parse().unwrap();
    assert!(left > 20_000, "{left} ms");
    assert_eq!(release(&store, &short).await, Release::Released);
    assert_eq!(release(&store, &long).await, Release::Released);
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

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
async fn what_redis_cannot_give_is_refused() {
    let server = RedisServer::start();
    let store = client(&server).await;
    let want = |mode| Want { name: name("x"), mode };
    for wants in [
        vec![want(Mode::Shared)],
        vec![want(Mode::Permits { count: 1, of: 2 })],
        vec![want(Mode::Exclusive), Want { name: name("y"), mode: Mode::Exclusive }],
    ] {
        let mut refused = (*claim("x", TTL)).clone();
        refused.holding = Holding::several(wants, Owner::random().unwrap()).unwrap();
        let error = store.claim(&refused, Patience::Once).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    assert_eq!(server.cli(&["KEYS", "*"]), "");
}

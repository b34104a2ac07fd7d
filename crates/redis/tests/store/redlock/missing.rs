//! Records that a server has lost, and those that are put back.

use super::*;

/// The counter-example of a server that forgets, and the guard against it. A holds three of five, the other two being
/// away; one of the three restarts empty.
#[tokio::test(flavor = "multi_thread")]
async fn t1_a_server_that_restarted_is_not_counted_for_one_ttl() {
    let servers = servers(5);
    let options = "node_timeout=1s";
    // They must have been up for a TTL themselves.
    let ttl = ms(3_000);
    let (guarded, unguarded) = (open(&url(&servers, options)).await.unwrap(), client(&servers).await);
    let young = claim("young", ttl);
    assert!(once(&guarded, &young).await.is_err(), "all of them have just started");
    tokio::time::sleep(ttl + ms(2_100)).await;
    let held = claim("x", LONG);
    servers[3..].iter().for_each(RedisServer::kill);
    assert!(is_granted(&once(&unguarded, &held).await));
    servers[2].kill();
    servers[2].forget();
    servers[2..].iter().for_each(RedisServer::launch);
    let second = claim("x", ttl);
    for _ in 0..3 {
        let outcome = within(SOON, "an answer", once(&guarded, &second)).await;
        assert!(!is_granted(&outcome), "a server that forgot has voted");
    }
    let outcome = within(SOON, "an answer", guarded.claim(&second, Patience::Queue)).await;
    assert!(!is_granted(&outcome), "nor does it by handing over");
    guarded.release(&second.holding).await.unwrap();
    // Without the guard this is what happens: two hold.
    let counter_example = async || is_granted(&once(&unguarded, &claim("x", ttl)).await);
    eventually_async(SOON, "the counter-example is one", counter_example).await;
    let renewed = unguarded.renew(&[held]).await.remove(0);
    assert!(matches!(renewed, Ok(Renewal::Lost(_))), "the first one finds out at its next renewal: {renewed:?}");
}

/// Of a minority it is put back, of a majority it is gone for good.
#[tokio::test(flavor = "multi_thread")]
async fn l1_a_record_that_is_gone_from_a_minority_is_no_loss() {
    let servers = servers(5);
    let store = client(&servers).await;
    let held = claim("x", LONG);
    assert!(is_granted(&once(&store, &held).await));
    for server in &servers[..2] {
        server.cli(&["DEL", "fencepost:{x}"]);
    }
    assert!(is_renewed(&renewed(&store, &held).await));
    eventually(SOON, "it is put back", || keys(&servers).len() == 5).await;
    for server in &servers[..3] {
        server.cli(&["DEL", "fencepost:{x}"]);
    }
    let outcome = renewed(&store, &held).await;
    assert!(matches!(outcome, Ok(Renewal::Lost(_))), "{outcome:?}");
    tokio::time::sleep(ms(300)).await;
    assert_eq!(keys(&servers).len(), 2, "a renewal never creates what no quorum has");
    assert_eq!(store.release(&held.holding).await.unwrap(), Release::AlreadyExpired);
}

/// Otherwise each of them would be one record fewer, until no quorum is left.
#[tokio::test(flavor = "multi_thread")]
async fn l2_servers_that_come_back_empty_one_after_another_get_the_record_back() {
    let servers = servers(5);
    let (store, other) = (client(&servers).await, client(&servers).await);
    let (held, wanted) = (claim("x", LONG), claim("x", LONG));
    assert!(is_granted(&once(&store, &held).await));
    assert!(matches!(other.claim(&wanted, Patience::Queue).await, Ok(Claimed::Queued(_))));
    let turn = tokio::spawn(async move { other.turn(&wanted).await });
    for server in &servers {
        server.kill();
        server.forget();
        server.launch();
        // By then the waiter may have come again, and have this server's vote.
        eventually_async(SOON, "the record is there again", async || {
            assert!(!matches!(renewed(&store, &held).await, Ok(Renewal::Lost(_))), "a quorum has it all the while");
            server.cli(&["GET", "fencepost:{x}"]).contains(&held.owner().to_string())
        })
        .await;
        assert!(!turn.is_finished(), "nobody else holds it");
    }
    assert!(is_renewed(&renewed(&store, &held).await));
    assert_eq!(store.release(&held.holding).await.unwrap(), Release::Released);
    within(SOON, "the waiter kept its place", turn).await.unwrap().unwrap();
}

/// A server that restarted may have promised the lock to another. Its record makes no quorum before that is over.
#[tokio::test(flavor = "multi_thread")]
async fn t1_a_record_that_was_put_back_counts_only_when_the_server_may_be_counted() {
    let servers = servers(5);
    let ttl = ms(4_000);
    tokio::time::sleep(ttl + ms(2_100)).await; // they have just started themselves
    let store = open(&url(&servers, "node_timeout=1s")).await.unwrap();
    let held = claim("x", ttl);
    assert!(is_granted(&once(&store, &held).await));
    servers[0].kill();
    servers[0].forget();
    servers[0].launch();
    let restarted = BootClock.now();
    eventually_async(SOON, "the record is there again", async || {
        let _ = renewed(&store, &held).await;
        servers[0].cli(&["EXISTS", "fencepost:{x}"]) == "1"
    })
    .await;
    servers[1..3].iter().for_each(RedisServer::kill);
    eventually_async(SOON * 2, "it counts in the end", async || {
        let outcome = renewed(&store, &held).await;
        let early = BootClock.now().since(restarted) < ttl;
        assert!(!(early && is_renewed(&outcome)), "two of five and a server that may have forgotten are no quorum");
        is_renewed(&outcome)
    })
    .await;
}

/// What the renewal found missing was given back meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn o2_a_release_in_the_moment_of_a_renewal_leaves_nothing_that_is_put_back() {
    let servers = servers(5);
    let store = client(&servers).await;
    for number in 0..100 {
        let held = claim(&format!("{number}"), LONG);
        assert!(is_granted(&once(&store, &held).await));
        let key = format!("fencepost:{{{number}}}");
        eventually(SOON, "it is everywhere", || servers.iter().all(|s| s.cli(&["EXISTS", &key]) == "1")).await;
        for server in &servers[..2] {
            server.cli(&["DEL", &key]);
        }
        let (_, released) = tokio::join!(renewed(&store, &held), store.release(&held.holding));
        assert_eq!(released.unwrap(), Release::Released);
    }
    eventually(SOON, "long before the TTL", || keys(&servers).is_empty()).await;
}

//! Who waits, and how a lock passes on.

use super::*;

/// All come at once, so that the votes are split among many; nobody waits for a TTL, and nobody overlaps.
#[tokio::test(flavor = "multi_thread")]
async fn w1_split_votes_among_many_contenders_come_together() {
    let servers = servers(5);
    let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut contenders = JoinSet::new();
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(client(&servers).await);
    }
    for number in 0..32 {
        let (store, inside) = (clients[number % 8].clone(), inside.clone());
        contenders.spawn(async move {
            let claim = claim("x", LONG);
            if let Claimed::Queued(_) = store.claim(&claim, Patience::Queue).await.unwrap() {
                store.turn(&claim).await.unwrap();
            }
            assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0, "two hold");
            tokio::time::sleep(ms(1)).await;
            inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
            store.release(&claim.holding).await.unwrap();
        });
    }
    within(SOON * 4, "all are served, long before a TTL", contenders.join_all()).await;
    eventually(SOON, "nothing is left", || keys(&servers).is_empty()).await;
}

/// Two servers, and so two votes, are needed; the third is so slow that its vote comes after its limit.
#[tokio::test(flavor = "multi_thread")]
async fn w1_a_slow_server_is_no_tie_breaker() {
    let servers = servers(3);
    let url = url(&servers, "node_timeout=200ms&restart_guard=0");
    let (a, b) = (open(&url).await.unwrap(), open(&url).await.unwrap());
    servers[2].freeze();
    for _ in 0..5 {
        let (first, second) = (claim("x", LONG), claim("x", LONG));
        let both = tokio::join!(once(&a, &first), once(&b, &second));
        let granted = usize::from(is_granted(&both.0)) + usize::from(is_granted(&both.1));
        assert!(granted <= 1, "{both:?}");
        for (store, claim) in [(&a, &first), (&b, &second)] {
            store.release(&claim.holding).await.unwrap();
        }
    }
    servers[2].thaw();
    eventually(SOON, "nothing is left", || keys(&servers).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let servers = servers(5);
    let holder = client(&servers).await;
    assert!(is_granted(&once(&holder, &claim("x", LONG)).await));
    closing_reaches_a_waiter(async || client(&servers).await as Arc<dyn Store>).await;
}

/// A thousand who come in one moment, with the usual limit, and leave in one. Were all of them sent at once, the servers would need longer
/// than the limit for the last ones, and every claim would fail. On a busy machine some fail all the same.
#[tokio::test(flavor = "multi_thread")]
async fn w2_a_thousand_waiters_of_one_client_come_and_go_within_the_limit_of_each_server() {
    let servers = servers(5);
    let store = open(&url(&servers, "node_timeout=300ms&restart_guard=0")).await.unwrap();
    let mut held = claim("x", LONG);
    assert!(is_granted(&once(&store, &held).await));
    let mut claiming = JoinSet::new();
    for _ in 0..1_000 {
        let store = store.clone();
        claiming.spawn(async move {
            let claim = claim("x", LONG);
            let claimed = store.claim(&claim, Patience::Queue).await;
            (claim, claimed)
        });
    }
    let (mut waiting, mut failed) = (Vec::new(), Vec::new());
    for (claim, claimed) in claiming.join_all().await {
        match claimed {
            Ok(Claimed::Queued(_)) => waiting.push(claim),
            Err(error) if error.kind() == ErrorKind::Unavailable => failed.push(claim),
            other => panic!("{other:?}"),
        }
    }
    assert!(failed.len() <= 100, "{} failed", failed.len());
    let mut turns = JoinSet::new();
    for claim in waiting.clone() {
        let store = store.clone();
        turns.spawn(async move { store.turn(&claim).await.map(|_| claim) });
    }
    for _ in 0..20 {
        assert_eq!(store.release(&held.holding).await.unwrap(), Release::Released);
        held = within(SOON, "the next one has it", turns.join_next()).await.unwrap().unwrap().unwrap();
    }
    turns.abort_all();
    let mut leaving = JoinSet::new();
    for claim in waiting.into_iter().chain(failed) {
        let store = store.clone();
        leaving.spawn(async move {
            let released = store.release(&claim.holding).await;
            (claim, released)
        });
    }
    let left = leaving.join_all().await;
    let unclear: Vec<_> = left.into_iter().filter(|(_, released)| released.is_err()).collect();
    assert!(unclear.len() <= 100, "{unclear:?}");
    for (claim, _) in unclear {
        store.release(&claim.holding).await.unwrap();
    }
    eventually(SOON, "nothing is left", || keys(&servers).is_empty()).await;
}

/// Who is under way meets the limit of servers that are silent; who stands in line has not begun.
#[tokio::test(flavor = "multi_thread")]
async fn w2_who_stands_in_line_meets_no_limit() {
    let servers = servers(5);
    let store = open(&url(&servers, "node_timeout=1s&restart_guard=0")).await.unwrap();
    assert!(is_granted(&once(&store, &claim("warm-up", LONG)).await));
    servers.iter().for_each(RedisServer::freeze);
    let mut claiming = JoinSet::new();
    for number in 0..1_000 {
        let store = store.clone();
        claiming.spawn(async move { store.claim(&claim(&format!("{number}"), LONG), Patience::Once).await });
    }
    let first = within(SOON * 2, "the limit", claiming.join_next()).await.unwrap().unwrap();
    servers.iter().for_each(RedisServer::thaw);
    assert_eq!(first.unwrap_err().kind(), ErrorKind::Unavailable);
    let rest = within(SOON * 4, "all are answered", claiming.join_all()).await;
    let failed = rest.iter().filter(|claimed| !is_granted(claimed)).count();
    assert!(failed < 300, "{failed} of those who came in one moment failed for the silence that met the first");
}

/// What a hand-over costs does not depend on how many wait.
#[tokio::test(flavor = "multi_thread")]
async fn w2_a_hand_over_costs_the_same_for_any_number_of_waiters() {
    let mut costs = Vec::new();
    for waiters in [3, 60] {
        let servers = servers(5);
        let (holder, others) = (client(&servers).await, client(&servers).await);
        let mut held = claim("x", LONG);
        assert!(is_granted(&once(&holder, &held).await));
        let mut turns = JoinSet::new();
        for _ in 0..waiters {
            let claim = claim("x", LONG);
            assert!(matches!(others.claim(&claim, Patience::Queue).await, Ok(Claimed::Queued(_))));
            let others = others.clone();
            turns.spawn(async move { others.turn(&claim).await.map(|_| claim) });
        }
        let (mut store, before) = (&holder, scripts_run(&servers));
        for _ in 0..3 {
            store.release(&held.holding).await.unwrap();
            held = within(SOON, "the next one has it", turns.join_next()).await.unwrap().unwrap().unwrap();
            store = &others;
        }
        // Votes more than needed are confirmed after the grant.
        let mut after = scripts_run(&servers);
        eventually(SOON, "it is quiet", || {
            std::mem::replace(&mut after, scripts_run(&servers)) == scripts_run(&servers)
        })
        .await;
        costs.push((after - before) / 3);
        turns.abort_all();
    }
    println!("scripts for each hand-over: {costs:?}");
    assert!(costs[1] <= costs[0] + 5 && costs[0] <= 25, "a release and a confirmation on five servers: {costs:?}");
}

fn scripts_run(servers: &[RedisServer]) -> u64 {
    let stats = servers.iter().map(|server| server.cli(&["INFO", "commandstats"]));
    let calls = stats.map(|stats| {
        let lines =
            stats.lines().filter(|line| line.starts_with("cmdstat_eval")).map(str::to_owned).collect::<Vec<_>>();
        let calls = lines.iter().filter_map(|line| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok());
        calls.sum::<u64>()
    });
    calls.sum()
}

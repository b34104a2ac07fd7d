//! The users that `docs/stores/redis.md` recommends can do everything, in every topology.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, Forced, Patience, Release, Renewal},
    store::Store,
};
use fencepost_servers::{ClusterSet, RedisServer, SentinelSet};

use super::{Administered, SOON, claim, cluster, eventually, eventually_async, name, redlock, sentinel, within};

const TTL: Duration = Duration::from_secs(30);
const PAGE: &str = include_str!("../../../../docs/stores/redis.md");

/// The words of the page's only ACL line with these in it.
fn documented(with: &str) -> Vec<String> {
    let lines = PAGE.split("```").filter(|block| block.contains("ACL SETUSER") && block.contains(with));
    let [line] = lines.collect::<Vec<_>>()[..] else { panic!("one line with {with}") };
    let line = line.trim_start_matches("text").replace("NAMESPACE", "fencepost").replace("PASSWORD", "s3cret");
    line.split_whitespace().map(str::to_owned).collect()
}

fn let_in(server: &RedisServer, line: &[String], more: &str) {
    let words = line.iter().map(String::as_str).chain(more.split_whitespace()).collect::<Vec<_>>();
    assert_eq!(server.cli(&words), "OK");
}

/// Every verb once, with a waiter that hears its turn.
async fn everything(a: &dyn Store, b: &dyn Store) {
    let (mine, wanted) = (claim("x", TTL), claim("x", TTL));
    assert!(matches!(a.claim(&mine, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    assert!(matches!(b.claim(&wanted, Patience::Once).await.unwrap(), Claimed::Busy(_)));
    assert!(matches!(b.claim(&wanted, Patience::Queue).await.unwrap(), Claimed::Queued(_)));
    let renewed = a.renew(std::slice::from_ref(&mine)).await.pop().unwrap();
    assert!(matches!(renewed, Ok(Renewal::Renewed { .. })), "{renewed:?}");
    assert_eq!(a.inspect(None).await.unwrap()[0].waiters.len(), 1);
    assert_eq!(a.release(&mine.holding).await.unwrap(), Release::Released);
    within(SOON, "the turn", b.turn(&wanted)).await.unwrap();
    assert!(matches!(a.force(&name("x"), None).await.unwrap(), Forced::Broken(_)));
}

/// After a failover each client follows when it hears of it. Until then one may still ask the former master, which grants.
async fn both_have_followed(a: &dyn Store, b: &dyn Store) {
    eventually_async(SOON, "both ask the new master", async || {
        let (held, other) = (claim("followed", TTL), claim("followed", TTL));
        let granted = matches!(a.claim(&held, Patience::Once).await, Ok(Claimed::Granted(_)));
        let busy = matches!(b.claim(&other, Patience::Once).await, Ok(Claimed::Busy(_)));
        let given_back = [a.release(&held.holding).await, b.release(&other.holding).await];
        granted && busy && given_back.iter().all(Result::is_ok)
    })
    .await;
}

fn nothing_was_refused<'a>(servers: impl Iterator<Item = &'a RedisServer>) {
    servers.for_each(|server| assert_eq!(server.cli(&["ACL", "LOG"]), ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_needs_what_a_single_server_does() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    servers.iter().for_each(|server| let_in(server, &documented("~NAMESPACE:*"), ""));
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let url = format!("redlock://locks:s3cret@{}?{}", hosts.join(","), redlock::HEALTHY);
    let (a, b) = (redlock::open(&url).await.unwrap(), redlock::open(&url).await.unwrap());
    everything(&*a, &*b).await;
    let held = claim("put back", TTL);
    assert!(matches!(a.claim(&held, Patience::Once).await.unwrap(), Claimed::Granted(_)));
    let keys = || servers[0].cli(&["KEYS", "*put*"]);
    eventually(SOON, "it is there", || !keys().is_empty()).await;
    servers[0].cli(&["DEL", &keys()]);
    assert!(matches!(a.renew(std::slice::from_ref(&held)).await[..], [Ok(Renewal::Renewed { .. })]));
    eventually(SOON, "it is put back", || !keys().is_empty()).await;
    nothing_was_refused(servers.iter());
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinel_needs_one_user_at_the_servers_and_one_at_the_sentinels() {
    let set = SentinelSet::start();
    set.servers().iter().for_each(|server| let_in(server, &documented("~NAMESPACE:*"), "+role"));
    set.sentinels().iter().for_each(|sentinel| let_in(sentinel, &documented("+switch-master"), ""));
    let url = set.url().replacen("://", "://locks:s3cret@", 1);
    let url = format!("{url}?sentinel_user=locks&sentinel_password=s3cret");
    let (a, b): (Arc<dyn Store>, Arc<dyn Store>) =
        (sentinel::open(&url).await.unwrap(), sentinel::open(&url).await.unwrap());
    everything(&*a, &*b).await;
    set.fail_over();
    both_have_followed(&*a, &*b).await;
    everything(&*a, &*b).await;
    nothing_was_refused(set.servers().iter().chain(set.sentinels()));
}

#[tokio::test(flavor = "multi_thread")]
async fn cluster_needs_a_few_commands_more() {
    let set = ClusterSet::start();
    const MORE: &str = "+cluster|slots +asking +ssubscribe +sunsubscribe +spublish";
    assert!(MORE.split(' ').all(|word| PAGE.contains(&format!("`{word}`"))), "the page names them");
    set.nodes().iter().for_each(|node| let_in(node, &documented("~NAMESPACE:*"), MORE));
    let url = set.url().replacen("://", "://locks:s3cret@", 1);
    let (a, b) = (cluster::open(&url).await.unwrap(), cluster::open(&url).await.unwrap());
    everything(&*a, &*b).await;
    set.fail_over(set.slot_of("x"));
    everything(&*a, &*b).await;
    nothing_was_refused(set.nodes().iter());
}

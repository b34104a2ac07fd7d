//! A master behind sentinels: who it is, by whose word, and what a failover leaves of holders and waiters.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claimed, LossReason, Patience, Release, Renewal},
    clock::{BootClock, sleep},
    error::{Applied, Error, ErrorKind},
    name::Namespace,
    store::{LossReporter, Store},
    url::StoreUrl,
};
use fencepost_redis::{RedisStore, SentinelConfig};
use fencepost_servers::{RedisServer, SERVICE, SentinelSet, sentinel_naming};

use super::{
    Administered, SOON, claim, closing_reaches_a_waiter, eventually, ms, open as open_single, queue, release, take,
    within,
};

/// Longer than a failover takes on a loaded machine.
const TTL: Duration = Duration::from_secs(60);
const FAILOVER: Duration = Duration::from_secs(20);

pub(super) async fn open(url: &str) -> Result<Arc<RedisStore>, Error> {
    let config = SentinelConfig::from_url(StoreUrl::parse(url)?)?;
    Ok(Arc::new(RedisStore::open_watched(&config, &Namespace::default(), BootClock::shared()).await?))
}

async fn refused(url: &str, kind: ErrorKind, said: &str) {
    let error = within(SOON * 2, "the refusal", open(url)).await.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(said), "{error}");
}

/// Waits until what was written is on both replicas.
fn written_everywhere(set: &SentinelSet) {
    set.settle();
}

fn crash(set: &SentinelSet) {
    let old = set.master();
    let address = old.address();
    old.kill();
    set.await_other_master(address);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_of_the_master_loses_no_holder_and_no_waiter() {
    let set = SentinelSet::start();
    let (holder, other) = (open(&set.url()).await.unwrap(), open(&set.url()).await.unwrap());
    let mine = take(&holder, "x", TTL).await;
    let wanted = claim("x", TTL);
    let turn = queue(&other, &wanted).await;
    written_everywhere(&set);
    crash(&set);
    let renewed = async {
        loop {
            match holder.renew(std::slice::from_ref(&mine)).await.pop().unwrap() {
                Ok(renewal) => return renewal,
                Err(error) => assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}"),
            }
            sleep(&BootClock, ms(50)).await;
        }
    };
    let renewal = within(FAILOVER, "the renewal on the new master", renewed).await;
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");
    assert!(set.master().cli(&["GET", "fencepost:{x}"]).contains(&mine.owner().to_string()), "the same owner value");
    assert_eq!(release(&holder, &mine).await, Release::Released);
    let outcome = within(FAILOVER, "the waiter's turn", turn).await.unwrap();
    // A waiter hears of an outage as long as this, and its claim is repeated by the client.
    if let Err(error) = outcome {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let again = other.claim(&wanted, Patience::Queue).await.unwrap();
        assert!(matches!(again, Claimed::Granted(_)), "{again:?}");
    }
}

/// The old master is at nobody's fault, and goes on granting until it is told: some ten seconds. Whoever stays with it
/// gets locks that are lost already.
#[tokio::test(flavor = "multi_thread")]
async fn a_planned_failover_is_followed_at_once() {
    let set = SentinelSet::start();
    let store = open(&set.url()).await.unwrap();
    let mine = take(&store, "before", TTL).await;
    let waiter = claim("before", TTL);
    let turn = queue(&store, &waiter).await;
    written_everywhere(&set);
    let old = set.master().address();
    set.fail_over();
    let clients = || set.master().cli(&["CLIENT", "LIST"]);
    eventually(SOON, "commands and messages go to the new master", || {
        let mine: Vec<_> = clients().lines().filter(|line| !line.contains("sentinel-")).map(str::to_owned).collect();
        mine.iter().any(|line| line.contains(" sub=1")) && mine.iter().any(|line| line.contains("cmd=eval"))
    })
    .await;
    let deposed = set.servers().iter().find(|server| server.address() == old).unwrap();
    assert!(deposed.cli(&["ROLE"]).starts_with("master"), "the test needs an old master that was not told yet");
    let after = take(&store, "after", TTL).await;
    assert!(set.master().cli(&["GET", "fencepost:{after}"]).contains(&after.owner().to_string()));
    assert_eq!(deposed.cli(&["GET", "fencepost:{after}"]), "");
    assert_eq!(release(&store, &mine).await, Release::Released);
    within(SOON, "the waiter's turn", turn).await.unwrap().unwrap();
}

/// The recipe loses the write for certain: the replicas take no writes while the master is killed.
#[tokio::test(flavor = "multi_thread")]
async fn l4_a_grant_that_the_new_master_never_saw_is_in_doubt_at_once() {
    let set = SentinelSet::start();
    let store = open(&set.url()).await.unwrap();
    let (reporter, _losses) = LossReporter::channel();
    store.report_losses(reporter.clone());
    take(&store, "first", TTL).await; // so that it listens
    eventually(SOON, "it listens", || !set.master().cli(&["PUBSUB", "CHANNELS", "fencepost:*"]).is_empty()).await;
    written_everywhere(&set);
    set.replicas().for_each(|replica| drop(replica.cli(&["CLIENT", "PAUSE", "3000", "WRITE"])));
    let mine = take(&store, "x", TTL).await;
    let old = set.master();
    let address = old.address();
    old.kill();
    set.servers()
        .iter()
        .filter(|s| s.address() != address)
        .for_each(|replica| drop(replica.cli(&["CLIENT", "UNPAUSE"])));
    set.await_other_master(address);
    within(FAILOVER, "every grant is in doubt", reporter.doubted()).await;
    let renewal = within(SOON, "an answer", store.renew(std::slice::from_ref(&mine))).await.pop().unwrap().unwrap();
    assert_eq!(renewal, Renewal::Lost(LossReason::Deleted), "a renewal never creates");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_of_the_minority_is_not_believed() {
    let set = SentinelSet::start();
    let old = set.master().address();
    set.fail_over();
    // It never heard of the failover, and the server it names still calls itself a master.
    let (_stale, url) = sentinel_naming(old);
    let all =
        set.url().replacen("://", &format!("://{},", &url["redis+sentinel://".len()..url.find("/locks").unwrap()]), 1);
    let store = open(&all).await.unwrap();
    let mine = take(&store, "x", TTL).await;
    assert!(set.master().cli(&["GET", "fencepost:{x}"]).contains(&mine.owner().to_string()));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_named_must_be_a_master_by_its_own_word() {
    let set = SentinelSet::start();
    let replica = set.replicas().next().unwrap().address();
    let (_wrong, url) = sentinel_naming(replica);
    // A sentinel that finds a replica soon names its master by itself.
    let outcome = within(SOON * 2, "an answer", open(&url)).await;
    match outcome {
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
            assert!(error.to_string().contains("says that it is none"), "{error}");
        }
        Ok(store) => drop(take(&store, "x", TTL).await),
    }
    let error = open_single(&format!("redis://{replica}")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("read-only replica"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_what_is_wrong_with_the_sentinels_is_said_when_opening() {
    let set = SentinelSet::start();
    let url = set.url();
    let wrong_name = url.replace(SERVICE, "orders");
    refused(&wrong_name, ErrorKind::Misconfigured, "knows no service \"orders\"").await;
    let plain = RedisServer::start();
    let not_one = format!("redis+sentinel://{}/{SERVICE}", plain.address());
    refused(&not_one, ErrorKind::Misconfigured, "is no sentinel").await;
    let sentinel = set.sentinels()[0].address();
    let error = open_single(&format!("redis://{sentinel}")).await.unwrap_err();
    assert!(error.to_string().contains("is a sentinel and keeps no locks"), "{error}");

    set.sentinels()[0].kill();
    take(&open(&url).await.unwrap(), "with two", TTL).await;
    set.sentinels()[1].freeze();
    take(&within(SOON, "one is enough", open(&url)).await.unwrap(), "with one", TTL).await;
    set.sentinels()[1].kill();
    set.sentinels()[2].kill();
    let address = set.sentinels()[2].address();
    refused(&url, ErrorKind::Unavailable, &format!("nothing listens at {address}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_sentinels_with_a_password() {
    let set = SentinelSet::start_with(Some("s3cret"));
    let url = set.url();
    take(&open(&format!("{url}?sentinel_password=s3cret")).await.unwrap(), "x", TTL).await;
    refused(&url, ErrorKind::PermissionDenied, "password").await;
    refused(&format!("{url}?sentinel_password=wr0ng"), ErrorKind::PermissionDenied, "password").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "s3cret\n").unwrap();
    take(&open(&format!("{url}?sentinel_password_file={}", file.path().display())).await.unwrap(), "y", TTL).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_master_is_left_as_soon_as_another_is_announced() {
    let set = SentinelSet::start();
    let store = open(&format!("{}?timeout=60s", set.url())).await.unwrap();
    take(&store, "x", TTL).await;
    let old = set.master();
    old.freeze();
    set.await_other_master(old.address());
    // Long before a command to the frozen one has run into its limit.
    within(SOON * 4, "a grant of the new master", async {
        // One that was sent to the old master just before the announcement is given up, as a caller's limit would.
        let claim_once = async || tokio::time::timeout(ms(1_000), store.claim(&claim("y", TTL), Patience::Once)).await;
        while !matches!(claim_once().await, Ok(Ok(Claimed::Granted(_)))) {}
    })
    .await;
    old.thaw();
}

fn pause_replicas(set: &SentinelSet) {
    // Writes only: a replica that took no link either would be missed by the sentinels.
    set.replicas().for_each(|replica| assert_eq!(replica.cli(&["CLIENT", "PAUSE", "60000", "WRITE"]), "OK"));
}

fn go_on(set: &SentinelSet) {
    set.replicas().for_each(|replica| assert_eq!(replica.cli(&["CLIENT", "UNPAUSE"]), "OK"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_that_too_few_replicas_have_is_undone() {
    let set = SentinelSet::start();
    let store = open(&format!("{}?replicas=2&replicas_timeout=300ms", set.url())).await.unwrap();
    let mine = take(&store, "before", TTL).await;
    assert!(matches!(store.renew(std::slice::from_ref(&mine)).await.pop().unwrap(), Ok(Renewal::Renewed { .. })));
    let waiter = claim("before", TTL);
    let turn = queue(&store, &waiter).await;

    pause_replicas(&set);
    for patience in [Patience::Once, Patience::Queue] {
        let error = store.claim(&claim("x", TTL), patience).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
        assert!(error.to_string().contains("0 of 2 replicas"), "{error}");
    }
    assert_eq!(set.master().cli(&["EXISTS", "fencepost:{x}"]), "0");
    let error = store.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "a renewal that the replicas lack moves no deadline: {error}");

    go_on(&set);
    written_everywhere(&set);
    assert!(matches!(store.renew(std::slice::from_ref(&mine)).await.pop().unwrap(), Ok(Renewal::Renewed { .. })));
    assert_eq!(release(&store, &mine).await, Release::Released);
    within(SOON, "the waiter's turn, with its copies", turn).await.unwrap().unwrap();
    let x = take(&store, "x", TTL).await;
    for server in set.servers() {
        assert!(server.cli(&["GET", "fencepost:{x}"]).contains(&x.owner().to_string()), "it is on every server");
    }
}

/// A grant that waits for replicas must not hold up the renewals of others.
#[tokio::test(flavor = "multi_thread")]
async fn r1_waiting_for_replicas_disturbs_no_other() {
    let set = SentinelSet::start();
    let store = open(&format!("{}?replicas=1&replicas_timeout=5s", set.url())).await.unwrap();
    let mine = take(&store, "mine", TTL).await;
    pause_replicas(&set);
    let waiting: Vec<_> = (0..4)
        .map(|number| {
            let store = store.clone();
            tokio::spawn(async move { store.claim(&claim(&format!("{number}"), TTL), Patience::Once).await })
        })
        .collect();
    eventually(SOON, "four wait", || {
        let clients = set.master().cli(&["CLIENT", "LIST"]);
        clients.lines().filter(|line| line.contains("cmd=wait")).count() == 4
    })
    .await;
    assert_eq!(within(ms(2000), "a release passes by", release(&store, &mine)).await, Release::Released);
    go_on(&set);
    for claimed in waiting {
        assert!(matches!(within(SOON, "an answer", claimed).await.unwrap(), Ok(Claimed::Granted(_))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_that_failed_leaves_the_lock_to_its_ttl() {
    let set = SentinelSet::start();
    let rights = "+set +wait +info +role +ping +eval +evalsha +time +get +subscribe +publish";
    let user =
        [&["ACL", "SETUSER", "bob", "on", ">pw", "~*", "&*", "-@all"][..], &rights.split(' ').collect::<Vec<_>>()]
            .concat();
    assert_eq!(set.master().cli(&user), "OK");
    let url = set.url().replacen("://", "://bob:pw@", 1);
    let store = open(&format!("{url}?replicas=2&replicas_timeout=200ms")).await.unwrap();
    pause_replicas(&set);
    let error = store.claim(&claim("x", ms(2000)), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    assert!(error.to_string().contains("giving the grant back failed too"), "{error}");
    let other = open(&set.url()).await.unwrap();
    let busy = other.claim(&claim("x", TTL), Patience::Once).await.unwrap();
    assert!(matches!(busy, Claimed::Busy(_)), "{busy:?}");
    eventually(SOON, "it ends by itself", || set.master().cli(&["EXISTS", "fencepost:{x}"]) == "0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_reaches_a_waiter_in_whatever_moment() {
    let set = SentinelSet::start();
    let holder = open(&set.url()).await.unwrap();
    take(&holder, "x", TTL).await;
    closing_reaches_a_waiter(async || open(&set.url()).await.unwrap() as Arc<dyn Store>).await;
}

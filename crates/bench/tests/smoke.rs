//! Every work gives figures that can be true, on every store. What the figures are is no matter of a test.

#![allow(clippy::unwrap_used)] // a test that cannot set itself up has failed

use std::time::Duration;

use fencepost::{Locks, url::StoreUrl};
use fencepost_bench::{Outcome, Plan, Report, Way, Work};
use fencepost_servers::{ClusterSet, EtcdCluster, PostgresServer, RedisServer, SentinelSet, ZooKeeperServer};

fn small(url: impl Into<String>) -> Plan {
    let total = Duration::from_millis(600);
    Plan { total, tasks: vec![1, 4], waiters: vec![1, 5], leases: 50, ..Plan::new(url) }
}

async fn measured(plan: &Plan) -> Report {
    let mut heard = Vec::new();
    let report = fencepost_bench::run(plan, &mut |what, over| heard.push((what.to_owned(), over))).await.unwrap();
    assert!(heard.windows(2).all(|two| two[0].1 <= two[1].1), "{heard:?}");
    assert_eq!(heard.last().map(|last| last.1), Some(1.0));
    let works: Vec<_> = report.outcomes.iter().map(|outcome| (outcome.work, outcome.size)).collect();
    let (tasks, over) = (Work::Tasks, Work::HandOver);
    assert_eq!(works, [(Work::Leases, 50), (Work::Alone, 1), (tasks, 1), (tasks, 4), (over, 1), (over, 5)]);
    report.outcomes.iter().for_each(plausible);
    report
}

fn plausible(outcome: &Outcome) {
    let latencies = outcome.latency.into_iter().chain(outcome.against.iter().map(|against| against.latency));
    for latency in latencies {
        assert!(latency.samples > 0 && latency.p50_us > 0.0 && latency.p50_us <= latency.p99_us, "{outcome:?}");
    }
    assert_eq!(outcome.latency.is_some(), outcome.work != Work::Leases, "{outcome:?}");
    assert!(outcome.against.iter().all(|against| against.ratio > 0.0 && against.ratio.is_finite()), "{outcome:?}");
    assert!(outcome.figures.iter().all(|figure| figure.value >= 0.0 && figure.value.is_finite()), "{outcome:?}");
}

fn figure(report: &Report, name: &str) -> f64 {
    let mut all = report.outcomes.iter().flat_map(|outcome| &outcome.figures);
    all.find(|figure| figure.name == name).unwrap_or_else(|| panic!("{name}: {report:?}")).value
}

#[tokio::test]
async fn a_store_without_a_floor_says_so() {
    let report = measured(&small("memory:bench")).await;
    assert!(report.outcomes.iter().all(|outcome| outcome.against.is_empty()));
    assert!(report.to_string().contains("no floor"));
    assert_eq!(figure(&report, "leases lost"), 0.0);
}

#[tokio::test]
async fn a_directory_is_measured_next_to_its_system_calls_and_left_clean() {
    let directory = tempfile::tempdir().unwrap();
    let report = measured(&small(format!("file:{}", directory.path().display()))).await;
    let with_floor = report.outcomes.iter().filter(|outcome| outcome.work != Work::Leases);
    assert!(with_floor.into_iter().all(|outcome| outcome.against.len() == 1), "{report:?}");
    assert!(report.to_string().contains("the store has no server"));
    let left: Vec<_> = directory.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn redis_is_measured_next_to_its_commands_and_left_clean() {
    let server = RedisServer::start();
    let report = measured(&small(server.url())).await;
    assert_eq!(report.outcomes[1].against.len(), 2, "the connection, and the blocking socket below it");
    assert!(figure(&report, "script calls per hand-over") >= 2.0, "the release and the confirmation");
    assert!(figure(&report, "renewals") >= 50.0);
    assert!(figure(&report, "commands sent per 100 renewals") < 100.0, "many leases share a command");
    let locks = Locks::open(&server.url()).await.unwrap();
    assert!(locks.store().inspect(None).await.unwrap().is_empty(), "no lock of ours stays");
}

/// From the release on its way there to the answer that confirms the hand-over lie two round trips.
#[tokio::test]
async fn a_store_at_a_distance_is_as_far_for_ours_as_for_the_floor() {
    let server = RedisServer::start();
    let distance = Duration::from_millis(10);
    let plan = Plan { only: vec![Work::HandOver], distance: Some(distance), ..small(server.url()) };
    let report = fencepost_bench::run(&plan, &mut |_, _| {}).await.unwrap();
    assert_eq!(report.store, StoreUrl::parse(&server.url()).unwrap().to_string(), "told as it was given");
    for outcome in &report.outcomes {
        assert!(outcome.against[0].latency.p50_us >= 10_000.0, "{outcome:?}");
        assert!(outcome.latency.unwrap().p50_us >= 20_000.0, "{outcome:?}");
    }
}

#[tokio::test]
async fn followed_masters_are_measured_next_to_their_commands_and_left_clean() {
    let (sentinels, cluster) = (SentinelSet::start(), ClusterSet::start());
    for url in [sentinels.url(), cluster.url()] {
        let report = measured(&small(&url)).await;
        assert_eq!(report.outcomes[1].against.len(), 1, "{url}");
        assert!(figure(&report, "script calls per hand-over") >= 2.0, "{url}: the release and the confirmation");
        assert_eq!(figure(&report, "leases lost"), 0.0, "{url}");
        let locks = Locks::open(&url).await.unwrap();
        assert!(locks.store().inspect(None).await.unwrap().is_empty(), "no lock of ours stays");
    }
}

#[tokio::test]
async fn a_redlock_is_measured_next_to_the_same_commands_to_all_and_left_clean() {
    let servers: Vec<_> = (0..3).map(|_| RedisServer::start()).collect();
    let hosts: Vec<_> = servers.iter().map(|server| server.address().to_string()).collect();
    let url = format!("redlock://{}?restart_guard=0&node_timeout=1s", hosts.join(","));
    let report = measured(&small(&url)).await;
    assert_eq!(report.outcomes[1].against.len(), 1);
    assert!(figure(&report, "script calls per hand-over") >= 6.0, "a release and a confirmation at each server");
    assert_eq!(figure(&report, "leases lost"), 0.0);
    let locks = Locks::open(&url).await.unwrap();
    assert!(locks.store().inspect(None).await.unwrap().is_empty(), "no lock of ours stays");
}

#[tokio::test]
async fn etcd_is_measured_next_to_its_requests_and_left_clean() {
    let cluster = EtcdCluster::start(1);
    let report = measured(&small(cluster.url())).await;
    assert_eq!(report.outcomes[1].against.len(), 1);
    let commits = figure(&report, "commits per hand-over");
    assert!((1.0..2.0).contains(&commits), "the release, and now and then a session: {commits}");
    assert!(figure(&report, "renewals") >= 50.0);
    assert!(figure(&report, "commands sent per 100 renewals") < 100.0, "many leases share a request");
    assert_eq!(cluster.etcdctl(&["get", "--prefix", "", "--keys-only"]), "", "no key of ours stays");
}

#[tokio::test]
async fn postgres_is_measured_next_to_its_statements_and_left_clean() {
    let server = PostgresServer::start_with(&["shared_preload_libraries=pg_stat_statements"]);
    let url = server.url("postgres");
    let config = fencepost_postgres::PostgresConfig::from_url(fencepost::url::StoreUrl::parse(&url).unwrap()).unwrap();
    fencepost_postgres::migrate(&config).await.unwrap();
    let report = measured(&small(&url)).await;
    assert_eq!(report.outcomes[1].against.len(), 1);
    assert!(figure(&report, "renewals") >= 50.0);
    assert_eq!(figure(&report, "leases lost"), 0.0);
    assert!(report.to_string().contains("no extension pg_stat_statements"), "{report}");
    server.sql("postgres", "CREATE EXTENSION pg_stat_statements");
    let counted = measured(&small(&url)).await;
    assert!(figure(&counted, "statements per hand-over") >= 2.0, "a release and a confirmation: {counted}");
    assert!(!counted.to_string().contains("counted: "), "{counted}");
    let held = "SELECT count(*) FROM fencepost.locks WHERE owner IS NOT NULL";
    assert_eq!(server.value("postgres", held), "0", "no lock of ours stays");
}

#[tokio::test]
async fn zookeeper_is_measured_next_to_its_requests_and_left_clean() {
    let server = ZooKeeperServer::start();
    let report = measured(&small(server.url())).await;
    assert_eq!(report.outcomes[1].against.len(), 2, "the bare requests, and kazoo's lock");
    let transactions = figure(&report, "transactions per hand-over");
    assert!((1.0..4.0).contains(&transactions), "the release, and now and then a heartbeat: {transactions}");
    assert!(figure(&report, "renewals") >= 50.0);
    let locks = Locks::open(&server.url()).await.unwrap();
    assert!(locks.store().inspect(None).await.unwrap().is_empty(), "no lock of ours stays");
}

/// Asked for by name only.
#[tokio::test]
async fn primitives_and_crowds_are_measured_where_the_store_has_them() {
    let server = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    for url in [server.url(), format!("file:{}", directory.path().display())] {
        let only = vec![Work::Primitives, Work::Crowds];
        let plan = Plan { only, crowd: 120, ..small(url) };
        let report = fencepost_bench::run(&plan, &mut |_, _| {}).await.unwrap();
        for name in ["a reader", "one of 100 permits", "a writer that becomes a reader", "three locks at once"] {
            assert!(figure(&report, &format!("{name}, times a plain lock")) > 0.0);
        }
        assert!(figure(&report, "a reader comes in beside the others, each") > 0.0);
        assert!(figure(&report, "a permit of 100 goes to the next who waits, each") > 0.0);
    }
}

#[tokio::test]
async fn the_form_for_programs_is_stable() {
    let plan = Plan { only: vec![Work::Alone], ..small("memory:form") };
    let report = fencepost_bench::run(&plan, &mut |_, _| {}).await.unwrap();
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["schema"], &json["store"]), (&1.into(), &"memory:form".into()));
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&json), ["cores", "outcomes", "schema", "store"]);
    let outcome = &json["outcomes"][0];
    assert_eq!(keys(outcome), ["against", "figures", "latency", "notes", "per_second", "size", "work"]);
    assert_eq!(keys(&outcome["latency"]), ["p50_us", "p99_us", "samples"]);
    assert_eq!(outcome["work"], "alone");
}

/// Asked for by name only. Our own runtime of one thread: nothing that waits is forgotten for long.
#[tokio::test]
async fn who_waits_is_passed_by_nobody_who_comes_later() {
    let server = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    for url in [server.url(), format!("file:{}", directory.path().display())] {
        let plan = Plan { only: vec![Work::Fairness], ..small(url) };
        let report = fencepost_bench::run(&plan, &mut |_, _| {}).await.unwrap();
        assert!(figure(&report, "of them had waited") > 0.0, "{report}");
        assert!(figure(&report, "the most for one who waited") <= 2.0, "{report}");
    }
}

/// Asked for by name only. What loses money is found out, and is nothing but the bare commands.
#[tokio::test]
async fn transfers_are_measured_with_a_lock_and_without_and_lose_nothing() {
    let (redis, postgres) = (RedisServer::start(), PostgresServer::start());
    let beside = postgres.url("postgres");
    let config = fencepost_postgres::PostgresConfig::from_url(StoreUrl::parse(&beside).unwrap()).unwrap();
    fencepost_postgres::migrate(&config).await.unwrap();
    let only = vec![Work::Transfers];
    let plan = Plan {
        only,
        total: Duration::from_secs(3),
        beside: vec![beside],
        workers: vec![1, 8],
        accounts: vec![2],
        ..Plan::new(redis.url())
    };
    let report = fencepost_bench::run(&plan, &mut |_, _| {}).await.unwrap();
    for outcome in &report.outcomes {
        assert_eq!(outcome.transfers.len(), 10, "{report}");
        for transfer in &outcome.transfers {
            assert!(transfer.per_second > 0.0 && transfer.by_lock > 0.0, "{report}");
            assert!(transfer.lost == 0 || transfer.way == Way::Bare, "{report}");
        }
    }
    for bare in report.outcomes[1].transfers.iter().filter(|transfer| transfer.way == Way::Bare) {
        assert_ne!(bare.lost, 0, "eight who keep nobody away from two accounts lose transfers: {report}");
    }
    assert_eq!(postgres.value("postgres", "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'bench%'"), "0");
    let left = redis.command(&["KEYS", "bench/*"]);
    assert!(matches!(&left, fencepost_servers::Reply::List(keys) if keys.is_empty()), "{left:?}");

    let page = fencepost_bench::page(&serde_json::to_string(&report).unwrap()).unwrap();
    assert!(
        page.table.contains("| PostgreSQL | one statement |") && page.table.contains("**wrong**"),
        "{}",
        page.table
    );
    assert!(page.picture.starts_with("<svg") && page.picture.contains("prefers-color-scheme:dark"), "{}", page.picture);

    let elsewhere = Plan { only: vec![Work::Transfers], ..small("memory:transfers") };
    let refused = fencepost_bench::run(&elsewhere, &mut |_, _| {}).await.unwrap_err().to_string();
    assert!(refused.contains("measured on redis: and postgres:"), "{refused}");
}

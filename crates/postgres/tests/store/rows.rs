//! Rows and transactions: what is written, who waits for whom, whose clock counts.

use fencepost_core::{
    cells::{Change, Expected},
    claim::{Claimed, Mode, Patience, Renewal},
    error::{Applied, ErrorKind},
    limits::Ttl,
    store::Store,
};
use fencepost_servers::PostgresServer;

use super::{
    SOON, TTL, claim, claim_as, claim_of, client, eventually, granted, migrated, ms, name, open, queued, renewed,
    within,
};

/// Bytes of the write-ahead log so far.
pub(super) fn wal(server: &PostgresServer) -> u64 {
    server.value("postgres", "SELECT pg_current_wal_insert_lsn() - '0/0'").parse().unwrap()
}

/// Locks a row for so long, as a session that was forgotten would.
pub(super) fn lock_row(server: &PostgresServer, lock: &str, seconds: f64) -> std::thread::JoinHandle<()> {
    let hold = format!(
        "BEGIN; SELECT FROM fencepost.locks WHERE name = '{lock}' FOR UPDATE; SELECT pg_sleep({seconds}); COMMIT"
    );
    let administrator = server.administrator();
    std::thread::spawn(move || drop(administrator.sql("postgres", &hold)))
}

pub(super) async fn row_is_locked(server: &PostgresServer) {
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    eventually(SOON, "the row is locked", async || server.value("postgres", sleeping) == "1").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_try_writes_nothing() {
    let server = migrated(&["autovacuum=off", "bgwriter_lru_maxpages=0"]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    granted(&a, &claim("x", TTL)).await;
    let try_once = async || assert!(matches!(b.claim(&claim("x", TTL), Patience::Once).await, Ok(Claimed::Busy(_))));
    try_once().await; // the first look at the row may note that its writer has committed
    server.sql("postgres", "CHECKPOINT");
    let before = wal(&server);
    for _ in 0..20 {
        try_once().await;
    }
    // The server itself writes a record of running transactions now and then.
    let written = wal(&server) - before;
    assert!(written < 200, "{written} bytes for 20 busy tries");
}

/// What the log of writes grows by; with `--nocapture` it prints the figures of the store's page.
#[tokio::test(flavor = "multi_thread")]
async fn each_operation_writes_little() {
    let server = migrated(&["autovacuum=off", "bgwriter_lru_maxpages=0"]).await;
    for (mode, renewal_at_most) in [("lease", 350), ("session", 0)] {
        let store = open(&format!("{}?mode={mode}", server.url("postgres"))).await.unwrap();
        let kept = claim(&format!("kept {mode}"), TTL);
        granted(&store, &kept).await;
        let cycle = async |locks: &[&str]| {
            let taken = claim_of(locks, TTL, Mode::Exclusive);
            granted(&store, &taken).await;
            store.release(&taken.holding).await.unwrap();
        };
        cycle(&["a", "b", "c"]).await;
        server.sql("postgres", "CHECKPOINT");
        let one = written(&server, async || cycle(&["a"]).await).await;
        let three = written(&server, async || cycle(&["a", "b", "c"]).await).await;
        let renewal = written(&server, async || assert!(renewed(&store, &kept).await.is_ok())).await;
        println!("{mode}: take and release {one} bytes, of three in one step {three}, renewal {renewal}");
        // The server itself writes a record of running transactions now and then.
        assert!(one < 700 && three < 1900 && renewal <= renewal_at_most + 5, "{one}, {three} and {renewal} bytes");
    }
}

/// Bytes for each of fifty.
async fn written(server: &PostgresServer, mut operation: impl AsyncFnMut()) -> u64 {
    let before = wal(server);
    for _ in 0..50 {
        operation().await;
    }
    (wal(server) - before) / 50
}

/// A lease that runs out while a claim waits for the row has run out for that claim. `now()` is the time before the wait.
#[tokio::test(flavor = "multi_thread")]
async fn t2_expiry_is_judged_after_the_wait_for_the_row() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let warm_up = claim("y", TTL);
    granted(&a, &warm_up).await;
    queued(&b, &claim("y", TTL)).await; // it listens from now on
    granted(&a, &claim("x", ms(600))).await;
    let holding = lock_row(&server, "x", 1.2);
    row_is_locked(&server).await;
    let late = claim("x", TTL);
    let answer = b.claim(&late, Patience::Queue).await.unwrap();
    assert!(matches!(answer, Claimed::Granted(_)), "{answer:?}");
    holding.join().unwrap();
}

/// Another's grants, under way while a claim waits for the row. A number that is drawn before the wait, as `nextval()` in the
/// `VALUES` of an upsert is, would come too low.
#[tokio::test(flavor = "multi_thread")]
async fn f1_a_fence_is_drawn_after_the_wait_for_the_row() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    let earlier = claim("x", TTL);
    granted(&store, &earlier).await;
    store.release(&earlier.holding).await.unwrap();
    let others = "BEGIN; UPDATE fencepost.locks SET fence = fence + 100 WHERE name = 'x'; SELECT pg_sleep(0.8); COMMIT";
    let administrator = server.administrator();
    let granting = std::thread::spawn(move || drop(administrator.sql("postgres", others)));
    row_is_locked(&server).await;
    let fence = granted(&store, &claim("x", TTL)).await.fence.unwrap().get();
    assert_eq!(fence, 102);
    granting.join().unwrap();
}

/// A row that went with its holder would cost the name its fence, or every release a write to the row of the floor.
#[tokio::test(flavor = "multi_thread")]
async fn f4_a_release_leaves_the_row_with_its_fence() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let (holder, waiter) = (claim("x", TTL), claim("x", TTL));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    a.release(&holder.holding).await.unwrap(); // handed on
    within(SOON, "the turn", b.turn(&waiter)).await.unwrap();
    b.release(&waiter.holding).await.unwrap(); // nobody waits
    let kept = "SELECT string_agg(name || fence, ' ') || ', floor ' || (SELECT floor FROM fencepost.state) FROM fencepost.locks";
    assert_eq!(server.value("postgres", kept), "x2, floor 0");
}

/// A forgotten transaction in somebody's console must not cost other leases.
#[tokio::test(flavor = "multi_thread")]
async fn r1_a_row_that_somebody_else_has_locked_stops_no_other_renewal() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    let claims = [claim("a", TTL), claim("b", TTL), claim("c", TTL)];
    for claim in &claims {
        granted(&store, claim).await;
    }
    let holding = lock_row(&server, "b", 1.0);
    row_is_locked(&server).await;
    let answers = within(ms(800), "renewals wait for nobody", store.renew(&claims)).await;
    assert!(matches!(answers[0], Ok(Renewal::Renewed { .. })) && matches!(answers[2], Ok(Renewal::Renewed { .. })));
    let locked = answers[1].as_ref().unwrap_err();
    assert_eq!((locked.kind(), locked.applied()), (ErrorKind::Unavailable, Applied::No), "{locked}");
    holding.join().unwrap();
    assert!(matches!(renewed(&store, &claims[1]).await, Ok(Renewal::Renewed { .. })));
}

/// A claim that cannot have the row in time says so, and the connection goes on.
#[tokio::test(flavor = "multi_thread")]
async fn c2_a_row_that_stays_locked_is_unavailable_and_not_busy() {
    let server = migrated(&[]).await;
    let store = client(&server).await; // it waits for a row for 2.25 s, and for an answer for 3 s
    let holder = claim("x", TTL);
    granted(&store, &holder).await;
    store.release(&holder.holding).await.unwrap();
    let holding = lock_row(&server, "x", 5.0);
    row_is_locked(&server).await;
    let error = store.claim(&claim("x", TTL), Patience::Once).await.unwrap_err();
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
    granted(&store, &claim("y", TTL)).await;
    holding.join().unwrap();
}

/// An hour back and an expiry taken off look the same: the lease lasts one TTL from the next look at it.
#[tokio::test(flavor = "multi_thread")]
async fn t2_a_clock_that_went_back_costs_one_ttl() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    granted(&a, &claim("x", ms(700))).await;
    server.sql("postgres", "UPDATE fencepost.locks SET expires_at = expires_at + interval '1 hour'");
    let waiter = claim("x", TTL);
    queued(&b, &waiter).await;
    within(SOON, "a dead holder's lock passes on", b.turn(&waiter)).await.unwrap();
}

/// The lock is released before the first waiter's connection for messages is there, while the second one has one.
#[tokio::test(flavor = "multi_thread")]
async fn w3_a_waiter_that_does_not_hear_yet_keeps_its_turn() {
    let server = migrated(&[]).await;
    let (a, b, c) = (client(&server).await, client(&server).await, client(&server).await);
    granted(&a, &claim("warm-up", TTL)).await;
    queued(&c, &claim("warm-up", TTL)).await;
    let hears = "SELECT count(*) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND objsubid = 2";
    eventually(SOON, "the second one hears", async || server.value("postgres", hears) == "1").await;
    let (holder, first, second) = (claim("x", TTL), claim("x", TTL), claim("x", TTL));
    granted(&a, &holder).await;
    let release = async {
        queued(&b, &first).await;
        queued(&c, &second).await;
        a.release(&holder.holding).await.unwrap();
    };
    release.await;
    let second_turn = tokio::spawn({
        let (c, second) = (c.clone(), second.clone());
        async move { c.turn(&second).await }
    });
    within(SOON, "first come, first served", b.turn(&first)).await.unwrap();
    assert!(!second_turn.is_finished(), "the second came first");
    b.release(&first.holding).await.unwrap();
    within(SOON, "then the second", second_turn).await.unwrap().unwrap();
}

/// A time is an instant, whatever each session calls it. Source: ShedLock 231, 1876, 3577.
#[tokio::test(flavor = "multi_thread")]
async fn t2_sessions_in_different_time_zones_agree() {
    let server = migrated(&[]).await;
    let mut stores = Vec::new();
    for (role, zone) in [("east", "Pacific/Kiritimati"), ("west", "Pacific/Pago_Pago")] {
        server
            .sql("postgres", &format!("CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET timezone = '{zone}'"));
        stores.push(open(&format!("postgres://{role}@{}/postgres", server.address())).await.unwrap());
    }
    for (holds, wants) in [(0, 1), (1, 0)] {
        let lock = format!("{holds}");
        let ttl = ms(1500);
        let (dead, waiter) = (claim(&lock, ttl), claim(&lock, TTL));
        let before = super::now();
        granted(&stores[holds], &dead).await;
        let Ok(Claimed::Queued(busy)) = stores[wants].claim(&waiter, Patience::Queue).await else {
            panic!("it is held")
        };
        let left = busy.holder.unwrap().expires_in.unwrap();
        assert!(left <= ttl, "{left:?}");
        within(SOON, "the turn", stores[wants].turn(&waiter)).await.unwrap();
        assert!(super::now().since(before) > ttl * 9 / 10, "not before its end");
        assert!(stores[holds].inspect(Some(&name(&lock))).await.unwrap()[0].holders[0].expires_in > Some(TTL - SOON));
    }
}

/// Names that nobody uses are forgotten; their fences are not.
#[tokio::test(flavor = "multi_thread")]
async fn f4_a_forgotten_names_fence_goes_on() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    let mut last = 0;
    for _ in 0..3 {
        let holder = claim("x", TTL);
        let fence = granted(&store, &holder).await.fence.unwrap().get();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        assert_eq!(server.value("postgres", "SELECT fencepost.tidy('fencepost', '0')"), "0", "it is held");
        store.release(&holder.holding).await.unwrap();
        assert_eq!(server.value("postgres", "SELECT fencepost.tidy('fencepost', '0')"), "1");
    }
    let refused = server.try_sql("postgres", "TRUNCATE fencepost.locks").unwrap_err();
    assert!(refused.contains("fences"), "{refused}");
}

/// Somebody takes the expiry off by hand. It counts for one TTL from when that is noticed, and can be looked at meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn t2_an_endless_lease_ends_after_its_ttl() {
    let server = migrated(&[]).await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let (a, b) = (client(&server).await, client(&server).await);
        let lock = format!("{mode:?}");
        let (holder, waiter) = (claim_as(&lock, ms(1000), mode), claim(&lock, TTL));
        granted(&a, &holder).await;
        queued(&b, &waiter).await;
        server.sql(
            "postgres",
            "UPDATE fencepost.locks SET expires_at = 'infinity' WHERE owner IS NOT NULL; \
             UPDATE fencepost.claims SET expires_at = 'infinity' WHERE holds",
        );
        let shown = b.inspect(Some(&name(&lock))).await.unwrap();
        assert!(shown[0].holders[0].expires_in.is_some_and(|left| left <= ms(1000)), "{shown:?}");
        within(SOON * 2, "it ends", b.turn(&waiter)).await.unwrap();
    }
    let store = client(&server).await;
    let change = Change::write(name("cell"), Expected::Absent, *b"1").unwrap().expiring(Ttl::new(TTL).unwrap());
    store.cells().unwrap().change(&change).await.unwrap();
    server.sql("postgres", "UPDATE fencepost.cells SET expires_at = 'infinity'");
    let cell = store.cells().unwrap().read(&change.key).await.unwrap().unwrap();
    assert_eq!(cell.expires_in, None);
}

/// Settings of a role are meant for its other work: ours goes on under all of them.
/// Source: pgmigrate 26; open-mercato 4364.
#[tokio::test(flavor = "multi_thread")]
async fn a_roles_time_limits_end_no_statement_of_ours() {
    let server = migrated(&[]).await;
    server.sql("postgres", "CREATE ROLE app LOGIN SUPERUSER");
    let url = format!("postgres://app@{}/postgres", server.address());
    for setting in [
        "statement_timeout = '1ms'",
        "lock_timeout = '1ms'",
        "idle_in_transaction_session_timeout = '1ms'",
        "idle_session_timeout = '200ms'",
        "default_transaction_isolation = 'serializable'",
        "synchronous_commit = off",
        "timezone = 'Pacific/Kiritimati'",
        "search_path = nowhere",
        "client_encoding = 'LATIN1'",
    ] {
        server.sql("postgres", &format!("ALTER ROLE app SET {setting}"));
    }
    for mode in ["lease", "session"] {
        let url = format!("{url}?mode={mode}");
        let (a, b) = (open(&url).await.unwrap(), open(&url).await.unwrap());
        let (holder, waiter) = (claim("이름", TTL), claim("이름", TTL));
        granted(&a, &holder).await;
        queued(&b, &waiter).await;
        tokio::time::sleep(ms(500)).await;
        assert!(matches!(renewed(&a, &holder).await, Ok(Renewal::Renewed { .. })));
        let shown = a.inspect(Some(&name("이름"))).await.unwrap();
        assert!(shown[0].holders[0].expires_in.is_none_or(|left| left > TTL - SOON));
        a.release(&holder.holding).await.unwrap();
        within(SOON, "the turn comes", b.turn(&waiter)).await.unwrap();
        b.release(&waiter.holding).await.unwrap();
    }
    let kept = "SELECT count(*) FROM pg_db_role_setting, unnest(setconfig) AS s WHERE s LIKE 'statement_timeout=1ms'";
    assert_eq!(server.value("postgres", kept), "1", "the user's settings are as they were");
}

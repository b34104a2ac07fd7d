//! Behind a real PgBouncer in transaction mode, where each transaction may go over another connection.

use fencepost_core::{
    claim::Patience,
    error::{Applied, ErrorKind},
    store::Store,
};
use fencepost_servers::PgBouncer;

use super::{SOON, TTL, claim, client, eventually, granted, migrated, open, queued, renewed, within};

/// One that refuses our settings at the start of a connection, and one that drops them.
const POOLERS: [&[&str]; 2] = [&[], &["ignore_startup_parameters = options"]];

#[tokio::test(flavor = "multi_thread")]
async fn leases_work_behind_a_pooler_and_waiters_poll() {
    let server = migrated(&[]).await;
    for settings in POOLERS {
        let pooler = PgBouncer::before(server.address(), 3, settings);
        let (a, b) = (open(&pooler.url("postgres")).await.unwrap(), open(&pooler.url("postgres")).await.unwrap());
        let direct = client(&server).await;
        let lock = format!("x{}", settings.len());
        let (holder, first, second) = (claim(&lock, TTL), claim(&lock, TTL), claim(&lock, TTL));
        let before = granted(&a, &holder).await.fence;
        queued(&b, &first).await;
        queued(&direct, &second).await;
        for _ in 0..3 {
            renewed(&a, &holder).await.unwrap();
        }
        a.release(&holder.holding).await.unwrap();
        let grant = within(SOON, "one that polls has its turn", b.turn(&first)).await.unwrap();
        assert!(grant.fence > before);
        b.release(&first.holding).await.unwrap();
        within(SOON, "and one that hears", direct.turn(&second)).await.unwrap();
        let left = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock'";
        let only_direct = "the one that hears has its own, and no session state is left on the pooler's connections";
        eventually(SOON, only_direct, async || server.value("postgres", left) == "1").await;
        let listening = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND state = 'idle'";
        assert!(["0", "1"].contains(&&*server.value("postgres", listening)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_behind_a_pooler_is_refused() {
    let server = migrated(&[]).await;
    for settings in POOLERS {
        let pooler = PgBouncer::before(server.address(), 3, settings);
        let url = format!("{}?mode=session", pooler.url("postgres"));
        let error = within(SOON, "an answer at once", open(&url)).await.expect_err("a session there is nobody's");
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("pooler") && error.advice().unwrap().contains("mode=lease"), "{error}");
    }
}

/// Our own settings cannot be made there, so that the role's time limits end our statements too. It is told, and nothing is changed.
#[tokio::test(flavor = "multi_thread")]
async fn a_roles_time_limits_count_behind_a_pooler_and_are_told() {
    let server = migrated(&[]).await;
    let holder = claim("x", TTL);
    let direct = client(&server).await;
    granted(&direct, &holder).await;
    direct.release(&holder.holding).await.unwrap();
    for (setting, said) in
        [("statement_timeout = '300ms'", "time limit"), ("lock_timeout = '300ms'", "locked the lock's row")]
    {
        server.sql("postgres", &format!("ALTER ROLE postgres SET {setting}"));
        let pooler = PgBouncer::before(server.address(), 1, &[]);
        let store = open(&pooler.url("postgres")).await.unwrap();
        server.sql("postgres", "ALTER ROLE postgres RESET ALL"); // the pooler's one connection has it
        let holding = super::rows::lock_row(&server, "x", 2.0);
        super::rows::row_is_locked(&server).await;
        let error = store.claim(&claim("x", TTL), Patience::Once).await.unwrap_err();
        assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::No), "{error}");
        assert!(error.to_string().contains(said), "{error}");
        if setting.starts_with("statement") {
            assert!(error.advice().unwrap().contains("statement_timeout"), "{error}");
        }
        holding.join().unwrap();
        assert_eq!(server.value("postgres", "SELECT fence FROM fencepost.locks WHERE owner IS NULL"), "1");
    }
}

//! Another user of the database, who may create something in a schema of our role's `search_path`.

use fencepost_core::{
    cells::{Change, Changed, Expected},
    claim::{Attempt, Claimed, Mode, Patience, Release},
    limits::Wait,
    name::Namespace,
    store::Store,
};
use fencepost_postgres::{
    fenced::{FencedTable, fence_table},
    migrate,
    transaction::xact,
};
use fencepost_servers::{PgBouncer, PostgresServer};

use tokio_postgres::NoTls;

use super::{SOON, TTL, claim, claim_as, claim_of, config, granted, name, open, queued, renewed, within};

/// Functions and operators that fit expressions of ours better than the server's own, of the very types where those convert or
/// take any; and some that fit as well, which count where `public` comes first. Each remembers who ran it.
fn plant(server: &PostgresServer, database: &str) {
    server.sql(
        database,
        "CREATE TABLE public.ran (what text, by text DEFAULT current_user); GRANT INSERT ON public.ran TO PUBLIC; \
         GRANT CREATE, USAGE ON SCHEMA public TO mallory",
    );
    let mut script = "SET ROLE mallory;".to_owned();
    let mut function = |name: &str, takes: &str, answers: &str, text: &str| {
        script.push_str(&format!(
            "CREATE FUNCTION public.{name}({takes}) RETURNS {answers} LANGUAGE plpgsql AS $$ BEGIN \
             INSERT INTO public.ran VALUES ('{name}({takes})'); RETURN {text}; END $$;"
        ));
    };
    function("ago", "bigint, interval", "interval", "-interval '1 hour'");
    function("ago", "integer, interval", "interval", "-interval '1 hour'");
    function("later", "timestamptz, interval", "timestamptz", "'infinity'");
    function("thousand", "numeric, integer", "numeric", "0::numeric");
    function("more", "bigint, integer", "bigint", "7");
    function("beside", "text, integer", "text", "'nowhere'");
    function("beside", "text, bigint", "text", "'nowhere'");
    function("beside", "text, text", "text", "'nowhere'");
    function("appended", "text[], text", "text[]", "'{}'::text[]");
    for both in ["text", "bytea", "integer", "bigint", "timestamptz"] {
        function("always", &format!("{both}, {both}"), "boolean", "true");
    }
    function("always", "bigint, integer", "boolean", "true");
    function("to_json", "record", "json", "NULL::json");
    function("to_jsonb", "record", "jsonb", "NULL::jsonb");
    function("to_jsonb", "public.ran", "jsonb", "NULL::jsonb");
    function("cardinality", "text[]", "integer", "0");
    function("unnest", "bigint[]", "bigint", "0");
    function("unnest", "integer[]", "integer", "0");
    function("array_agg", "integer", "integer[]", "'{}'::integer[]");
    function("clock_timestamp", "", "timestamptz", "'infinity'");
    function("pg_postmaster_start_time", "", "timestamptz", "'infinity'");
    function("pg_try_advisory_lock", "integer, integer", "boolean", "true");
    function("pg_try_advisory_xact_lock", "bigint", "boolean", "true");
    function("pg_is_in_recovery", "", "boolean", "false");
    function("version", "", "text", "'PostgreSQL 99'");
    function("current_setting", "text", "text", "'on'");
    function("current_setting", "text, boolean", "text", "'on'");
    function("fits", "pg_catalog.text", "boolean", "true");
    for (operator, function, left, right) in [
        ("*", "ago", "bigint", "interval"),
        ("*", "ago", "integer", "interval"),
        ("*", "thousand", "numeric", "integer"),
        ("+", "later", "timestamptz", "interval"),
        ("+", "more", "bigint", "integer"),
        ("||", "beside", "text", "integer"),
        ("||", "beside", "text", "bigint"),
        ("||", "beside", "text", "text"),
        ("||", "appended", "text[]", "text"),
        ("=", "always", "text", "text"),
        ("=", "always", "bytea", "bytea"),
        ("=", "always", "integer", "integer"),
        ("=", "always", "bigint", "bigint"),
        ("=", "always", "timestamptz", "timestamptz"),
        (">", "always", "timestamptz", "timestamptz"),
        (">=", "always", "bigint", "integer"),
    ] {
        script.push_str(&format!(
            "CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{function});"
        ));
    }
    // Last, since from here on it is what everybody's `text` means where `public` comes first.
    script.push_str("CREATE DOMAIN public.text AS pg_catalog.text CHECK (public.fits(VALUE));");
    server.sql(database, &script);
}

/// What was run, and by whom. In full, for the same reason as everything else.
fn ran(server: &PostgresServer, database: &str) -> String {
    server.value(database, "SELECT coalesce(string_agg(DISTINCT what, '; '), '') FROM public.ran")
}

/// A server with a database of which another user owns a part, and a pooler before it.
async fn with_mallory(database: &str, path: Option<&str>) -> (PostgresServer, PgBouncer) {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE ROLE mallory LOGIN");
    if database != "postgres" {
        server.sql("postgres", &format!("CREATE DATABASE {database}"));
    }
    if let Some(path) = path {
        server.sql("postgres", &format!("ALTER DATABASE {database} SET search_path = {path}"));
    }
    migrate(&config(&server.url(database))).await.unwrap();
    plant(&server, database);
    let pooler = PgBouncer::before(server.address(), 3, &[]);
    (server, pooler)
}

/// Every verb, each on connections of our own and behind a pooler, where the path is the role's.
async fn use_everything(server: &PostgresServer, pooler: &PgBouncer, database: &str) {
    for (round, url) in [server.url(database), pooler.url(database)].iter().enumerate() {
        let (a, b) = (open(url).await.unwrap(), open(url).await.unwrap());
        let named = |what: &str| format!("{what}{round}");
        let (holder, waiter) = (claim(&named("x"), TTL), claim(&named("x"), TTL));
        granted(&a, &holder).await;
        let other = b.claim(&claim(&named("x"), TTL), Patience::Once).await.unwrap();
        assert!(matches!(other, Claimed::Busy(_)), "two owners at once: {other:?}");
        queued(&b, &waiter).await;
        renewed(&a, &holder).await.unwrap();
        let shown = a.inspect(Some(&name(&named("x")))).await.unwrap();
        let left = shown[0].holders[0].expires_in;
        assert!(left.is_some_and(|left| left > TTL - SOON && left <= TTL), "{shown:?}");
        a.release(&holder.holding).await.unwrap();
        within(SOON, "the turn", b.turn(&waiter)).await.unwrap();
        b.downgrade(&waiter).await.unwrap();
        b.force(waiter.name(), None).await.unwrap();
        let free = claim(&named("free"), TTL);
        for _ in 0..2 {
            granted(&a, &free).await;
            assert_eq!(a.release(&free.holding).await.unwrap(), Release::Released);
        }
        let permits = claim_as(&named("p"), TTL, Mode::Permits { count: 2, of: 3 });
        granted(&a, &permits).await;
        a.resize(&name(&named("p")), 4).await.unwrap();
        a.release(&permits.holding).await.unwrap();
        let several = claim_of(&[&named("s"), &named("t")], TTL, Mode::Exclusive);
        granted(&a, &several).await;
        a.release(&several.holding).await.unwrap();
        let change = Change::write(name(&named("c")), Expected::Absent, *b"1").unwrap().expiring(holder.ttl);
        let changed = a.cells().unwrap().change(&change).await.unwrap();
        assert!(matches!(changed, Changed::Done(_)), "{changed:?}");
        assert!(b.cells().unwrap().read(&change.key).await.unwrap().is_some());
    }
    server.sql(database, "SELECT fencepost.tidy('fencepost', '0')");
}

/// Whatever there is to be found in the role's `search_path`, one holds, and nothing of another's runs as our role.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_another_user_has_planted_is_run() {
    let (server, pooler) = with_mallory("postgres", None).await;
    use_everything(&server, &pooler, "postgres").await;
    assert_eq!(ran(&server, "postgres"), "");
}

/// The same where the path names `public` before the server's own schema: there even what fits exactly is another's.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_anothers_is_run_where_their_schema_comes_first() {
    let (server, pooler) = with_mallory("app", Some("public, pg_catalog")).await;
    use_everything(&server, &pooler, "app").await;
    let (mut client, connection) = tokio_postgres::connect(&server.url("app"), NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut transaction = client.transaction().await.unwrap();
    let taken = xact(&mut transaction, &Namespace::default(), &name("x"), Wait::Once).await.unwrap();
    assert!(matches!(taken, Attempt::Acquired(_)), "{taken:?}");
    assert_eq!(ran(&server, "app"), "");
    assert_eq!(server.value("app", "SELECT 'a'::text"), "a");
    assert_ne!(ran(&server, "app"), "", "what was planted does run for who looks for it");
}

/// The trigger of a fenced table runs on the connections of whoever writes.
#[tokio::test(flavor = "multi_thread")]
async fn the_trigger_of_a_fenced_table_runs_nothing_of_anothers() {
    let (server, _pooler) = with_mallory("postgres", None).await;
    server.sql("postgres", "CREATE TABLE accounts (id bigint); INSERT INTO accounts VALUES (1)");
    server.sql(
        "postgres",
        "SET ROLE mallory; CREATE FUNCTION public.to_jsonb(public.accounts) RETURNS jsonb LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO public.ran VALUES ('to_jsonb'); RETURN NULL; END $$",
    );
    fence_table(&config(&server.url("postgres")), &FencedTable::new("accounts").unwrap()).await.unwrap();
    server.sql("postgres", "UPDATE accounts SET fence = 7");
    assert!(server.try_sql("postgres", "UPDATE accounts SET fence = 6").is_err());
    assert_eq!(ran(&server, "postgres"), "");
}

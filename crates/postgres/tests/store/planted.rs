//! Another user of the database, who may create something in a schema of our role's `search_path`.

use fencepost_core::{
    cells::{Change, Changed, Expected},
    claim::{Claimed, Mode, Patience},
    store::Store,
};
use fencepost_postgres::fenced::{FencedTable, fence_table};
use fencepost_servers::{PgBouncer, PostgresServer};

use super::{SOON, TTL, claim, claim_as, claim_of, config, granted, migrated, name, open, queued, renewed, within};

/// Functions and operators that fit expressions of ours better than the server's own: of the very types, where those convert or
/// take any. Each remembers who ran it.
fn plant(server: &PostgresServer) {
    server.sql(
        "postgres",
        "CREATE ROLE mallory LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO mallory; \
         CREATE TABLE public.ran (what text, by text DEFAULT current_user); GRANT INSERT ON public.ran TO PUBLIC",
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
    function("thousand", "numeric, integer", "numeric", "0::numeric");
    function("beside", "text, integer", "text", "'nowhere'");
    function("beside", "text, bigint", "text", "'nowhere'");
    function("appended", "text[], text", "text[]", "'{}'::text[]");
    function("to_json", "record", "json", "NULL::json");
    function("to_jsonb", "record", "jsonb", "NULL::jsonb");
    function("to_jsonb", "public.ran", "jsonb", "NULL::jsonb");
    function("cardinality", "text[]", "integer", "0");
    function("unnest", "bigint[]", "bigint", "0");
    function("unnest", "integer[]", "integer", "0");
    function("array_agg", "integer", "integer[]", "'{}'::integer[]");
    for (operator, function, left, right) in [
        ("*", "ago", "bigint", "interval"),
        ("*", "ago", "integer", "interval"),
        ("*", "thousand", "numeric", "integer"),
        ("||", "beside", "text", "integer"),
        ("||", "beside", "text", "bigint"),
        ("||", "appended", "text[]", "text"),
    ] {
        script.push_str(&format!(
            "CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{function});"
        ));
    }
    server.sql("postgres", &script);
}

/// Whatever there is to be found in the role's `search_path`, one holds, and nothing of another's runs as our role: on connections
/// of our own, and behind a pooler, where the path is the role's.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_another_user_has_planted_is_run() {
    let server = migrated(&[]).await;
    plant(&server);
    let pooler = PgBouncer::before(server.address(), 3, &[]);
    for (round, url) in [server.url("postgres"), pooler.url("postgres")].iter().enumerate() {
        let (a, b) = (open(url).await.unwrap(), open(url).await.unwrap());
        let named = |what: &str| format!("{what}{round}");
        let (holder, waiter) = (claim(&named("x"), TTL), claim(&named("x"), TTL));
        granted(&a, &holder).await;
        let other = b.claim(&claim(&named("x"), TTL), Patience::Once).await.unwrap();
        assert!(matches!(other, Claimed::Busy(_)), "two owners at once: {other:?}");
        queued(&b, &waiter).await;
        renewed(&a, &holder).await.unwrap();
        let shown = a.inspect(Some(&name(&named("x")))).await.unwrap();
        assert!(shown[0].holders[0].expires_in.is_some_and(|left| left > TTL - SOON), "{shown:?}");
        a.release(&holder.holding).await.unwrap();
        within(SOON, "the turn", b.turn(&waiter)).await.unwrap();
        b.downgrade(&waiter).await.unwrap();
        b.force(waiter.name(), None).await.unwrap();
        granted(&a, &claim_as(&named("p"), TTL, Mode::Permits { count: 2, of: 3 })).await;
        a.resize(&name(&named("p")), 4).await.unwrap();
        let several = claim_of(&[&named("s"), &named("t")], TTL, Mode::Exclusive);
        granted(&a, &several).await;
        a.release(&several.holding).await.unwrap();
        let change = Change::write(name(&named("c")), Expected::Absent, *b"1").unwrap().expiring(holder.ttl);
        let changed = a.cells().unwrap().change(&change).await.unwrap();
        assert!(matches!(changed, Changed::Done(_)), "{changed:?}");
        assert!(b.cells().unwrap().read(&change.key).await.unwrap().is_some());
    }
    server.sql("postgres", "SELECT fencepost.tidy('fencepost', '0')");
    assert_eq!(server.value("postgres", "SELECT coalesce(string_agg(DISTINCT what, '; '), '') FROM public.ran"), "");
}

/// The trigger of a fenced table runs on the connections of whoever writes.
#[tokio::test(flavor = "multi_thread")]
async fn the_trigger_of_a_fenced_table_runs_nothing_of_anothers() {
    let server = migrated(&[]).await;
    server.sql("postgres", "CREATE TABLE accounts (id bigint); INSERT INTO accounts VALUES (1)");
    plant(&server);
    server.sql(
        "postgres",
        "SET ROLE mallory; CREATE FUNCTION public.to_jsonb(public.accounts) RETURNS jsonb LANGUAGE plpgsql AS \
         $$ BEGIN INSERT INTO public.ran VALUES ('to_jsonb'); RETURN NULL; END $$",
    );
    fence_table(&config(&server.url("postgres")), &FencedTable::new("accounts").unwrap()).await.unwrap();
    server.sql("postgres", "UPDATE accounts SET fence = 7");
    assert!(server.try_sql("postgres", "UPDATE accounts SET fence = 6").is_err());
    assert_eq!(server.value("postgres", "SELECT count(*) FROM public.ran"), "0");
}

//! On a PostgreSQL server of Debian's package `postgresql`: from a database without tables to a job under a fence.

use fencepost_servers::PostgresServer;

use crate::world::World;

#[test]
fn a_database_is_migrated_and_jobs_run_under_its_fences() {
    let server = PostgresServer::start();
    let world = World::on(server.url("postgres"));
    let run = ["run", "report", "--", "sh", "-c", "echo $FENCEPOST_FENCE"];

    let missing = world.finish(&run);
    assert_eq!(missing.code, 78, "{}", missing.stderr);
    assert!(missing.stderr.contains("fencepost migrate"), "{}", missing.stderr);

    for (wanted, said) in [(0, "were made"), (0, "were there")] {
        let migrated = world.finish(&["migrate"]);
        assert_eq!(migrated.code, wanted, "{}", migrated.stderr);
        assert!(migrated.stderr.contains(said), "{}", migrated.stderr);
    }
    let fences: Vec<u64> = (0..3).map(|_| world.finish(&run).stdout.trim().parse().unwrap()).collect();
    assert_eq!(fences, [1, 2, 3]);
}

/// Who runs migrations by other means gets the same from the printed text.
#[test]
fn the_printed_tables_work_in_another_schema() {
    let server = PostgresServer::start();
    let world = World::on(format!("{}?schema=locks_of_ours", server.url("postgres")));
    let printed = world.finish(&["migrate", "--print"]);
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    assert!(printed.stdout.contains("GRANT"), "it says which rights are needed");
    server.sql("postgres", &printed.stdout);
    assert_eq!(world.finish(&["run", "x", "--", "true"]).code, 0);
    assert!(world.finish(&["migrate"]).stderr.contains("were there"));

    let nowhere = World::new();
    let mut unsaid = nowhere.command(&["migrate", "--print"]);
    let unsaid = unsaid.env_remove("FENCEPOST_STORE").output().unwrap();
    assert!(String::from_utf8_lossy(&unsaid.stdout).contains("CREATE TABLE fencepost.locks"));
    let refused = nowhere.finish(&["migrate"]);
    assert_eq!(refused.code, 64);
    assert!(refused.stderr.contains("postgres:"), "{}", refused.stderr);
}

#[test]
fn a_fenced_table_refuses_the_fence_of_an_earlier_run() {
    let server = PostgresServer::start();
    server.sql("postgres", "CREATE TABLE orders (id integer, state text); INSERT INTO orders VALUES (1, 'new')");
    let world = World::on(server.url("postgres"));
    assert_eq!(world.finish(&["migrate"]).code, 0);
    let printed = world.finish(&["fence-table", "orders", "--print"]).stdout;
    assert!(printed.contains("CREATE TRIGGER"), "{printed}");
    let done = world.finish(&["fence-table", "orders"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let fence =
        || world.finish(&["run", "orders/1", "--", "sh", "-c", "echo $FENCEPOST_FENCE"]).stdout.trim().to_owned();
    let (old, new) = (fence(), fence());
    let write = |fence: &str| server.try_sql("postgres", &format!("UPDATE orders SET state = 'x', fence = {fence}"));
    write(&new).unwrap();
    assert!(write(&old).unwrap_err().contains("stale"));
    assert_eq!(world.finish(&["fence-table", "nowhere"]).code, 78);
}

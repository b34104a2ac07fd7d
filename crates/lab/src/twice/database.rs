//! Copies of a PostgreSQL database.

use std::collections::BTreeMap;

use fencepost_core::owner::Owner;
use tokio_postgres::{Client, Config, NoTls};

use super::{Difference, Job, Outcome};
use crate::stage::blocking_io;

/// A table's rows, and a digest of them that does not depend on their order. Columns that are to be ignored are left out.
const CONTENT: &str = "SELECT count(*), md5(coalesce(string_agg(row, '' ORDER BY row), ''))
                       FROM (SELECT md5((to_jsonb(t) - $1::text[])::text) AS row FROM {table} AS t) AS rows";

/// What a user made: no catalogues. A partition stands beside the table that it is a part of, so that what differs there is told
/// twice.
const TABLES: &str = "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables
                      WHERE schemaname NOT IN ('pg_catalog', 'information_schema')";

const SEQUENCES: &str = "SELECT quote_ident(schemaname) || '.' || quote_ident(sequencename), coalesce(last_value, 0)
                         FROM pg_sequences";

/// Runs the job on copies of a database, whose URL it finds as `DATABASE_URL` in its environment, and never on the
/// database itself, to which nobody may be connected meanwhile. The copies are on the same server, and are removed.
/// Columns called as `ignored` says are not compared: a time of change differs from run to run.
///
/// # Errors
/// In words, when the database cannot be copied, or reached without TLS, or the command cannot be started; and when a copy cannot
/// be removed.
///
/// # Cancel safety
/// Dropped, the copies stay; they are called `fencepost_twice_` and more.
pub async fn in_databases(job: &Job, url: &str, ignored: &[String]) -> Result<Outcome, String> {
    let original: Config = url.parse().map_err(|_| "that is no URL of a PostgreSQL database".to_owned())?;
    let name = original.get_dbname().ok_or("the URL names no database")?.to_owned();
    let server = connected(&original, "postgres").await?;
    let random = Owner::random().map_err(|error| error.to_string())?.to_string();
    let copies = ["once", "twice"].map(|which| format!("fencepost_twice_{}_{which}", &random[..8]));
    let outcome = on_copies(job, &server, &original, url, &name, &copies, ignored).await;
    for copy in &copies {
        let dropped = server.batch_execute(&format!("DROP DATABASE IF EXISTS {copy} WITH (FORCE)")).await;
        dropped.map_err(|error| format!("the copy {copy} could not be removed: {}", said(&error)))?;
    }
    outcome
}

async fn on_copies(
    job: &Job,
    server: &Client,
    original: &Config,
    url: &str,
    name: &str,
    copies: &[String; 2],
    ignored: &[String],
) -> Result<Outcome, String> {
    for copy in copies {
        let template = name.replace('"', "\"\"");
        let copied = server.batch_execute(&format!("CREATE DATABASE {copy} TEMPLATE \"{template}\"")).await;
        copied.map_err(|error| format!("the database {name} could not be copied: {}", said(&error)))?;
    }
    let urls = [with_database(url, &copies[0])?, with_database(url, &copies[1])?];
    let ran = job.clone();
    let ran = blocking_io(move || {
        ran.run(|command, both| {
            command.env("DATABASE_URL", &urls[usize::from(both)]);
        })
    });
    let (once, twice) = ran.await.map_err(|error| error.to_string())?;
    let one = contents(&connected(original, &copies[0]).await?, ignored).await.map_err(|error| said(&error))?;
    let two = contents(&connected(original, &copies[1]).await?, ignored).await.map_err(|error| said(&error))?;
    Ok(Outcome { once, twice, differences: compare(&one, &two) })
}

/// A table or a sequence: rows and a digest, or its last number twice.
type Contents = BTreeMap<String, (i64, String)>;

async fn contents(database: &Client, ignored: &[String]) -> Result<Contents, tokio_postgres::Error> {
    let mut contents = Contents::new();
    for row in database.query(TABLES, &[]).await? {
        let table: String = row.get(0);
        let content = database.query_one(&CONTENT.replace("{table}", &table), &[&ignored]).await?;
        contents.insert(table, (content.get(0), content.get(1)));
    }
    for row in database.query(SEQUENCES, &[]).await? {
        contents.insert(format!("{} (sequence)", row.get::<_, String>(0)), (0, row.get::<_, i64>(1).to_string()));
    }
    Ok(contents)
}

fn compare(one: &Contents, two: &Contents) -> Vec<(String, Difference)> {
    let mut differences = Vec::new();
    for (name, (once, content)) in one {
        match two.get(name) {
            None => differences.push((name.clone(), Difference::OnlyOnce)),
            Some((twice, _)) if twice != once => {
                differences.push((name.clone(), Difference::Rows { once: *once, twice: *twice }));
            }
            Some((_, other)) if other != content => differences.push((name.clone(), Difference::Content)),
            Some(_) => {}
        }
    }
    let only_twice = two.keys().filter(|name| !one.contains_key(*name));
    differences.extend(only_twice.map(|name| (name.clone(), Difference::OnlyTwice)));
    differences.sort_by(|a, b| a.0.cmp(&b.0));
    differences
}

async fn connected(config: &Config, database: &str) -> Result<Client, String> {
    let connected = config.clone().dbname(database).connect(NoTls).await;
    let (client, connection) =
        connected.map_err(|error| format!("no connection to the database {database}: {}", said(&error)))?;
    tokio::spawn(connection);
    Ok(client)
}

/// The URL with another database in its path.
fn with_database(url: &str, database: &str) -> Result<String, String> {
    let (scheme, rest) =
        url.split_once("://").ok_or("the database is named by a URL, as in postgres://user@host/name")?;
    let (before, options) = rest.split_once('?').map_or((rest, None), |(before, options)| (before, Some(options)));
    let (authority, _) = before.split_once('/').ok_or("the URL names no database")?;
    let options = options.map(|options| format!("?{options}")).unwrap_or_default();
    Ok(format!("{scheme}://{authority}/{database}{options}"))
}

/// What the server said, without the URL.
fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, time::Duration};

    use fencepost_servers::PostgresServer;

    use super::*;

    #[test]
    fn only_the_database_of_a_url_changes() {
        let changed = |url| with_database(url, "other");
        assert_eq!(
            changed("postgres://a:b@h:1/x?sslmode=disable").as_deref(),
            Ok("postgres://a:b@h:1/other?sslmode=disable")
        );
        assert!(changed("postgres://h").is_err() && changed("host=h dbname=x").is_err());
    }

    /// psql of the server's own package does the work.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_two_at_once_do_to_a_database_is_told_and_the_database_is_left_alone() {
        let server = tokio::task::spawn_blocking(PostgresServer::start).await.expect("a server");
        server.sql("postgres", "CREATE DATABASE shop");
        server.sql(
            "shop",
            "CREATE TABLE stock (item text PRIMARY KEY, left_over int, changed timestamptz DEFAULT now())",
        );
        server.sql("shop", "CREATE TABLE orders (item text)");
        server.sql("shop", "INSERT INTO stock VALUES ('book', 10)");
        let played = async |sql: &str| {
            let script = format!("psql -qX \"$DATABASE_URL\" -c \"{sql}\"");
            let job = Job { command: ["sh", "-c", &script].map(OsString::from).to_vec(), apart: Duration::ZERO };
            let outcome = in_databases(&job, &server.url("shop"), &["changed".to_owned()]).await.expect("it runs");
            assert!(outcome.once.success());
            outcome.differences
        };
        assert_eq!(played("UPDATE stock SET left_over = 9, changed = now()").await, []);
        let counted = played("UPDATE stock SET left_over = left_over - 1").await;
        assert_eq!(counted, [("public.stock".to_owned(), Difference::Content)]);
        let added = played("INSERT INTO orders VALUES ('book')").await;
        assert_eq!(added, [("public.orders".to_owned(), Difference::Rows { once: 1, twice: 2 })]);
        assert_eq!(server.value("shop", "SELECT left_over FROM stock"), "10");
        assert_eq!(server.value("postgres", "SELECT count(*) FROM pg_database WHERE datname LIKE 'fencepost%'"), "0");
    }
}

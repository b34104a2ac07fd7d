//! Copies of a PostgreSQL database.

mod url;

use std::collections::BTreeMap;

use fencepost_core::owner::Owner;
use fencepost_postgres::Tls;
use tokio::process::Command;
use tokio_postgres::{Client, Config, NoTls, config::SslMode};

use self::url::{option_past_the_path, with_database, without_tls};
use super::{Difference, Differs, Failure, Job, Outcome};

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
/// database itself, to which nobody may be connected meanwhile. The copies are on the same server, and are removed, also when
/// `stop` completes first; the answer is `None` then. Columns called as `ignored` says are not compared: a time of change differs
/// from run to run.
///
/// # Errors
/// In words, when the database cannot be copied or reached, or the command cannot be started; and when a copy cannot be removed.
///
/// # Cancel safety
/// Dropped, the copies stay; they are called `fencepost_twice_` and more.
pub async fn in_databases(
    job: &Job,
    url: &str,
    ignored: &[String],
    stop: impl Future<Output = ()>,
) -> Result<Option<Outcome>, Failure> {
    let database = Database::at(url).map_err(Failure::Failed)?;
    let server = database.connected("postgres").await.map_err(Failure::Failed)?;
    let version = server.query_one("SELECT current_setting('server_version_num')::int", &[]).await;
    let unread = |error| Failure::Failed(format!("the server's version could not be read: {}", said(&error)));
    let version = version.map_err(unread)?.get(0);
    let random = Owner::random().map_err(|error| Failure::Failed(error.to_string()))?.to_string();
    let copies = ["once", "twice"].map(|which| format!("fencepost_twice_{}_{which}", &random[..8]));
    let outcome = tokio::select! {
        outcome = database.compared(job, &server, &copies, ignored) => outcome.map(Some),
        () = stop => Ok(None),
    };
    match (outcome, removed(&server, version, &copies).await) {
        (outcome, Ok(())) => outcome,
        (Ok(_), Err(left)) => Err(Failure::Failed(left)),
        (Err(error), Err(left)) => Err(Failure::Failed(format!("{error}; {left}"))),
    }
}

/// One that stays keeps no other.
async fn removed(server: &Client, version: i32, copies: &[String; 2]) -> Result<(), String> {
    let mut left = Vec::new();
    for copy in copies {
        if let Err(error) = server.batch_execute(&removal(version, copy)).await {
            left.push(format!("the copy {copy} could not be removed, remove it by DROP DATABASE: {}", said(&error)));
        }
    }
    if left.is_empty() { Ok(()) } else { Err(left.join("; ")) }
}

fn removal(version: i32, copy: &str) -> String {
    // Earlier ones cannot end the connections to it that the job left.
    let force = if version >= 130_000 { " WITH (FORCE)" } else { "" };
    format!("DROP DATABASE IF EXISTS {copy}{force}")
}

/// The original, and how to reach its server.
struct Database<'a> {
    url: &'a str,
    config: Config,
    name: String,
    /// With TLS where the URL says so.
    tls: Option<Tls>,
}

impl<'a> Database<'a> {
    fn at(url: &'a str) -> Result<Self, String> {
        if let Some(option) = option_past_the_path(url) {
            return Err(format!(
                "the option {option} of the URL would lead the job past its copy, to the database itself; name the \
                 database in its path alone, as in postgres://user@host/name"
            ));
        }
        let (plain, tls) = without_tls(url)?;
        let config: Config = plain.parse().map_err(|_| "that is no URL of a PostgreSQL database".to_owned())?;
        let name = config.get_dbname().ok_or("the URL names no database")?.to_owned();
        Ok(Self { url, config, name, tls })
    }

    async fn compared(
        &self,
        job: &Job,
        server: &Client,
        copies: &[String; 2],
        ignored: &[String],
    ) -> Result<Outcome, Failure> {
        let (once, twice) = (self.url_of(&copies[0])?, self.url_of(&copies[1])?);
        for copy in copies {
            let template = self.name.replace('"', "\"\"");
            let copied = server.batch_execute(&format!("CREATE DATABASE {copy} TEMPLATE \"{template}\"")).await;
            copied.map_err(|error| format!("the database {} could not be copied: {}", self.name, said(&error)))?;
        }
        let on = |url: String| {
            move |command: &mut Command| {
                command.env("DATABASE_URL", &url);
            }
        };
        let (once, twice) = (job.once(on(once)).await?, job.twice(on(twice)).await?);
        let one = contents(&self.connected(&copies[0]).await?, ignored).await.map_err(|error| said(&error))?;
        let two = contents(&self.connected(&copies[1]).await?, ignored).await.map_err(|error| said(&error))?;
        Ok(Outcome { once, twice, differences: compare(&one, &two), outside: Vec::new() })
    }

    /// The job's URL: one that leads to the copy, as the original's does to the original. Never any other, for the job changes what
    /// it is led to.
    fn url_of(&self, copy: &str) -> Result<String, String> {
        let url = with_database(self.url, copy)?;
        let (plain, _) = without_tls(&url)?;
        let mut wanted = self.config.clone();
        wanted.dbname(copy);
        if plain.parse::<Config>().is_ok_and(|config| config == wanted) {
            return Ok(url);
        }
        Err("a copy cannot be named by that URL; write it as postgres://user:password@host/name, with / and ? and @ in a \
             name or password as %2F, %3F and %40"
            .to_owned())
    }

    async fn connected(&self, database: &str) -> Result<Client, String> {
        let mut config = self.config.clone();
        config.dbname(database);
        let refused =
            |error: tokio_postgres::Error| format!("no connection to the database {database}: {}", said(&error));
        match &self.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await.map_err(refused)?;
                tokio::spawn(connection);
                Ok(client)
            }
            Some(tls) => {
                config.ssl_mode(SslMode::Require);
                let connector = tls.make_connect().map_err(|error| error.to_string())?;
                let (client, connection) = config.connect(connector).await.map_err(refused)?;
                tokio::spawn(connection);
                Ok(client)
            }
        }
    }
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

fn compare(one: &Contents, two: &Contents) -> Vec<Differs> {
    let mut differences = BTreeMap::new();
    for (name, (once, content)) in one {
        let how = match two.get(name) {
            None => Difference::OnlyOnce,
            Some((twice, _)) if twice != once => Difference::Rows { once: *once, twice: *twice },
            Some((_, other)) if other != content => Difference::Content,
            Some(_) => continue,
        };
        differences.insert(name, how);
    }
    differences.extend(two.keys().filter(|name| !one.contains_key(*name)).map(|name| (name, Difference::OnlyTwice)));
    differences.into_iter().map(|(name, how)| Differs { what: name.clone(), how }).collect()
}

/// What the server said, without the URL.
fn said(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

#[cfg(test)]
mod tests {
    use std::{ffi::OsString, future::pending, time::Duration};

    use fencepost_servers::{Certificates, PostgresServer};

    use super::*;

    #[test]
    fn no_option_of_a_url_leads_the_job_past_its_copy() {
        let url_of_copy = |url: &str| Database::at(url)?.url_of("copy");
        assert_eq!(
            url_of_copy("postgres://a:b@h:1/x?sslmode=disable&application_name=dbname").as_deref(),
            Ok("postgres://a:b@h:1/copy?sslmode=disable&application_name=dbname")
        );
        for option in ["dbname=shop", "%64bname=shop", "connect_timeout=5&dbnam%65=shop", "service=shop"] {
            let refused = url_of_copy(&format!("postgres://u@h/x?{option}")).expect_err(option);
            assert!(refused.contains("in its path alone"), "{option}: {refused}");
        }
        // Where the path begins is not for everybody where it is for us.
        let refused = url_of_copy("postgres://u:1/secret@h/x").expect_err("another server");
        assert!(refused.contains("%2F") && !refused.contains("secret"), "{refused}");
    }

    #[test]
    fn a_server_is_told_to_remove_a_copy_in_words_that_it_knows() {
        assert_eq!(removal(120_022, "copy"), "DROP DATABASE IF EXISTS copy");
        assert_eq!(removal(130_000, "copy"), "DROP DATABASE IF EXISTS copy WITH (FORCE)");
    }

    fn shop() -> PostgresServer {
        let server = PostgresServer::start();
        server.sql("postgres", "CREATE DATABASE shop");
        server.sql(
            "shop",
            "CREATE TABLE stock (item text PRIMARY KEY, left_over int, changed timestamptz DEFAULT now())",
        );
        server.sql("shop", "CREATE TABLE orders (item text)");
        server.sql("shop", "INSERT INTO stock VALUES ('book', 10)");
        server
    }

    fn copies(server: &PostgresServer) -> String {
        server.value("postgres", "SELECT count(*) FROM pg_database WHERE datname LIKE 'fencepost%'")
    }

    /// psql of the server's own package does the work.
    async fn played(url: &str, sql: &str) -> Vec<(String, Difference)> {
        let script = format!("psql -qX \"$DATABASE_URL\" -c \"{sql}\"");
        let job = Job { command: ["sh", "-c", &script].map(OsString::from).to_vec(), apart: Duration::ZERO };
        let outcome = in_databases(&job, url, &["changed".to_owned()], pending()).await;
        let outcome = outcome.expect("it runs").expect("to its end");
        assert!(outcome.once.well());
        outcome.differences.into_iter().map(|one| (one.what, one.how)).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_two_at_once_do_to_a_database_is_told_and_the_database_is_left_alone() {
        let server = tokio::task::spawn_blocking(shop).await.expect("a server");
        let url = server.url("shop");
        assert_eq!(played(&url, "UPDATE stock SET left_over = 9, changed = now()").await, []);
        let counted = played(&url, "UPDATE stock SET left_over = left_over - 1").await;
        assert_eq!(counted, [("public.stock".to_owned(), Difference::Content)]);
        let added = played(&url, "INSERT INTO orders VALUES ('book')").await;
        assert_eq!(added, [("public.orders".to_owned(), Difference::Rows { once: 1, twice: 2 })]);
        assert_eq!(server.value("shop", "SELECT left_over FROM stock"), "10");
        assert_eq!(copies(&server), "0");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_that_demands_tls_is_copied_over_it() {
        let server = tokio::task::spawn_blocking(shop).await.expect("a server");
        let files = Certificates::make(&[], "client");
        server.encrypt(&files.path("server.pem"), &files.path("server.key"), &files.path("ca.pem"));
        server.demand("hostssl all all 127.0.0.1/32 trust\nhostnossl shop all 127.0.0.1/32 reject");
        let ca = files.path("ca.pem");
        let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url("shop"), ca.display());
        let counted = played(&url, "UPDATE stock SET left_over = left_over - 1").await;
        assert_eq!(counted, [("public.stock".to_owned(), Difference::Content)]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_database_that_an_option_of_the_url_names_is_left_alone() {
        let server = tokio::task::spawn_blocking(shop).await.expect("a server");
        let script = "psql -qX \"$DATABASE_URL\" -c 'UPDATE stock SET left_over = 0'";
        let job = Job { command: ["sh", "-c", script].map(OsString::from).to_vec(), apart: Duration::ZERO };
        let refused = in_databases(&job, &format!("{}?dbname=shop", server.url("x")), &[], pending()).await;
        assert_eq!(server.value("shop", "SELECT left_over FROM stock"), "10");
        assert!(refused.expect_err("the job would not run on a copy").to_string().contains("dbname"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_stops_it_leaves_no_copy_and_no_job_behind() {
        let server = tokio::task::spawn_blocking(shop).await.expect("a server");
        let marks = tempfile::tempdir().expect("a directory");
        let began = marks.path().join("began");
        let script = format!("touch {}; exec sleep 60", began.display());
        let job = Job { command: ["sh", "-c", &script].map(OsString::from).to_vec(), apart: Duration::ZERO };
        let stop = async {
            while !began.exists() {
                crate::stage::pause(Duration::from_millis(10)).await;
            }
            assert_eq!(copies(&server), "2");
        };
        let outcome = in_databases(&job, &server.url("shop"), &[], stop).await.expect("it is stopped in order");
        assert!(outcome.is_none());
        assert_eq!(copies(&server), "0");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_copy_that_stays_is_named_and_keeps_no_other() {
        let server = tokio::task::spawn_blocking(shop).await.expect("a server");
        // PostgreSQL drops no template.
        let keep =
            "psql -qX \"$DATABASE_URL\" -c \"UPDATE pg_database SET datistemplate = true WHERE datname LIKE '%_once'\"";
        let job = Job { command: ["sh", "-c", keep].map(OsString::from).to_vec(), apart: Duration::ZERO };
        let left = in_databases(&job, &server.url("shop"), &[], pending()).await.expect_err("one stays").to_string();
        let kept = server
            .value("postgres", "SELECT string_agg(datname, ' ') FROM pg_database WHERE datname LIKE 'fencepost%'");
        assert!(kept.ends_with("_once"), "{kept}");
        assert!(left.contains(&kept) && left.contains("template"), "{left}");
    }
}

//! The floor of PostgreSQL: the bare statements on the same rows, prepared, on one connection; of sessions, the bare advisory
//! lock.

use fencepost::{Error, ErrorKind, LockName, Namespace, clock::Moment, error::Operation, url::StoreUrl};
use fencepost_postgres::{Host, Mode, PostgresConfig, transaction::advisory_key};
use tokio_postgres::{Client, Config, NoTls, Statement};

use crate::{
    floor::{Commands, Cycle, Floor, Measured, Measuring},
    report::Goal,
    samples::Samples,
};

/// As long as an owner value.
const OWNER: &[u8] = b"01234567890123456789";
/// As long as a claimant.
const CLAIMANT: &str = r#"{"host":"localhost","pid":12345,"user":"somebody"}"#;

pub(crate) struct PostgresFloor {
    mode: Mode,
    statements: BareStatements,
    advisory: AdvisoryLock,
    round_trip: RoundTrip,
    /// Counts the statements of locks, where the extension `pg_stat_statements` is there.
    count: Option<Statement>,
}

impl PostgresFloor {
    /// Connects as often as there are contestants.
    pub(crate) async fn open(url: StoreUrl, namespace: &Namespace) -> Result<Self, Error> {
        let by_scheme = url.scheme() == "postgres+session";
        let config = PostgresConfig::from_url(url)?;
        let mode = if by_scheme { Mode::Session } else { config.mode };
        let table = format!("{}.locks", config.schema);
        // Not where locks lie, so that no listing takes it for one.
        let floor = Namespace::new(format!("{namespace}/floor"))?;
        let client = connect(&config).await?;
        let take = format!(
            "INSERT INTO {table} AS l (namespace, name, fence, owner, ttl, expires_at, since, claimant) \
             VALUES ($1, $2, 1, $3, 30000, clock_timestamp() + interval '30 s', clock_timestamp(), $4) \
             ON CONFLICT (namespace, name) DO UPDATE SET fence = l.fence + 1, owner = excluded.owner, \
             ttl = excluded.ttl, expires_at = excluded.expires_at, since = excluded.since, \
             claimant = excluded.claimant WHERE l.owner IS NULL RETURNING fence"
        );
        let give_back = format!(
            "UPDATE {table} SET owner = NULL, ttl = NULL, expires_at = NULL, claimant = NULL \
             WHERE namespace = $1 AND name = $2 AND owner = $3"
        );
        let take = client.prepare(&take).await.map_err(failed)?;
        let give_back = client.prepare(&give_back).await.map_err(failed)?;
        let locking = connect(&config).await?;
        let lock = locking.prepare("SELECT pg_try_advisory_lock($1)").await.map_err(failed)?;
        let unlock = locking.prepare("SELECT pg_advisory_unlock($1)").await.map_err(failed)?;
        let asking = connect(&config).await?;
        let ask = asking.prepare("SELECT 1").await.map_err(failed)?;
        let count = format!(
            "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(wal_records), 0)::bigint FROM pg_stat_statements \
             WHERE query LIKE 'SELECT%{}.%(%'",
            config.schema
        );
        // Not everybody has it, or may look into it.
        let count = asking.prepare(&count).await.ok();
        Ok(Self {
            mode,
            statements: BareStatements { client, take, give_back, namespace: floor.to_string() },
            advisory: AdvisoryLock { client: locking, lock, unlock, namespace: floor },
            round_trip: RoundTrip { client: asking, ask },
            count,
        })
    }
}

impl Floor for PostgresFloor {
    fn cycles(&self) -> Vec<Measured<'_>> {
        let measured = |what, cycle| Measured {
            what,
            cycle,
            time_goal: Some(Goal::AtMost(1.10)),
            throughput_goal: Some(Goal::AtLeast(0.95)),
            at_once: true,
        };
        let rows =
            measured("one upsert and one update, prepared, same kind of connection", &self.statements as &dyn Cycle);
        match self.mode {
            Mode::Lease => vec![rows],
            Mode::Session => {
                vec![measured("pg_try_advisory_lock and pg_advisory_unlock, prepared", &self.advisory), rows]
            }
        }
    }

    fn message(&self) -> Measured<'_> {
        Measured {
            what: "one round trip (SELECT 1), same kind of connection",
            cycle: &self.round_trip,
            time_goal: None, // two commits lie in a hand-over, and none in this
            throughput_goal: None,
            at_once: true,
        }
    }

    /// The server adds up its own counts of a connection about once a second, which is too late for ours; the extension counts at once.
    fn commands(&self) -> Measuring<'_, Option<Commands>> {
        Box::pin(async move {
            let Some(count) = &self.count else { return Ok(None) };
            let row = self.round_trip.client.query_one(count, &[]).await.map_err(failed)?;
            let number = |place| row.get::<_, i64>(place).unsigned_abs();
            Ok(Some(Commands { scripts: number(0), all: number(1) }))
        })
    }

    fn uncounted(&self) -> &'static str {
        "no statements counted: the database has no extension pg_stat_statements"
    }

    fn counted(&self) -> [&'static str; 2] {
        ["statements", "records in the log"]
    }
}

struct BareStatements {
    client: Client,
    take: Statement,
    give_back: Statement,
    namespace: String,
}

impl Cycle for BareStatements {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            samples
                .fill(until, async || {
                    let taken = self.client.query(&self.take, &[&self.namespace, &name, &OWNER, &CLAIMANT]).await;
                    taken.map_err(failed)?;
                    let freed = self.client.execute(&self.give_back, &[&self.namespace, &name, &OWNER]).await;
                    freed.map_err(failed).map(|_| ())
                })
                .await
        })
    }
}

struct AdvisoryLock {
    client: Client,
    lock: Statement,
    unlock: Statement,
    namespace: Namespace,
}

impl Cycle for AdvisoryLock {
    fn run<'a>(&'a self, name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            let key = advisory_key(&self.namespace, &LockName::new(name)?);
            samples
                .fill(until, async || {
                    for statement in [&self.lock, &self.unlock] {
                        self.client.query(statement, &[&key]).await.map_err(failed)?;
                    }
                    Ok(())
                })
                .await
        })
    }
}

struct RoundTrip {
    client: Client,
    ask: Statement,
}

impl Cycle for RoundTrip {
    fn run<'a>(&'a self, _name: &'a str, until: Moment, samples: &'a mut Samples) -> Measuring<'a, ()> {
        Box::pin(async move {
            samples.fill(until, async || self.client.query(&self.ask, &[]).await.map(|_| ()).map_err(failed)).await
        })
    }
}

pub(crate) async fn connect(config: &PostgresConfig) -> Result<Client, Error> {
    if config.tls.is_some() {
        let said = "the bare statements are measured on plain connections only";
        return Err(Error::new(ErrorKind::Unsupported, Operation::Run, said).not_applied());
    }
    let mut settings = Config::new();
    settings.user(&config.user).dbname(&config.database).connect_timeout(config.connect_timeout);
    match config.hosts.first() {
        Some(Host::Tcp(host, port)) => settings.host(host).port(*port),
        Some(Host::Socket(directory, port)) => settings.host_path(directory).port(*port),
        None => &mut settings,
    };
    if let Some(password) = &config.password {
        settings.password(password);
    }
    let (client, connection) = settings.connect(NoTls).await.map_err(failed)?;
    tokio::spawn(connection);
    Ok(client)
}

pub(crate) fn failed(source: tokio_postgres::Error) -> Error {
    Error::new(ErrorKind::Unavailable, Operation::Run, "the bare statements failed").caused_by(source)
}

impl std::fmt::Debug for PostgresFloor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresFloor").finish_non_exhaustive()
    }
}

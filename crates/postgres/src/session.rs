//! One connection to one server: how it is made, what is checked when it is, and how statements are sent on it.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::error::{Applied, ErrorKind};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OnceCell, mpsc},
};
use tokio_postgres::{
    AsyncMessage, Client, Config, Connection, NoTls, Row,
    config::SslMode,
    tls::MakeTlsConnect,
    types::{ToSql, Type},
};

use crate::{
    config::{Host, PostgresConfig},
    failure::Failure,
    statements::{STATEMENTS, Statement},
    tls::Connector,
};

/// A parameter of a statement.
pub(crate) type Parameter<'a> = &'a (dyn ToSql + Sync);

/// A message that the server sent by itself: channel and payload.
pub(crate) type Message = (String, String);

/// The `search_path` of our own statements: what they mean must not hang on who may create something in the role's.
pub(crate) const PATH: &str = "pg_catalog,pg_temp";

/// A connection. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    /// A pooler lies between: session state is not ours, messages do not come.
    pub(crate) pooled: bool,
    /// Commits that went unconfirmed by a synchronous standby so far.
    doubts: Arc<AtomicU64>,
    prepared: [Prepared; STATEMENTS],
    /// Answers that did not come in time, in a row.
    pub(crate) timeouts: AtomicU32,
    /// Whether it hears of cells.
    hears_cells: OnceCell<()>,
}

#[derive(Debug, Default)]
struct Prepared {
    used: AtomicUsize,
    statement: OnceCell<tokio_postgres::Statement>,
}

impl Session {
    /// Connects to one host, and checks that it is a PostgreSQL that takes writes. Names without a schema are looked for in
    /// `path`, or as the role's settings say; behind a pooler always as they say.
    pub(crate) async fn connect(
        config: &PostgresConfig,
        host: &Host,
        tls: Option<&Connector>,
        path: Option<&str>,
        messages: Option<mpsc::UnboundedSender<Message>>,
    ) -> Result<Self, Failure> {
        // By this value a pooler is found out: it refuses startup settings, drops them, or hands us a connection that was
        // started with those of another.
        let mark = fencepost_core::owner::Owner::random().map_err(|_| Failure::closed())?.to_string();
        let direct = settings(config, host, Some((&mark, path)));
        let session = match Self::dial(&direct, tls, messages.clone()).await {
            Err(error) if refuses_settings(&error) => Self::dial(&settings(config, host, None), tls, messages).await,
            outcome => outcome,
        };
        let mut session = session.map_err(|error| Failure::connecting(&error, &host.to_string()))?;
        session.greet(&mark, &host.to_string()).await?;
        Ok(session)
    }

    async fn dial(
        settings: &Config,
        tls: Option<&Connector>,
        messages: Option<mpsc::UnboundedSender<Message>>,
    ) -> Result<Self, tokio_postgres::Error> {
        match tls {
            None => Self::dial_with(settings, NoTls, messages).await,
            Some(tls) => Self::dial_with(settings, tls.0.clone(), messages).await,
        }
    }

    async fn dial_with<T>(
        settings: &Config,
        tls: T,
        messages: Option<mpsc::UnboundedSender<Message>>,
    ) -> Result<Self, tokio_postgres::Error>
    where
        T: MakeTlsConnect<tokio_postgres::Socket>,
        T::Stream: Send + 'static,
    {
        let (client, connection) = settings.connect(tls).await?;
        let doubts = Arc::new(AtomicU64::new(0));
        tokio::spawn(drive(connection, doubts.clone(), messages));
        let (prepared, timeouts, hears_cells) = Default::default();
        Ok(Self { client, pooled: false, doubts, prepared, timeouts, hears_cells })
    }

    /// Finds out who answers, and makes the session safe from the role's own settings.
    async fn greet(&mut self, mark: &str, address: &str) -> Result<(), Failure> {
        // Behind a pooler the role's `search_path` counts: written in full, it has nothing to decide.
        const WHO: &str = "SELECT pg_catalog.version(), pg_catalog.current_setting('server_version_num'), \
            pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('transaction_read_only'), \
            pg_catalog.current_setting('fencepost.connection', true), pg_catalog.current_setting('synchronous_commit')";
        let failed = |error: tokio_postgres::Error| Failure::connecting(&error, address);
        let row = self.client.query_typed_one(WHO, &[]).await.map_err(failed)?;
        let column = |place: usize| row.try_get::<_, Option<String>>(place).map_err(|_| Failure::puzzling());
        let version = column(0)?.unwrap_or_default();
        let number: u32 = column(1)?.and_then(|number| number.parse().ok()).unwrap_or_default();
        is_postgres(&version, number, address)?;
        let recovers = row.try_get::<_, bool>(2).map_err(|_| Failure::puzzling())?;
        if recovers || column(3)?.as_deref() == Some("on") {
            return Err(Failure::standby(address));
        }
        self.pooled = column(4)?.as_deref() != Some(mark);
        if !self.pooled {
            // Settings that older servers do not know. The last one: a grant that a crash can take back is none.
            const OURS: &str = "SELECT set_config(s.name, s.value, false) FROM (VALUES \
                ('idle_session_timeout', '0'), ('tcp_user_timeout', '30s'), \
                ('client_connection_check_interval', '10s')) AS s (name, value) \
                WHERE current_setting(s.name, true) IS NOT NULL \
                UNION ALL SELECT set_config('synchronous_commit', 'on', false) \
                WHERE current_setting('synchronous_commit') = 'off'";
            self.client.query_typed(OURS, &[]).await.map_err(failed)?;
        } else if column(5)?.as_deref() == Some("off") {
            let said = "behind this pooler commits do not wait for the disk (synchronous_commit = off)";
            return Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said)
                .advise("ALTER ROLE … SET synchronous_commit = on, or connect without the pooler"));
        }
        Ok(())
    }

    /// Sends a statement. The first time on this connection as it is, since a short run sends each one once. The second time it
    /// is prepared beside that, in the same round trip, unless a pooler would send the parts to different servers.
    pub(crate) async fn query(&self, statement: &Statement, with: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        let doubts = self.doubts.load(Relaxed);
        let prepared = &self.prepared[statement.place];
        let rows = if let Some(known) = prepared.statement.get() {
            self.client.query(known, with).await
        } else {
            let typed: Vec<(Parameter<'_>, Type)> = with.iter().copied().zip(statement.types.iter().cloned()).collect();
            let unprepared = self.client.query_typed(&statement.text, &typed);
            if self.pooled || prepared.used.fetch_add(1, Relaxed) == 0 {
                unprepared.await
            } else {
                let prepare = || self.client.prepare_typed(&statement.text, statement.types);
                // What keeps it from being prepared keeps it from being carried out, or is tried again the next time.
                tokio::join!(unprepared, prepared.statement.get_or_try_init(prepare)).0
            }
        };
        let rows = rows.map_err(|error| Failure::answered(&error))?;
        // Everything under way at that moment is in doubt: the warning does not say whose commit it was.
        if self.doubts.load(Relaxed) == doubts { Ok(rows) } else { Err(Failure::unconfirmed()) }
    }

    /// Sends statements of ours that are not for every day, as one transaction.
    pub(crate) async fn script(&self, text: &str) -> Result<(), Failure> {
        self.client.batch_execute(text).await.map_err(|error| Failure::answered(&error))
    }

    /// Sends one statement of ours that is not for every day.
    pub(crate) async fn ask(&self, text: &str, with: &[(Parameter<'_>, Type)]) -> Result<Vec<Row>, Failure> {
        self.client.query_typed(text, with).await.map_err(|error| Failure::answered(&error))
    }

    /// Hears of changes of cells from now on, as a session that hears messages.
    pub(crate) async fn hear_cells(&self, script: &str) -> Result<(), Failure> {
        self.hears_cells.get_or_try_init(|| self.script(script)).await.copied()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }
}

/// Carries what goes to and fro until the connection ends.
async fn drive<S, T>(
    mut connection: Connection<S, T>,
    doubts: Arc<AtomicU64>,
    messages: Option<mpsc::UnboundedSender<Message>>,
) where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
        match message {
            // Known by the function that warns: the text is in the server's language. The warning stands before the end
            // of its statement, so that whoever waits for that sees it.
            Ok(AsyncMessage::Notice(notice)) if notice.routine() == Some("SyncRepWaitForLSN") => {
                doubts.fetch_add(1, Relaxed);
            }
            Ok(AsyncMessage::Notification(heard)) => {
                if let Some(messages) = &messages {
                    // Nobody listens any more: the session is about to end.
                    let _ = messages.send((heard.channel().to_owned(), heard.payload().to_owned()));
                }
            }
            Ok(_) => {}
            Err(error) => {
                tracing::debug!(%error, "a connection to PostgreSQL ended");
                return;
            }
        }
    }
}

fn settings(config: &PostgresConfig, host: &Host, ours: Option<(&str, Option<&str>)>) -> Config {
    let mut settings = Config::new();
    match host {
        Host::Tcp(host, port) => settings.host(host).port(*port),
        Host::Socket(directory, port) => settings.host_path(directory).port(*port),
    };
    settings
        .dbname(&config.database)
        .user(&config.user)
        .application_name(application_name())
        .ssl_mode(if config.tls.is_some() { SslMode::Require } else { SslMode::Disable })
        .connect_timeout(config.connect_timeout)
        .keepalives(true)
        .keepalives_idle(Duration::from_secs(10))
        .keepalives_interval(Duration::from_secs(5))
        .keepalives_retries(3)
        .tcp_user_timeout(Duration::from_secs(20));
    if let Some(password) = &config.password {
        settings.password(password);
    }
    if let Some((mark, path)) = ours {
        // The role's own settings must not end our statements, or make them wait for ever. A statement waits for a row
        // shorter than we wait for its answer. The plan is always the same one: by the primary key, also on a table that
        // was small when it was planned.
        let wait = config.timeout.as_millis() * 3 / 4;
        let path = path.map(|path| format!(" -c search_path={path}")).unwrap_or_default();
        settings.options(format!(
            "-c fencepost.connection={mark} -c statement_timeout=0 -c lock_timeout={wait} \
             -c idle_in_transaction_session_timeout=0 -c default_transaction_isolation=read\\ committed \
             -c enable_seqscan=off -c plan_cache_mode=force_generic_plan -c jit=off -c tcp_keepalives_idle=20 \
             -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3{path}"
        ));
    }
    settings
}

/// Who holds, as an administrator sees it in `pg_stat_activity`. The server cuts it off after 63 bytes.
fn application_name() -> String {
    let claimant = fencepost_core::claim::Claimant::here();
    format!("fencepost {}@{} {}", claimant.user, claimant.host, claimant.pid)
}

/// What poolers say to the settings that come with a startup.
fn refuses_settings(error: &tokio_postgres::Error) -> bool {
    error
        .as_db_error()
        .is_some_and(|told| told.code().code() == "08P01" && told.message().contains("startup parameter"))
}

fn is_postgres(version: &str, number: u32, address: &str) -> Result<(), Failure> {
    let wrong = |said: String| Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said));
    let relatives = ["-YB-", "CockroachDB", "Redshift", "Greenplum", "Materialize"];
    if !version.starts_with("PostgreSQL ") || relatives.iter().any(|name| version.contains(name)) {
        let shown: String = version.chars().take(60).collect();
        return wrong(format!("{address} is no PostgreSQL but {shown:?}, which promises less about locks"));
    }
    if number < 120_000 {
        return wrong(format!("{address} is older than PostgreSQL 12"));
    }
    Ok(())
}

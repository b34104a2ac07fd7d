//! The one connection for statements, how the server that takes writes is found, and how it is made anew.
//!
//! A broken connection is dropped, one task at a time tries to make a new one, with growing pauses, and whoever asks
//! during a pause is told at once.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    backoff::Backoff,
    clock::{Clock, Moment},
    error::{Applied, Error, ErrorKind},
};
use tokio::sync::mpsc;
use tokio_postgres::Row;

use crate::{
    config::PostgresConfig,
    failure::Failure,
    session::{Message, PATH, Parameter, Session},
    statements::{Statement, Statements, VERSION},
    tls::Connector,
};

/// So many timeouts in a row mean that the connection leads nowhere: a firewall that forgot it says nothing.
const TIMEOUTS_IN_A_ROW: u32 = 2;

#[derive(Debug)]
pub(crate) struct Link {
    config: PostgresConfig,
    tls: Option<Connector>,
    pub(crate) statements: Statements,
    clock: Arc<dyn Clock>,
    current: Mutex<Current>,
    /// The host that took writes last.
    host: AtomicUsize,
    gate: tokio::sync::Mutex<Gate>,
}

#[derive(Debug, Default)]
struct Current {
    session: Option<Arc<Session>>,
    closed: bool,
}

/// Held by the one task that connects.
#[derive(Debug)]
struct Gate {
    backoff: Backoff,
    pause: Option<(Moment, Failure)>,
}

impl Gate {
    fn open() -> Self {
        Self { backoff: Backoff::new(Duration::from_millis(10), Duration::from_secs(1)), pause: None }
    }
}

impl Link {
    pub(crate) fn new(config: &PostgresConfig, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        config.check()?;
        Ok(Self {
            tls: config.tls.as_ref().map(|tls| tls.connector()).transpose()?,
            statements: Statements::new(&config.schema),
            config: config.clone(),
            clock,
            current: Mutex::default(),
            host: AtomicUsize::new(0),
            gate: tokio::sync::Mutex::new(Gate::open()),
        })
    }

    /// Sends a statement that can be repeated: when the connection turns out to be gone, it is sent once more on a new one,
    /// so that a restarted server costs no verb. Only for what is conditional on an owner value that holds or waits, which makes
    /// the second a repetition of the first.
    pub(crate) async fn call(&self, statement: &Statement, with: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        let session = self.session().await?;
        match self.send(&session, statement, with).await {
            Err(first) if session.is_closed() => {
                let again = async { self.send(&self.session().await?, statement, with).await };
                Box::pin(again).await.map_err(|failure| failure.after(&first))
            }
            answer => answer,
        }
    }

    /// Sends a statement that must not be repeated.
    pub(crate) async fn call_once(&self, statement: &Statement, with: &[Parameter<'_>]) -> Result<Vec<Row>, Failure> {
        let session = self.session().await?;
        self.send(&session, statement, with).await
    }

    /// The statement on this session, within the limit for an answer.
    pub(crate) async fn send(
        &self,
        session: &Arc<Session>,
        statement: &Statement,
        with: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Failure> {
        let answer = tokio::time::timeout(self.config.timeout, session.query(statement, with)).await;
        let useless = match &answer {
            Ok(Ok(_)) => {
                session.timeouts.store(0, Relaxed);
                false
            }
            // A primary that turned into a standby, or functions that were replaced: the next connection finds out.
            Ok(Err(failure)) => session.is_closed() || failure.kind == ErrorKind::Misconfigured,
            Err(_) => session.timeouts.fetch_add(1, Relaxed) + 1 >= TIMEOUTS_IN_A_ROW,
        };
        if useless {
            let mut current = self.lock();
            if current.session.as_ref().is_some_and(|known| Arc::ptr_eq(known, session)) {
                current.session = None;
            }
        }
        answer.unwrap_or_else(|_| {
            Err(Failure::new(ErrorKind::Unavailable, Applied::Unknown, "PostgreSQL did not answer in time"))
        })
    }

    /// What else is sent, within the same limit.
    pub(crate) async fn in_time<T>(&self, sent: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let answer = tokio::time::timeout(self.config.timeout, sent).await;
        answer.unwrap_or_else(|_| Err(Failure::no_answer("PostgreSQL")))
    }

    /// A connection of its own for messages.
    pub(crate) async fn messages(&self, to: mpsc::UnboundedSender<Message>) -> Result<Session, Failure> {
        if self.lock().closed {
            return Err(Failure::closed());
        }
        self.connect(Some(to)).await
    }

    /// A connection whose database may have no tables of ours yet. Names are found as the role is used to: it may have to do with
    /// tables of the user's own.
    pub(crate) async fn unversioned(&self) -> Result<Session, Failure> {
        self.dial(None, None).await
    }

    pub(crate) fn connect_timeout(&self) -> Duration {
        self.config.connect_timeout
    }

    pub(crate) fn close(&self) {
        let mut current = self.lock();
        current.closed = true;
        current.session = None;
    }

    /// The present connection, or a new one.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Failure> {
        match self.present()? {
            Some(session) => Ok(session),
            // Boxed, as the other rare paths are: room for a TLS handshake in the future of every statement would cost
            // more than the statement.
            None => Box::pin(self.connected_anew()).await,
        }
    }

    async fn connected_anew(&self) -> Result<Arc<Session>, Failure> {
        let mut gate = self.gate.lock().await;
        // Another may have connected while we stood at the gate.
        if let Some(session) = self.present()? {
            return Ok(session);
        }
        if let Some((until, failure)) = gate.pause.clone()
            && self.clock.now() < until
        {
            return Err(failure);
        }
        match self.connect(None).await {
            Ok(session) => {
                *gate = Gate::open();
                let session = Arc::new(session);
                let mut current = self.lock();
                if current.closed {
                    return Err(Failure::closed());
                }
                current.session = Some(session.clone());
                Ok(session)
            }
            Err(failure) => {
                let until = self.clock.now().after(gate.backoff.pause());
                gate.pause = Some((until, failure.clone()));
                Err(failure)
            }
        }
    }

    async fn connect(&self, messages: Option<mpsc::UnboundedSender<Message>>) -> Result<Session, Failure> {
        let session = self.dial(Some(PATH), messages).await?;
        let rows = tokio::time::timeout(self.config.timeout, session.query(&self.statements.version, &[])).await;
        let rows = rows.unwrap_or_else(|_| Err(Failure::no_answer("PostgreSQL")))?;
        let versions = rows.first().and_then(|row| Some((row.try_get(0).ok()?, row.try_get(1).ok()?)));
        versions.ok_or_else(Failure::puzzling).and_then(|(version, oldest)| is_ours(version, oldest))?;
        Ok(session)
    }

    /// The first host that takes writes, beginning with the one that did last. One that does not answer must not use up the
    /// time of the others.
    async fn dial(
        &self,
        path: Option<&str>,
        messages: Option<mpsc::UnboundedSender<Message>>,
    ) -> Result<Session, Failure> {
        let hosts = &self.config.hosts;
        let (first, share) = (self.host.load(Relaxed), self.config.connect_timeout / hosts.len() as u32);
        let mut worst: Option<Failure> = None;
        for place in (0..hosts.len()).map(|step| (first + step) % hosts.len()) {
            let host = &hosts[place];
            let dialled = Session::connect(&self.config, host, self.tls.as_ref(), path, messages.clone());
            match tokio::time::timeout(share, dialled)
                .await
                .unwrap_or_else(|_| Err(Failure::no_answer(&host.to_string())))
            {
                Ok(session) => {
                    self.host.store(place, Relaxed);
                    return Ok(session);
                }
                // A wrong password is told rather than a standby beside it; in doubt, what a retry can help with.
                Err(failure) => {
                    let better = worst.as_ref().is_none_or(|known| weight(&failure) > weight(known));
                    if better {
                        worst = Some(failure);
                    }
                }
            }
        }
        Err(worst.unwrap_or_else(Failure::puzzling))
    }

    fn present(&self) -> Result<Option<Arc<Session>>, Failure> {
        let mut current = self.lock();
        if current.closed {
            return Err(Failure::closed());
        }
        if current.session.as_ref().is_some_and(|session| session.is_closed()) {
            current.session = None;
        }
        Ok(current.session.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        // Nothing in here can panic half way.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// With several hosts, which failure is worth telling. While one is out of reach, the primary may be that one: only a
/// retry shows, so that this outweighs a standby.
fn weight(failure: &Failure) -> u8 {
    match failure.kind {
        ErrorKind::PermissionDenied => 2,
        ErrorKind::Unavailable => 1,
        _ => 0,
    }
}

fn is_ours(version: i32, oldest: i32) -> Result<(), Failure> {
    let other = |said: String| Err(Failure::new(ErrorKind::Misconfigured, Applied::No, said));
    if oldest > VERSION {
        return other(format!("the tables of Fencepost have version {version}, and this program knows {VERSION}"))
            .map_err(|failure| failure.advise("use a newer Fencepost"));
    }
    if version < VERSION {
        return other(format!("the tables of Fencepost have the old version {version}; this program needs {VERSION}"))
            .map_err(|failure| failure.advise("run `fencepost migrate --store URL`"));
    }
    Ok(())
}

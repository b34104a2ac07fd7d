//! What went wrong between us and the server, in words a user can act on. The server's own text is passed on only where it
//! quotes names of objects and settings, never where it could quote a value of ours.

use fencepost_core::{
    error::{Applied, Error, ErrorKind, Operation},
    name::LockName,
};
use tokio_postgres::error::{DbError, SqlState};

use crate::STORE;

/// A failure, to be told for each lock it concerns.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) applied: Applied,
    message: String,
    advice: Option<&'static str>,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, applied: Applied, message: impl Into<String>) -> Self {
        Self { kind, applied, message: message.into(), advice: None }
    }

    pub(crate) fn advise(mut self, advice: &'static str) -> Self {
        self.advice = Some(advice);
        self
    }

    /// What is known after a second try of the same: that it failed does not undo what the first may have done.
    pub(crate) fn after(self, first: &Failure) -> Self {
        let applied = if first.applied == Applied::No { self.applied } else { Applied::Unknown };
        Self { applied, ..self }
    }

    /// Of grants that live by a session.
    pub(crate) fn session_ended() -> Self {
        lost("the session that the lock would live by has ended")
    }

    /// Nobody was asked, since the store was closed.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, Applied::No, "the connection to PostgreSQL was closed by this program")
    }

    /// An answer that this version does not understand.
    pub(crate) fn puzzling() -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::Unknown, "PostgreSQL gave an answer that makes no sense here")
            .advise("were Fencepost's functions in the schema changed by hand? `fencepost migrate --print` shows them")
    }

    pub(crate) fn no_answer(address: &str) -> Self {
        unreachable(format!("{address} did not answer in time"))
    }

    /// The commit was not confirmed by the standby that it has to wait for: a failover may lose it.
    pub(crate) fn unconfirmed() -> Self {
        lost("PostgreSQL gave up waiting for its synchronous standby: the standby may not have it")
    }

    /// The server there takes no writes.
    pub(crate) fn standby(address: &str) -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::No, format!("{address} is a standby or read-only"))
            .advise("name the primary, or all servers of the cluster: postgres://HOST1,HOST2/DATABASE")
    }

    /// The connection could not be made, or its greeting failed. Nothing of ours was sent.
    pub(crate) fn connecting(error: &tokio_postgres::Error, address: &str) -> Self {
        if let Some(told) = error.as_db_error() {
            return Self { applied: Applied::No, ..answered_by_server(told) };
        }
        let text = one_line(&with_sources(error));
        if text.contains("invalid peer certificate") || text.contains("received fatal alert") {
            return Self::new(ErrorKind::Misconfigured, Applied::No, format!("no TLS connection to {address}: {text}"))
                .advise("`ca` names who signed the server's certificate; `cert` and `key` are the client's own");
        }
        if text.contains("does not support TLS") {
            return Self::new(ErrorKind::Misconfigured, Applied::No, format!("{address} offers no TLS"))
                .advise("switch it on there (`ssl = on`), or write `sslmode=disable`");
        }
        if text.contains("password missing") {
            return denied(format!("{address} demands a password"))
                .advise("write it into the URL or give `password_file`");
        }
        unreachable(format!("no connection to {address}: {text}"))
    }

    /// A statement failed.
    pub(crate) fn answered(error: &tokio_postgres::Error) -> Self {
        match error.as_db_error() {
            Some(told) => answered_by_server(told),
            None if error.is_closed() => lost("the connection to PostgreSQL broke"),
            None => lost("the connection to PostgreSQL broke, or carried garbage"),
        }
    }

    /// As an error of one operation on one lock.
    pub(crate) fn error(&self, operation: Operation, name: Option<&LockName>) -> Error {
        let mut error = Error::new(self.kind, operation, &self.message).in_store(STORE);
        if self.applied == Applied::No {
            error = error.not_applied();
        }
        if let Some(advice) = self.advice {
            error = error.advise(advice);
        }
        match name {
            Some(name) => error.on_lock(name),
            None => error,
        }
    }
}

fn answered_by_server(told: &DbError) -> Failure {
    let code = told.code();
    let said = || one_line(told.message());
    let migrate = "create them with `fencepost migrate --store URL`, or see `fencepost migrate --print`";
    match code.code() {
        // Each verb is one transaction: what the server refuses is rolled back.
        "3F000" | "42P01" | "42883" => {
            misconfigured("this database has no tables of Fencepost, or of another version").advise(migrate)
        }
        "42501" => denied(format!("PostgreSQL refused it: {}", said()))
            .advise("the needed rights are listed in docs/stores/postgres.md and by `fencepost migrate --print`"),
        "28P01" | "28000" => {
            let failure = denied(format!("PostgreSQL refused the user or the password: {}", said()));
            match told.message().contains("no encryption") {
                true => failure.advise("it demands TLS: write `sslmode=verify-full`"),
                false => failure,
            }
        }
        "3D000" => misconfigured(format!("PostgreSQL: {}", said())),
        "25006" => misconfigured("this server takes no writes: a standby, or set to read-only")
            .advise("name the primary, or all servers of the cluster: postgres://HOST1,HOST2/DATABASE"),
        "25P02" => Failure::new(ErrorKind::InvalidInput, Applied::No, "the transaction has failed before")
            .advise("roll it back, and begin anew"),
        "FP001" => Failure::new(ErrorKind::Corrupt, Applied::No, said())
            .advise("set the row's column `fence` to a number above every fence that a resource has seen"),
        "22P05" => Failure::new(ErrorKind::InvalidInput, Applied::No, "the database's encoding cannot hold this name")
            .advise("use a database with the encoding UTF8"),
        "42704" => misconfigured(format!("PostgreSQL: {}", said())).advise("PostgreSQL 12 or later is needed"),
        "23514" | "23502" | "22023" => Failure::puzzling(),
        "55P03" => busy_row("another transaction has locked the lock's row"),
        "57014" => busy_row("the statement was cancelled, by a time limit or an administrator").advise(
            "behind a pooler the role's own `statement_timeout` counts: ALTER ROLE … SET statement_timeout = '5s'",
        ),
        "53300" => unreachable("PostgreSQL has no free connection (max_connections)"),
        "53200" => unreachable(format!("PostgreSQL has no room left: {}", said()))
            .advise("raise max_locks_per_transaction if it says so"),
        "53100" => unreachable("PostgreSQL's disk is full")
            .advise("make room on the server's disk; nothing was granted, and nothing that was answered is lost"),
        "57P01" | "57P02" | "57P03" | "57P05" => lost("PostgreSQL is shutting down, starting, or ended the connection"),
        _ if *code == SqlState::T_R_SERIALIZATION_FAILURE || *code == SqlState::T_R_DEADLOCK_DETECTED => {
            busy_row("PostgreSQL rolled it back in favour of another transaction")
        }
        _ if code.code().starts_with("08") => lost("the connection to PostgreSQL broke"),
        // Out of resources, or an operator stepped in: a retry can help.
        _ if code.code().starts_with("53") || code.code().starts_with("57") => {
            unreachable(format!("PostgreSQL cannot do it now: {}", said()))
        }
        other => {
            Failure::new(ErrorKind::Misconfigured, Applied::No, format!("PostgreSQL refused it: {other}, {}", said()))
        }
    }
}

fn with_sources(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut below = std::error::Error::source(error);
    while let Some(source) = below {
        let more = source.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        below = source.source();
    }
    text
}

fn unreachable(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::No, message)
}

fn busy_row(message: &str) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::No, message)
}

fn lost(message: &str) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::Unknown, message)
}

fn denied(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::PermissionDenied, Applied::No, message)
}

fn misconfigured(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Misconfigured, Applied::No, message)
}

fn one_line(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

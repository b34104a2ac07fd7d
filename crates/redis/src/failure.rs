//! What went wrong between us and the server, in words a user can act on. Never holds a secret: the server's own text
//! is passed on only for errors that are known not to quote the command.

use fencepost_core::{
    error::{Applied, Error, ErrorKind, Operation},
    name::LockName,
};
use redis::{RedisError, ServerErrorKind};

use crate::STORE;

/// A failure, to be told for each lock it concerns.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    applied: Applied,
    message: String,
    advice: Option<&'static str>,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, applied: Applied, message: impl Into<String>) -> Self {
        Self { kind, applied, message: message.into(), advice: None }
    }

    pub(crate) fn applied(&self) -> Applied {
        self.applied
    }

    pub(crate) fn advise(mut self, advice: &'static str) -> Self {
        self.advice = Some(advice);
        self
    }

    /// And what else happened.
    pub(crate) fn then(mut self, next: &str) -> Self {
        self.message = format!("{}, and {next}", self.message);
        self
    }

    /// An earlier try of the same may have been carried out.
    pub(crate) fn outcome_unknown(mut self) -> Self {
        self.applied = Applied::Unknown;
        self
    }

    /// Nothing of it is left.
    pub(crate) fn undone(mut self, by: &str) -> Self {
        self.applied = Applied::No;
        self.then(by)
    }

    /// What happened, without advice.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// No answer within a limit of ours.
    pub(crate) fn silent(limit: std::time::Duration) -> Self {
        lost(&format!("Redis did not answer within {limit:?}"))
    }

    /// The same, of one server among several.
    pub(crate) fn at(&self, address: &str) -> Self {
        let named = self.message.contains(address);
        let message = if named { self.message.clone() } else { format!("{address}: {}", self.message) };
        Self { message, ..self.clone() }
    }

    /// Nobody was asked, since the store was closed.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, Applied::No, "the connection to Redis was closed by this program")
    }

    /// Something that is not ours lies under our key.
    pub(crate) fn foreign() -> Self {
        Self::new(ErrorKind::ForeignValue, Applied::No, "the lock's key in Redis holds something that is not a lock")
            .advise("look at it with redis-cli, and delete it or use another namespace")
    }

    /// The server shares its keys with others, and this scheme speaks to one.
    pub(crate) fn node_of_a_cluster() -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::No, "this server is a node of a Redis Cluster")
            .advise("use the scheme redis+cluster: for it")
    }

    /// It takes no writes.
    pub(crate) fn replica() -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::No, "this Redis is a read-only replica")
            .advise("name the master, or its sentinels by redis+sentinel://SENTINEL,…/SERVICE")
    }

    /// An answer that this version does not understand.
    pub(crate) fn puzzling() -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::Unknown, "Redis gave an answer that makes no sense here")
            .advise("is it a real Redis, without a proxy that rewrites answers?")
    }

    /// The connection could not be made. Nothing of ours was sent.
    pub(crate) fn connecting(error: &RedisError, address: &str) -> Self {
        if error.is_connection_refusal() {
            return unreachable(format!("nothing listens at {address}"));
        }
        if error.is_timeout() {
            return unreachable(format!("{address} did not answer in time"));
        }
        if let Some(failure) = refused_by_tls(error) {
            return failure;
        }
        let text = error.to_string();
        match error.kind() {
            redis::ErrorKind::Io => unreachable(format!("no connection to {address}: {}", one_line(&text))),
            redis::ErrorKind::Parse => Self::new(
                ErrorKind::Misconfigured,
                Applied::No,
                format!("what answers at {address} does not speak the protocol of Redis"),
            )
            .advise("check host and port; a server with TLS needs `rediss:`"),
            // Its text may quote the login.
            redis::ErrorKind::AuthenticationFailed => denied(format!("{address} refused the user or the password")),
            _ => Self { applied: Applied::No, ..Self::answered(error) },
        }
    }

    /// A command failed.
    pub(crate) fn answered(error: &RedisError) -> Self {
        if error.is_timeout() {
            return lost("Redis did not answer in time");
        }
        match error.kind() {
            redis::ErrorKind::Io => return lost("the connection to Redis broke"),
            redis::ErrorKind::Parse => return lost("the connection to Redis carried garbage"),
            redis::ErrorKind::AuthenticationFailed => return denied("Redis refused the user or the password"),
            redis::ErrorKind::Server(kind) => {
                if let Some(failure) = by_kind(kind, error) {
                    return failure;
                }
            }
            _ => {}
        }
        let text = error.to_string();
        match error.code().unwrap_or_default() {
            "NOAUTH" => denied("Redis demands a password").advise("write it into the URL or give `password_file`"),
            "WRONGPASS" => denied("Redis refused the user or the password"),
            "FOREIGNVALUE" | "WRONGTYPE" => Self::foreign(),
            "OOM" => Self::new(ErrorKind::Unavailable, Applied::No, "Redis has no memory left for a lock")
                .advise("raise maxmemory, or remove keys that nobody needs"),
            "MISCONF" | "NOREPLICAS" => Self::new(
                ErrorKind::Unavailable,
                Applied::No,
                format!("Redis takes no writes now: {}", one_line(&text)),
            ),
            "BUSY" => Self::new(ErrorKind::Unavailable, Applied::No, "Redis is busy with a long script"),
            // Before Redis 7 a script's error hides the code of the command that failed.
            _ if text.contains("WRONGTYPE") => Self::foreign(),
            _ if text.contains("READONLY") => Self::replica(),
            _ if text.contains("NOPERM") || text.contains("can't run this command") => no_permission(""),
            code => Self::new(ErrorKind::Misconfigured, Applied::Unknown, format!("Redis refused the command: {code}"))
                .advise("the needed commands are listed in the documentation of `fencepost-redis`"),
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

/// A field of what `INFO` told.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.map(str::trim)
}

fn refused_by_tls(error: &RedisError) -> Option<Failure> {
    let text = error.to_string();
    let refused = text.contains("invalid peer certificate") || text.contains("received fatal alert");
    refused.then(|| {
        Failure::new(ErrorKind::Misconfigured, Applied::No, format!("no TLS connection: {}", one_line(&text)))
            .advise("`ca` names who signed the server's certificate; `cert` and `key` are the client's own")
    })
}

fn by_kind(kind: ServerErrorKind, error: &RedisError) -> Option<Failure> {
    Some(match kind {
        ServerErrorKind::NoPerm => no_permission(error.detail().unwrap_or_default()),
        ServerErrorKind::ReadOnly => Failure::replica(),
        ServerErrorKind::BusyLoading => unreachable("Redis is still loading its data"),
        ServerErrorKind::MasterDown => unreachable("this Redis is a replica without a link to its master"),
        ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::ClusterDown | ServerErrorKind::CrossSlot => {
            Failure::node_of_a_cluster()
        }
        _ => return None,
    })
}

fn unreachable(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::No, message)
}

fn lost(message: &str) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::Unknown, message)
}

fn denied(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::PermissionDenied, Applied::No, message)
}

/// The server names the command or key it refused, not its arguments.
fn no_permission(detail: &str) -> Failure {
    let detail = one_line(detail);
    let colon = if detail.is_empty() { "" } else { ": " };
    denied(format!("the ACL of Redis refused it{colon}{detail}"))
        .advise("the needed rights are listed in the documentation of `fencepost-redis`")
}

fn one_line(text: &str) -> String {
    text.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

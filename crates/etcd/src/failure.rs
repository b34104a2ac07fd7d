//! What went wrong between us and the cluster, in words a user can act on. Never holds a secret.

use std::error::Error as _;

use fencepost_core::{
    error::{Applied, Error, ErrorKind, Operation},
    name::LockName,
};
use tonic::{Code, Status};

use crate::STORE;

/// A failure, to be told for each lock it concerns.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) applied: Applied,
    pub(crate) sort: Sort,
    message: String,
    advice: Option<&'static str>,
}

/// What we ourselves can do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Another member may answer.
    Member,
    /// A new login may help.
    Login,
    /// The session's lease is gone.
    SessionGone,
    /// Nothing.
    Final,
}

impl Failure {
    pub(crate) fn new(kind: ErrorKind, applied: Applied, message: impl Into<String>) -> Self {
        Self { kind, applied, sort: Sort::Final, message: message.into(), advice: None }
    }

    pub(crate) fn advise(mut self, advice: &'static str) -> Self {
        self.advice = Some(advice);
        self
    }

    fn sort(mut self, sort: Sort) -> Self {
        self.sort = sort;
        self
    }

    /// Nobody was asked, since the store was closed.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, Applied::No, "the connection to etcd was closed by this program")
    }

    /// Something that is not ours lies where a claim of ours belongs.
    pub(crate) fn foreign(key: &[u8]) -> Self {
        let said = format!("the key {} in etcd holds something that is not a lock", String::from_utf8_lossy(key));
        Self::new(ErrorKind::ForeignValue, Applied::No, said)
            .advise("look at it with `etcdctl get`, and delete it or use another namespace")
    }

    /// An answer that this version does not understand.
    pub(crate) fn puzzling() -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::Unknown, "etcd gave an answer that makes no sense here")
            .advise("is it a real etcd, without a proxy that rewrites answers?")
    }

    /// An earlier grant of the same claim is still on its way back.
    pub(crate) fn leaving() -> Self {
        Self::new(ErrorKind::Unavailable, Applied::Unknown, "the claim is still being given back")
    }

    /// The place in the queue was removed, by somebody or by ourselves; a repeated claim takes another.
    pub(crate) fn place_lost() -> Self {
        Self::new(ErrorKind::Unavailable, Applied::Unknown, "the place in the queue is gone")
    }

    /// The session ended while a request of it was under way.
    /// Of a change of a cell that may have been applied.
    pub(crate) fn overwritten() -> Self {
        let said = "a change was not answered, and another was made after it";
        Self::new(ErrorKind::Unavailable, Applied::Unknown, said)
    }

    pub(crate) fn session_lost() -> Self {
        Self::new(ErrorKind::Unavailable, Applied::Unknown, "the session ended in etcd").sort(Sort::SessionGone)
    }

    /// No connection could be made. Nothing of ours was sent.
    pub(crate) fn connecting(error: &tonic::transport::Error, address: &str, tls: bool) -> Self {
        let text = chain(error);
        let failure = if text.contains("Connection refused") {
            unreachable(format!("nothing listens at {address}"))
        } else if tls
            && ["certificate", "alert", "InvalidMessage", "corrupt", "HandshakeNot"].iter().any(|w| text.contains(w))
        {
            Self::new(ErrorKind::Misconfigured, Applied::No, format!("no TLS connection to {address}: {text}")).advise(
                "`ca` names who signed the members' certificates; `cert` and `key` are the client's own; `etcd:` is without TLS",
            )
        } else if text.contains("timed out") || text.contains("deadline") {
            unreachable(format!("{address} did not answer in time"))
        } else if tls && text.contains("handshake") {
            unreachable(format!("no TLS connection to {address}: {text}"))
                .advise("it may be starting, or not speak TLS: `etcd:` is without")
        } else {
            unreachable(format!("no connection to {address}: {text}"))
        };
        failure.sort(Sort::Member)
    }

    /// Nobody answered in time; what was sent may still be applied.
    pub(crate) fn no_answer(address: &str, applied: Applied) -> Self {
        let said = format!("etcd at {address} did not answer in time");
        Self::new(ErrorKind::Unavailable, applied, said).sort(Sort::Member)
    }

    /// A request failed.
    pub(crate) fn answered(status: &Status, address: &str) -> Self {
        let text = status.message();
        let no = |kind, said: &str| Self::new(kind, Applied::No, said);
        // etcd's own errors have fixed texts, which are a part of its interface; the codes are too coarse.
        match text.strip_prefix("etcdserver: ").unwrap_or_default() {
            "requested lease not found" => Self::session_lost(),
            "permission denied" => {
                no(ErrorKind::PermissionDenied, "etcd refused: the user lacks the right to these keys")
                    .advise("the needed rights are listed in the documentation of `fencepost-etcd`")
            }
            "authentication failed, invalid user ID or password" => {
                no(ErrorKind::PermissionDenied, "etcd refused the user or the password")
            }
            "user name is empty" => no(ErrorKind::PermissionDenied, "etcd demands a login")
                .advise("write etcd://USER:PASSWORD@HOST or give `user` and `password_file`"),
            "authentication is not enabled" => no(ErrorKind::Misconfigured, "this etcd knows no users")
                .advise("leave the login out of the URL, or enable authentication"),
            "invalid auth token" | "revision of auth store is old" => {
                no(ErrorKind::PermissionDenied, "etcd no longer accepts the login").sort(Sort::Login)
            }
            "no leader" => unreachable(format!("the cluster has no leader, says its member at {address}"))
                .advise("a majority of the members must run and reach each other")
                .sort(Sort::Member),
            "mvcc: database space exceeded" => {
                no(ErrorKind::Unavailable, "etcd's database is full and takes no writes")
                    .advise("compact and defragment it, then `etcdctl alarm disarm`")
            }
            "corrupt cluster" => no(ErrorKind::Corrupt, "etcd found its own data corrupt")
                .advise("see `etcdctl alarm list`; a member must be replaced"),
            "mvcc: required revision has been compacted" => {
                no(ErrorKind::Unavailable, "etcd compacted that revision away")
            }
            "" => Self::transport(status, address),
            other => {
                let said = format!("etcd at {address} said: {}", one_line(other));
                match status.code() {
                    // "request timed out", "leader changed", "too many requests", "server stopped" and the like.
                    Code::Unavailable | Code::ResourceExhausted | Code::DeadlineExceeded | Code::Cancelled => {
                        Self::new(ErrorKind::Unavailable, Applied::Unknown, said).sort(Sort::Member)
                    }
                    _ => Self::new(ErrorKind::Misconfigured, Applied::Unknown, said),
                }
            }
        }
    }

    /// No answer of etcd's, but of what lies between.
    fn transport(status: &Status, address: &str) -> Self {
        let text = format!("{} {}", status.message(), status.source().map(chain).unwrap_or_default());
        let strange = [
            "frame with invalid size",
            "protocol error",
            "PROTOCOL_ERROR",
            "FRAME_SIZE_ERROR",
            "invalid compression flag",
        ];
        if text.contains("keep-alive timed out") {
            return Self::no_answer(address, Applied::Unknown);
        }
        if status.code() == Code::Unimplemented || strange.iter().any(|sign| text.contains(sign)) {
            let said = format!("what answers at {address} does not speak the protocol of etcd");
            return Self::new(ErrorKind::Misconfigured, Applied::No, said)
                .advise("check host and port: it is the client port, 2379 by default; a server with TLS needs `etcds:`")
                .sort(Sort::Member);
        }
        if text.contains("certificate") || text.contains("received fatal alert") {
            let said = format!("no TLS connection to {address}: {}", one_line(&text));
            return Self::new(ErrorKind::Misconfigured, Applied::No, said)
                .advise("`ca` names who signed the members' certificates; `cert` and `key` are the client's own")
                .sort(Sort::Member);
        }
        let said = format!("the connection to etcd at {address} broke");
        Self::new(ErrorKind::Unavailable, Applied::Unknown, said).sort(Sort::Member)
    }

    /// The connection broke before anything had been answered on it: it may be no etcd, or one that wants something else.
    pub(crate) fn before_any_answer(self, address: &str, tls: bool) -> Self {
        if self.advice.is_some() || self.kind != ErrorKind::Unavailable {
            return self;
        }
        let said = format!("{address} closed the connection before it answered anything");
        let failure = Self::new(ErrorKind::Unavailable, self.applied, said).sort(self.sort);
        failure.advise(if tls {
            "it may be starting, or demand a certificate of the client: `cert` and `key`"
        } else {
            "it may be starting, demand TLS (`etcds:`), or be another program: the client port is 2379 by default"
        })
    }

    /// States that an earlier try of the same request may have taken effect.
    pub(crate) fn after_unclear(mut self, unclear: bool) -> Self {
        if unclear {
            self.applied = Applied::Unknown;
        }
        self
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

fn unreachable(message: impl Into<String>) -> Failure {
    Failure::new(ErrorKind::Unavailable, Applied::No, message)
}

/// An error with all that caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(source) = below {
        text = format!("{text}: {source}");
        below = source.source();
    }
    one_line(&text)
}

fn one_line(text: &str) -> String {
    text.chars().take(300).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

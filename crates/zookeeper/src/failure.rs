//! What went wrong between us and the ensemble, in words a user can act on. Never holds a secret.

use fencepost_core::{
    error::{Applied, Error, ErrorKind, Operation},
    name::LockName,
    refusal::Refusal,
};

use crate::{STORE, wire::Code};

/// A failure, to be told for each lock it concerns.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    applied: Applied,
    message: String,
    advice: Option<&'static str>,
    /// What the server said, where it said something.
    pub(crate) code: Option<Code>,
    /// Whether the connection or its session was lost with the request on its way: it can be sent on another one.
    pub(crate) broken: bool,
    /// What the name is in use for, where that is what is wrong.
    refusal: Option<Refusal>,
}

impl Failure {
    fn new(kind: ErrorKind, applied: Applied, message: impl Into<String>) -> Self {
        Self { kind, applied, message: message.into(), advice: None, code: None, broken: false, refusal: None }
    }

    fn advise(mut self, advice: &'static str) -> Self {
        self.advice = Some(advice);
        self
    }

    /// An earlier try of the same may have been applied, whatever became of this one.
    pub(crate) fn outcome_unknown(mut self) -> Self {
        self.applied = Applied::Unknown;
        self
    }

    /// Nobody was asked, since the store was closed.
    pub(crate) fn closed() -> Self {
        Self::new(ErrorKind::Closed, Applied::No, "the connection to ZooKeeper was closed by this program")
    }

    /// No server can be reached, or none that serves. Nothing of ours was sent.
    pub(crate) fn unreachable(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unavailable, Applied::No, message)
    }

    /// Nothing came back within the limit.
    pub(crate) fn no_answer() -> Self {
        Self::new(ErrorKind::Unavailable, Applied::Unknown, "ZooKeeper did not answer in time")
    }

    /// Of a change of a cell that may have been applied.
    pub(crate) fn overwritten() -> Self {
        let said = "a change was not answered, and another was made after it";
        Self::new(ErrorKind::Unavailable, Applied::Unknown, said)
    }

    /// The connection broke with the request on its way.
    pub(crate) fn broken() -> Self {
        let said = "the connection to ZooKeeper broke";
        Self { broken: true, ..Self::new(ErrorKind::Unavailable, Applied::Unknown, said) }
    }

    /// The session is over, by the servers' word or by our own clock; the next claim opens another.
    pub(crate) fn session_over() -> Self {
        let said = "the session in ZooKeeper is over";
        Self { broken: true, ..Self::new(ErrorKind::Unavailable, Applied::Unknown, said) }
    }

    /// The session lasted for less than its opening took (T1).
    pub(crate) fn late(message: String) -> Self {
        Self::new(ErrorKind::LateGrant, Applied::Unknown, message)
            .advise("what was made is given back; ask for a longer TTL")
    }

    /// Something that is not ours lies where a lock's nodes belong.
    pub(crate) fn foreign(what: impl Into<String>) -> Self {
        Self::new(ErrorKind::ForeignValue, Applied::No, what)
            .advise("look at it with `zkCli.sh`, and delete it or use another namespace")
    }

    /// The name is in use for something else.
    pub(crate) fn mismatch(refusal: Refusal) -> Self {
        Self { refusal: Some(refusal), ..Self::new(ErrorKind::Mismatch, Applied::No, "the name is in use otherwise") }
    }

    /// What a later version of this program wrote could mean anything.
    pub(crate) fn later_version(what: &str) -> Self {
        Self::new(ErrorKind::ForeignValue, Applied::No, format!("{what} is of a kind that this version does not know"))
            .advise("a later version of Fencepost uses this lock: use that version here as well")
    }

    /// The grant stands, and only the process that has its session can keep it alive.
    pub(crate) fn another_session() -> Self {
        let said = "the lock is held, by a session in ZooKeeper that only the process which took it can keep alive";
        Self::new(ErrorKind::Unsupported, Applied::No, said)
            .advise("take it with `fencepost acquire`, whose keeper renews it, or with `fencepost run`")
    }

    /// An answer that cannot be read.
    pub(crate) fn puzzling() -> Self {
        Self::new(ErrorKind::Misconfigured, Applied::Unknown, "ZooKeeper gave an answer that makes no sense here")
            .advise("is it ZooKeeper 3.5 or later, without a proxy that rewrites answers?")
    }

    /// What answers is no ZooKeeper.
    pub(crate) fn other_protocol(address: &str) -> Self {
        let said = format!("what answers at {address} does not speak the protocol of ZooKeeper");
        Self::new(ErrorKind::Misconfigured, Applied::No, said)
            .advise("check host and port (clients use 2181 by default); a port with TLS needs `zookeepers:`")
    }

    /// TLS could not be agreed on.
    pub(crate) fn tls(address: &str, why: &std::io::Error) -> Self {
        let why: String = why.to_string().chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
        Self::new(ErrorKind::Misconfigured, Applied::No, format!("no TLS connection to {address}: {why}"))
            .advise("`ca` names who signed the server's certificate; `cert` and `key` are the client's own")
    }

    /// The chroot is not there.
    pub(crate) fn no_chroot(chroot: &str) -> Self {
        let said = format!("the path {chroot} of the URL does not exist in ZooKeeper");
        Self::new(ErrorKind::Misconfigured, Applied::No, said)
            .advise("create it, as with `zkCli.sh create`, or correct the URL; it is not made by itself")
    }

    /// The server refused the request.
    pub(crate) fn refused(code: Code) -> Self {
        let mut failure = match code {
            Code::SESSION_EXPIRED => Self::session_over(),
            Code::SESSION_MOVED => Self::broken(),
            Code::NO_AUTH => Self::new(ErrorKind::PermissionDenied, Applied::No, "an ACL of ZooKeeper refused it")
                .advise("give the user and the password that the ACL names; `acl` says who may touch what we make"),
            Code::AUTH_FAILED | Code::SASL_REQUIRED => {
                Self::new(ErrorKind::PermissionDenied, Applied::No, "ZooKeeper refused the login")
                    .advise("the login of this store is `digest`; SASL is not supported")
            }
            Code::INVALID_ACL => Self::new(ErrorKind::PermissionDenied, Applied::No, "ZooKeeper refused the ACL")
                .advise("`acl=creator` needs a login that the server accepted"),
            Code::NO_CHILDREN_FOR_EPHEMERALS => Self::foreign("where the lock's nodes belong lies an ephemeral node"),
            Code::UNIMPLEMENTED => {
                Self::new(ErrorKind::Misconfigured, Applied::No, "this ZooKeeper has no container nodes")
                    .advise("version 3.5 or later is needed")
            }
            Code::QUOTA_EXCEEDED => Self::new(ErrorKind::Misconfigured, Applied::No, "a quota of ZooKeeper is used up"),
            Code::NO_NODE => Self::new(ErrorKind::Unavailable, Applied::No, "a node vanished while it was looked at"),
            Code(number) => {
                Self::new(ErrorKind::Unavailable, Applied::Unknown, format!("ZooKeeper failed with code {number}"))
            }
        };
        failure.code = Some(code);
        failure
    }

    /// Whether the name is in use otherwise.
    pub(crate) fn is_refusal(&self) -> bool {
        self.refusal.is_some()
    }

    /// Whether the server refused with this code.
    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == Some(code)
    }

    /// As an error of one operation on one lock.
    pub(crate) fn error(&self, operation: Operation, name: Option<&LockName>) -> Error {
        if let (Some(refusal), Some(name)) = (self.refusal, name) {
            return refusal.error(operation, name).in_store(STORE);
        }
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

//! What we send.

use crate::{
    config::Access,
    wire::{XID_LOGIN, reply::Stat},
};

/// How long a node lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Until its session ends.
    Ephemeral,
    /// Until its session ends; the server appends a number to its name.
    EphemeralSequential,
    /// Until it has been empty for a while.
    Container,
    /// Until it is deleted.
    Persistent,
}

impl Lifetime {
    /// The number of the creation, of the kind that is answered with a [`Stat`].
    fn operation(self) -> i32 {
        match self {
            Self::Container => 19,
            Self::Ephemeral | Self::EphemeralSequential | Self::Persistent => 15,
        }
    }

    fn flags(self) -> i32 {
        match self {
            Self::Ephemeral => 1,
            Self::EphemeralSequential => 3,
            Self::Container => 4,
            Self::Persistent => 0,
        }
    }
}

/// One step of a transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step<'a> {
    /// Makes a node under the very name that is given.
    Create { path: &'a str, data: &'a [u8], access: Access, lifetime: Lifetime },
    /// Removes a node.
    Delete { path: &'a str },
    /// Writes a node's data, of this version where one is given.
    Write { path: &'a str, data: &'a [u8], version: Option<i32> },
    /// Does nothing where the node is, in this version where one is given.
    Check { path: &'a str, version: Option<i32> },
}

impl Step<'_> {
    fn operation(self) -> i32 {
        match self {
            Self::Create { .. } => CREATE,
            Self::Delete { .. } => DELETE,
            Self::Write { .. } => WRITE,
            Self::Check { .. } => CHECK,
        }
    }
}

/// Numbers of operations, which the steps of a transaction are answered under as well.
const EXISTS: i32 = 3;
pub(super) const CREATE: i32 = 1;
pub(super) const DELETE: i32 = 2;
pub(super) const WRITE: i32 = 5;
pub(super) const CHECK: i32 = 13;

const ANY_VERSION: i32 = -1;

/// One request, ready to be sent but for its number.
#[derive(Clone, Debug)]
pub(crate) struct Request(Vec<u8>);

const NUMBER_AT: usize = 4;
const OPERATION_AT: usize = 8;

impl Request {
    /// Makes a node; answered with its path and its [`Stat`].
    pub(crate) fn create(path: &str, data: &[u8], access: Access, lifetime: Lifetime) -> Self {
        let mut request = Self::new(lifetime.operation(), path.len() + data.len() + 64);
        request.creation(path, data, access, lifetime);
        request
    }

    fn creation(&mut self, path: &str, data: &[u8], access: Access, lifetime: Lifetime) {
        self.text(path);
        self.buffer(data);
        let (scheme, id) = match access {
            Access::Open => ("world", "anyone"),
            Access::Creator => ("auth", ""),
        };
        self.int(1);
        self.int(0b11111); // read, write, create, delete, admin
        self.text(scheme);
        self.text(id);
        self.int(lifetime.flags());
    }

    /// Removes a node, whatever its version.
    pub(crate) fn delete(path: &str) -> Self {
        let mut request = Self::of_path(DELETE, path);
        request.int(ANY_VERSION);
        request
    }

    pub(crate) fn exists(path: &str) -> Self {
        Self::of_path(EXISTS, path).watching(false)
    }

    /// As [`exists`](Request::exists), with a watch, which the server sets wherever the node is not as well.
    pub(crate) fn appears(path: &str) -> Self {
        Self::of_path(EXISTS, path).watching(true)
    }

    /// Whether its watch is set where there is no node as well.
    pub(crate) fn watches_what_is_absent(&self) -> bool {
        self.0[OPERATION_AT..OPERATION_AT + 4] == EXISTS.to_be_bytes()
    }

    /// The node's data and [`Stat`]. With a watch, which the server sets only where the node is.
    pub(crate) fn get(path: &str, watch: bool) -> Self {
        Self::of_path(4, path).watching(watch)
    }

    /// The names of a node's children, and its [`Stat`]. With a watch on who comes and goes, which the server sets only
    /// where the node is.
    pub(crate) fn children(path: &str, watch: bool) -> Self {
        Self::of_path(12, path).watching(watch)
    }

    /// Answered after everything that the leader had committed by then.
    pub(crate) fn sync(path: &str) -> Self {
        Self::of_path(9, path)
    }

    /// A transaction of nothing: a quorum has to agree on it, it changes nothing and needs no rights.
    pub(crate) fn empty_transaction() -> Self {
        Self::transaction(&[])
    }

    /// All of these steps or none; answered with what came of each.
    pub(crate) fn transaction(steps: &[Step<'_>]) -> Self {
        let mut request = Self::new(14, 16);
        for step in steps {
            request.step_header(step.operation(), false);
            match *step {
                Step::Create { path, data, access, lifetime } => request.creation(path, data, access, lifetime),
                Step::Delete { path } => {
                    request.text(path);
                    request.int(ANY_VERSION);
                }
                Step::Write { path, data, version } => {
                    request.text(path);
                    request.buffer(data);
                    request.int(version.unwrap_or(ANY_VERSION));
                }
                Step::Check { path, version } => {
                    request.text(path);
                    request.int(version.unwrap_or(ANY_VERSION));
                }
            }
        }
        request.step_header(-1, true); // no step follows
        request
    }

    fn step_header(&mut self, operation: i32, last: bool) {
        self.int(operation);
        self.0.push(last.into());
        self.int(-1);
    }

    /// Ends the session and all its nodes.
    pub(crate) fn close_session() -> Self {
        Self::new(-11, 0)
    }

    /// The frame, under the number `xid`.
    pub(crate) fn numbered(mut self, xid: i32) -> Vec<u8> {
        self.0[NUMBER_AT..NUMBER_AT + 4].copy_from_slice(&xid.to_be_bytes());
        framed(self.0)
    }

    fn new(operation: i32, capacity: usize) -> Self {
        let mut request = Self(Vec::with_capacity(12 + capacity));
        request.int(0); // the length
        request.int(0); // the number
        request.int(operation);
        request
    }

    fn of_path(operation: i32, path: &str) -> Self {
        let mut request = Self::new(operation, path.len() + 8);
        request.text(path);
        request
    }

    fn watching(mut self, watch: bool) -> Self {
        self.0.push(watch.into());
        self
    }

    fn int(&mut self, number: i32) {
        self.0.extend(number.to_be_bytes());
    }

    fn text(&mut self, text: &str) {
        self.buffer(text.as_bytes());
    }

    fn buffer(&mut self, bytes: &[u8]) {
        self.int(length(bytes));
        self.0.extend(bytes);
    }
}

/// The first thing on a connection: asks for a session, or for `session` to go on.
pub(crate) fn hello(timeout_ms: i32, last_seen: i64, session: i64, password: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(64);
    frame.extend([0; 4]); // the length
    frame.extend(0_i32.to_be_bytes()); // the protocol's version
    frame.extend(last_seen.to_be_bytes());
    frame.extend(timeout_ms.to_be_bytes());
    frame.extend(session.to_be_bytes());
    frame.extend(length(password).to_be_bytes());
    frame.extend(password);
    frame.push(false.into()); // a server that cannot write is of no use to a lock
    framed(frame)
}

/// Logs in with `user:password`. An answer comes under the number [`XID_LOGIN`].
pub(crate) fn login(user_and_password: &str) -> Vec<u8> {
    let mut request = Request::new(100, user_and_password.len() + 24);
    request.int(0);
    request.text("digest");
    request.text(user_and_password);
    request.numbered(XID_LOGIN)
}

fn framed(mut frame: Vec<u8>) -> Vec<u8> {
    let body = length(&frame[4..]);
    frame[..4].copy_from_slice(&body.to_be_bytes());
    frame
}

fn length(bytes: &[u8]) -> i32 {
    // Names and particulars are bounded far below this.
    i32::try_from(bytes.len()).unwrap_or(i32::MAX)
}

impl Stat {
    /// Whether a session's end removes the node. What is kept for ever, containers, and nodes with a lifetime of their
    /// own have other marks there.
    pub(crate) fn is_ephemeral(&self) -> bool {
        self.session != 0 && self.session != i64::MIN && (self.session >> 56) as u8 != 0xff
    }
}

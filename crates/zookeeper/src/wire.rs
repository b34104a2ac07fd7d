//! ZooKeeper's protocol, as far as locks need it: frames of a length and a body, the body in Jute's encoding (big-endian
//! numbers, strings and buffers with their length before them).
//!
//! Source: `zookeeper.jute` and the programmer's guide of Apache ZooKeeper.

mod reply;
mod request;

pub(crate) use reply::{Answer, Change, Children, Created, Done, Event, Greeting, Node, Reader, Stat};
pub(crate) use request::{Lifetime, Request, Step, hello, login};

/// Numbers of requests that are not ours to choose.
pub(crate) const XID_EVENT: i32 = -1;
pub(crate) const XID_LOGIN: i32 = -4;

/// Longer frames than this are no answer of ZooKeeper: a hundred thousand waiters fit, and so does the first line of any
/// other protocol not.
pub(crate) const LONGEST_FRAME: usize = 16 * 1024 * 1024;

/// What the server says to a request that it refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) i32);

impl Code {
    pub(crate) const UNIMPLEMENTED: Self = Self(-6);
    pub(crate) const NO_NODE: Self = Self(-101);
    pub(crate) const NO_AUTH: Self = Self(-102);
    pub(crate) const BAD_VERSION: Self = Self(-103);
    pub(crate) const NO_CHILDREN_FOR_EPHEMERALS: Self = Self(-108);
    pub(crate) const NODE_EXISTS: Self = Self(-110);
    pub(crate) const SESSION_EXPIRED: Self = Self(-112);
    pub(crate) const INVALID_ACL: Self = Self(-114);
    pub(crate) const AUTH_FAILED: Self = Self(-115);
    pub(crate) const SESSION_MOVED: Self = Self(-118);
    pub(crate) const SASL_REQUIRED: Self = Self(-124);
    pub(crate) const QUOTA_EXCEEDED: Self = Self(-125);
}

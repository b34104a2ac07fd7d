//! The condition under which a grant holds, for transactions of the user's own.

use std::fmt;

/// A comparison for a transaction in the cluster that the lock lives in: that the holder's key is there, as the grant
/// created it. A transaction with it takes effect only while the lock is held; the cluster decides, in the same step in
/// which it writes, so that data beside the lock need no fence.
///
/// `Display` writes it as `etcdctl txn` reads it. With a client of your own it is the comparison
/// `create_revision(key) == create_revision`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdGuard {
    pub(crate) key: Vec<u8>,
    pub(crate) create_revision: i64,
}

impl EtcdGuard {
    /// The holder's key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The revision that created it, which is the fence.
    pub fn create_revision(&self) -> i64 {
        self.create_revision
    }
}

impl fmt::Display for EtcdGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = String::from_utf8_lossy(&self.key).replace('\\', "\\\\").replace('"', "\\\"");
        write!(f, "create(\"{key}\") = \"{}\"", self.create_revision)
    }
}

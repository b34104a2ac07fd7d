//! The condition under which a grant holds, for transactions of the user's own.

use std::fmt;

/// A check for a transaction (`multi`) in the ensemble that the lock lives in: that the holder's node is there. A
/// transaction with it takes effect only while the lock is held; the ensemble decides, in the same step in which it
/// writes, so that data beside the lock need no fence.
///
/// With a client of your own it is `check(path, -1)`, any version: the node's name belongs to this grant alone and never
/// comes back, so that its being there is all there is to check. `path` is the whole one, the chroot included: a client
/// with a chroot of its own strips that off ([`below`](ZooKeeperGuard::below)). The check needs the right to read the
/// node. `Display` shows the path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZooKeeperGuard {
    pub(crate) path: String,
}

impl ZooKeeperGuard {
    /// The holder's node.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The holder's node, as a client with this chroot names it; `None` when it does not lie below.
    pub fn below(&self, chroot: &str) -> Option<&str> {
        self.path.strip_prefix(chroot.trim_end_matches('/')).filter(|rest| rest.starts_with('/'))
    }
}

impl fmt::Display for ZooKeeperGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path)
    }
}

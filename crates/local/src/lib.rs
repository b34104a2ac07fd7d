//! The directory store of Fencepost: locks between the processes of one host, with fences and without a server.
//!
//! `file:/path` names a directory. A lock is a file in it, and who has the kernel's lock on that file (flock(2)) holds
//! it: the kernel frees it at once when the holder dies, however it dies. Grants do not expire; a TTL is ignored, and
//! who wants a bound on a hold sets one in the client.
//!
//! # What it promises, and to whom
//!
//! - **One host.** Network file systems are refused, see [`DirectoryConfig::on_network`].
//! - **Fences** rise over all grants of a name: across `kill -9`, a failure of the machine, and the removal of the
//!   lock's file. They do not rise across what takes the directory itself back: removing it, restoring it from a
//!   backup or a machine from a snapshot, or a reboot when it lies on a `tmpfs`. Nor do they when an older copy is
//!   written into a lock's file, or the file moved away and back. What can be noticed of that is refused as
//!   [`Corrupt`](fencepost_core::error::ErrorKind::Corrupt), with the repair in the message.
//! - **First come, first served**, across processes. A waiter that is stopped (SIGSTOP) at the head of the queue
//!   keeps its turn as a stopped holder keeps its lock; a dead one is passed over at once.
//! - **Readers and permits** hold beside each other, each in a seat of its own that the kernel gives up when its owner dies.
//!   Several locks at once are taken one after the other, which costs no round trip here.
//! - **Children** of a holder do not keep the lock by inheriting descriptors: every descriptor is closed on exec, and a
//!   release unlocks, whoever else has the descriptor. Only [`Store::descriptor`] hands one out. (A child that is forked
//!   and never runs another program has its parent's descriptors: what the parent holds when it dies stays locked until
//!   that child ends.)
//! - **Removing a lock's file** takes the lock from its holder, who is told, and never makes two: takers compare
//!   the file they locked with the one at the path after they recorded their grant. A hold of less than 20 ms may end
//!   before it is told.
//!
//! # A directory shared between users
//!
//! A directory that is made here has mode 0700: it is its user's alone. Make it beforehand to share it: with mode 2770 for a group,
//! or 1777 for everybody. Files in it get read and write rights for whoever may write the directory, and nobody else.
//! Whoever may write it can also break every lock in it. In a sticky directory users cannot remove each other's files, so
//! breaking another user's lock is refused there, and dead waiters of another user are passed over but stay listed as files.
//!
//! # Containers
//!
//! Containers of one host that share the directory share its locks: kernel, boot id and page cache are the host's. The
//! pid shown for a holder is that of its own pid namespace, and the host name that of its container.
//!
//! # Elsewhere than on Linux
//!
//! Waiters look every 50 ms and holders once a second instead of being told, and network file systems are not recognised.

mod beside;
mod cells;
mod config;
mod directory;
mod encode;
mod floor;
mod held;
mod listing;
mod lockfile;
mod loss;
mod persist;
mod problem;
mod queue;
mod record;
mod release;
mod seats;
mod store;
mod turn;
mod watch;

use std::sync::Arc;

use fencepost_core::{
    capabilities::{Capabilities, Class, FenceSource, FreedOnDeath, Order},
    scheme::Scheme,
    store::Store,
};

pub use crate::{config::DirectoryConfig, store::DirectoryStore};

/// The store's name in messages.
const STORE: &str = "directory";

/// `file:` URLs.
pub const SCHEME: Scheme = Scheme {
    names: &["file"],
    capabilities,
    open: |opening| {
        Box::pin(async move {
            let config = DirectoryConfig::from_url(opening.url)?;
            let store = DirectoryStore::open(config, &opening.namespace, opening.clock)?;
            Ok(Arc::new(store) as Arc<dyn Store>)
        })
    },
};

/// The facts about this store.
pub fn capabilities() -> Capabilities {
    Capabilities {
        store: STORE,
        url: "file:/path",
        class: Class::Correctness,
        scope: "one host",
        fence: FenceSource::Issued("counter in the lock's file"),
        expires: false,
        freed_on_death: FreedOnDeath::AtOnce,
        wakes_by: "file event",
        order: Order::FirstCome("a stopped waiter keeps its turn"),
        tells_deletion: true,
        shared: true,
        permits: true,
        several: false,
        cells: true,
    }
}

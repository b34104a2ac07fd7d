//! Hearing of changes: one stream of watches for all of a client's waiters and holders.
//!
//! A waiter watches the claim before its own (W2), a holder watches its own claim (L4). Here they are asked for; `listening`
//! is the task that has the stream.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fencepost_core::{
    clock::{Clock, Moment},
    owner::Owner,
};
use tokio::sync::{Notify, mpsc};

use crate::{late::Late, ledger::Ledger, link::Link, listening::Listening};

/// A holder's watch begins after this: most locks are held for less. It looks back to the grant, so that nothing is missed.
pub(crate) const LATE: Duration = Duration::from_millis(50);

/// Watches are numbered, those of holders from 1 and those of waiters from here.
const FIRST_WAITER: u64 = 1 << 63;

/// Who listens.
#[derive(Debug)]
pub(crate) enum Listener {
    Waiter(Box<Waiter>),
    /// Holds. There are as many as leases: which key it is says the ledger.
    Holder {
        owner: Owner,
        lock: u8,
    },
}

/// Who waits for something to happen to the claim before its own, or to all of them.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) owner: Owner,
    pub(crate) key: Vec<u8>,
    pub(crate) event: Event,
    pub(crate) bell: Arc<Notify>,
}

/// What a waiter waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// That the key goes.
    Deletion,
    /// That the key goes or is written anew.
    Change,
    /// That any of the keys which begin so goes or is written anew.
    ChangeBelow,
}

/// What the task is told.
#[derive(Debug)]
pub(crate) enum Command {
    Watch {
        id: u64,
        from: i64,
        waiter: Box<Waiter>,
    },
    Forget {
        ids: Range<u64>,
    },
    /// What was read of a holder's key after a compaction: it is there as of this revision, or was not to be read.
    Read {
        id: u64,
        from: Option<i64>,
    },
}

/// Where watches are asked for. The task that has the stream ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Ears {
    commands: mpsc::UnboundedSender<Command>,
    ledger: Arc<Ledger>,
    late: Arc<Late>,
    ids: AtomicU64,
}

/// A waiter's watch; ends when dropped.
#[derive(Debug)]
pub(crate) struct Watching<'a> {
    ears: &'a Ears,
    id: u64,
    bell: Arc<Notify>,
}

impl Watching<'_> {
    /// Completes when the key is gone, or may be. Cancel safe.
    pub(crate) async fn rung(&self) {
        self.bell.notified().await;
    }
}

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.ears.tell(Command::Forget { ids: self.id..self.id + 1 });
    }
}

impl Ears {
    pub(crate) fn open(link: Arc<Link>, ledger: Arc<Ledger>, clock: Arc<dyn Clock>) -> Self {
        let (commands, heard) = mpsc::unbounded_channel();
        let late = Arc::new(Late::default());
        let listening = Listening::new(link, ledger.clone(), clock, commands.downgrade(), late.clone());
        tokio::spawn(listening.run(heard));
        Self { commands, ledger, late, ids: AtomicU64::new(FIRST_WAITER) }
    }

    /// A waiter listens for an event from this revision on.
    pub(crate) fn watch(&self, owner: Owner, key: &[u8], event: Event, from: i64) -> Watching<'_> {
        let (id, bell) = (self.ids.fetch_add(1, Relaxed), Arc::new(Notify::new()));
        let waiter = Box::new(Waiter { owner, key: key.to_vec(), event, bell: bell.clone() });
        self.tell(Command::Watch { id, from, waiter });
        Watching { ears: self, id, bell }
    }

    /// A holder since `now` shall hear of whatever happens to its own claim (L4).
    pub(crate) fn holding(&self, owner: Owner, now: Moment) {
        self.late.add(owner, now.after(LATE));
    }

    /// It is being given back by now, so that no watch on it begins any more.
    pub(crate) fn not_holding(&self, owner: &Owner) {
        if self.late.remove(owner) {
            return;
        }
        let ids = self.ledger.unwatch(owner);
        if !ids.is_empty() {
            self.tell(Command::Forget { ids });
        }
    }

    fn tell(&self, command: Command) {
        // A task that has ended belongs to a runtime that has ended; nobody waits in it any more.
        let _ = self.commands.send(command);
    }
}

//! A member's background work: its own signs of life, and whose it sees.

use std::{
    collections::{BTreeSet, HashMap},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fencepost_core::{backoff::jitter, clock::Moment, error::Error};
use tokio::sync::{oneshot, watch};

use super::{Entry, Register, Roll, names};
use crate::{
    cell::{Cell, Edit, Update},
    client::Client,
};

/// Shows signs of life for one member and looks after the others, until the member leaves.
pub(super) struct Keeper {
    pub(super) client: Arc<Client>,
    pub(super) cell: Cell<Register>,
    pub(super) group: String,
    pub(super) roll: Roll,
    pub(super) id: String,
    pub(super) entry: Entry,
    pub(super) watching: Mutex<Watching>,
    pub(super) view: watch::Sender<BTreeSet<String>>,
}

impl Keeper {
    pub(super) async fn keep(mut self, gone: oneshot::Receiver<()>) {
        let client = self.client.clone();
        let mut over = pin!(async move {
            tokio::select! {
                _ = gone => {}
                _ = client.closed() => {}
            }
        });
        let mut version = None;
        let mut beat_at = self.client.clock.now().after(self.pause());
        loop {
            let changed = self.cell.changed_since(version);
            tokio::select! {
                biased; // a sign of life that is due goes before news of others
                () = &mut over => break,
                () = self.client.clock.sleep_until(beat_at) => {
                    beat_at = self.client.clock.now().after(self.pause());
                    if self.beat().await == Beat::Replaced {
                        self.vanish();
                        return;
                    }
                }
                changed = changed => if changed.is_err() {
                    tokio::select! {
                        () = &mut over => break,
                        () = self.client.clock.sleep_until(beat_at) => {}
                    }
                },
            }
            match self.cell.look().await {
                Ok(found) => {
                    version = found.version();
                    let mut register = found.value.unwrap_or_default();
                    self.watching().drop_dead(self.client.clock.now(), &mut register);
                    self.show(&register);
                }
                // What cannot be read, a register of a later version for instance, would be told to have changed again and
                // again.
                Err(_) => tokio::select! {
                    () = &mut over => break,
                    () = self.client.clock.sleep_until(beat_at) => {}
                },
            }
        }
        self.vanish();
        if let Err(error) = self.leave().await {
            tracing::debug!(%error, "a member that left is gone after its TTL");
        }
    }

    /// Nobody shows signs of life for it any more.
    fn vanish(&self) {
        self.view.send_if_modified(|view| view.remove(&self.id));
    }

    /// Whoever leaves last takes the group off the roll.
    async fn leave(&self) -> Result<(), Error> {
        let cell = self.cell.parting();
        let left = cell.update(|found| {
            let Some(mut register) = found else { return Edit::Leave };
            match register.members.get(&self.id) {
                Some(entry) if entry.incarnation == self.entry.incarnation => {
                    register.members.remove(&self.id);
                    if register.members.is_empty() { Edit::Remove } else { Edit::Write(register) }
                }
                _ => Edit::Leave,
            }
        });
        match left.await? {
            Update::Removed { .. } => self.roll.parting().strike([self.group.clone()].into()).await,
            left => left.settled("the group"),
        }
    }

    /// A sign of life. The dead go with it, so that it costs no change of its own.
    async fn beat(&mut self) -> Beat {
        self.entry.beat += 1;
        let mut outcome = Beat::Shown;
        let beat = self.cell.update(|found| {
            outcome = Beat::Shown;
            let mut register = found.unwrap_or_default();
            self.watching().drop_dead(self.client.clock.now(), &mut register);
            if register.members.get(&self.id).is_some_and(|there| there.incarnation != self.entry.incarnation) {
                outcome = Beat::Replaced;
                return Edit::Leave;
            }
            // Who was taken for dead, after a pause, and not replaced since is back by this.
            register.members.insert(self.id.clone(), self.entry.clone());
            Edit::Write(register)
        });
        if let Err(error) = beat.await {
            tracing::debug!(%error, "a sign of life was not answered");
        }
        outcome
    }

    /// Shows who is there; this member only as long as it counts as alive.
    fn show(&self, register: &Register) {
        let mut names = names(register);
        if register.members.get(&self.id).is_none_or(|there| there.incarnation != self.entry.incarnation) {
            names.remove(&self.id);
        }
        self.view.send_if_modified(|view| {
            let different = *view != names;
            *view = names;
            different
        });
    }

    fn watching(&self) -> MutexGuard<'_, Watching> {
        self.watching.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pause(&self) -> Duration {
        (Duration::from_millis(self.entry.ttl_ms) / 3).mul_f64(1.0 - jitter() / 5.0)
    }
}

/// What became of a sign of life.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beat {
    Shown,
    /// Another joined under the same id while this one was taken for dead.
    Replaced,
}

/// Who is seen to live: a member whose count did not rise for its TTL, on this process's clock, is dead. So no two
/// clocks are compared.
#[derive(Debug, Default)]
pub(super) struct Watching(HashMap<String, Sign>);

#[derive(Debug)]
struct Sign {
    incarnation: String,
    beat: u64,
    seen_at: Moment,
}

impl Watching {
    /// Takes the dead off the register; whether there were any.
    pub(super) fn drop_dead(&mut self, now: Moment, register: &mut Register) -> bool {
        self.0.retain(|id, _| register.members.contains_key(id));
        let before = register.members.len();
        register.members.retain(|id, entry| match self.0.get(id) {
            Some(sign) if sign.incarnation == entry.incarnation && sign.beat == entry.beat => {
                now.since(sign.seen_at) < Duration::from_millis(entry.ttl_ms)
            }
            _ => {
                let (incarnation, beat) = (entry.incarnation.clone(), entry.beat);
                self.0.insert(id.clone(), Sign { incarnation, beat, seen_at: now });
                true
            }
        });
        register.members.len() < before
    }
}

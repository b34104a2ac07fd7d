//! Commands of newer servers that compare and change in one step, where a script did it before: `DELEX … IFEQ` and
//! `SET … IFEQ` (Redis 8.4), `DELIFEQ` (Valkey 9). They compare the whole record, so the client remembers what it wrote.
//!
//! Whatever they do not settle, a record that has changed since or a server that no longer knows them after a failover,
//! is left to the script.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering::Relaxed},
    },
};

use fencepost_core::{claim::Claim, owner::Owner};
use redis::{Cmd, Value, cmd, pipe};

use crate::nodes::Nodes;

const NEITHER: u8 = 0;
const DELEX: u8 = 1;
const DELIFEQ: u8 = 2;

#[derive(Debug, Default)]
pub(crate) struct Scriptless {
    known: AtomicU8,
    /// What was written under an owner value, where the server knows such commands.
    records: Mutex<HashMap<Owner, Arc<str>>>,
}

impl Scriptless {
    /// Tries the commands on a key of ours that is never there.
    pub(crate) async fn probe(&self, nodes: &Nodes, key: &str) {
        let mut tries = pipe();
        tries.cmd("DELEX").arg(key).arg("IFEQ").arg("-");
        tries.cmd("DELIFEQ").arg(key).arg("-");
        // Who cannot be asked, or refuses for whatever reason, is served by scripts.
        let Ok(answers) = nodes.read(key, &mut tries).await else { return };
        let known = match &answers[..] {
            [Value::Int(_), _] => DELEX,
            [_, Value::Int(_)] => DELIFEQ,
            _ => NEITHER,
        };
        self.known.store(known, Relaxed);
    }

    /// Notes what was written for a grant.
    pub(crate) fn remember(&self, owner: &Owner, record: &str) {
        if self.known.load(Relaxed) != NEITHER {
            self.records().insert(*owner, record.into());
        }
    }

    /// Removes the record of a grant, if it is still what was written. The grant is forgotten.
    pub(crate) fn removal(&self, key: &str, owner: &Owner) -> Option<Cmd> {
        let known = self.known.load(Relaxed);
        if known == NEITHER {
            return None;
        }
        let record = self.records().remove(owner)?;
        let mut removal = cmd(if known == DELEX { "DELEX" } else { "DELIFEQ" });
        removal.arg(key);
        if known == DELEX {
            removal.arg("IFEQ");
        }
        removal.arg(&*record);
        Some(removal)
    }

    /// Renews a grant, if its record is still what was written.
    pub(crate) fn renewal(&self, key: &str, claim: &Claim) -> Option<Cmd> {
        if self.known.load(Relaxed) == NEITHER {
            return None;
        }
        let record = self.records().get(claim.owner())?.clone();
        let mut renewal = cmd("SET");
        renewal.arg(key).arg(&*record).arg("IFEQ").arg(&*record).arg("PX").arg(claim.ttl.millis());
        Some(renewal)
    }

    /// The record has changed, or the server does not know the commands any more.
    pub(crate) fn forget(&self, owner: &Owner) {
        self.records().remove(owner);
    }

    fn records(&self) -> MutexGuard<'_, HashMap<Owner, Arc<str>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

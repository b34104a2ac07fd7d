//! What a claim's key holds: JSON that people can read with `etcdctl get`. Who holds or waits is decided by the key's age;
//! the record says whose it is.

use fencepost_core::{
    claim::{Claimant, Holder, Mode, Waiter},
    fence::Fence,
    owner::Owner,
};
use serde::{Deserialize, Serialize};

use crate::{api::KeyValue, config::Recipe, failure::Failure};

/// The version of this layout. One that is newer is refused rather than misread.
const VERSION: u32 = 1;

/// A claim as it is stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    #[serde(rename = "v")]
    version: u32,
    #[serde(default)]
    pub(crate) mode: Mode,
    /// The slots of its permits, once it has them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) slots: Vec<u32>,
    /// In hexadecimal digits; absent with one of etcd's own clients.
    #[serde(default)]
    owner: Option<String>,
    #[serde(flatten)]
    claimant: Claimant,
    /// When it was asked for, on the claimant's clock.
    #[serde(default)]
    since_unix_ms: Option<u64>,
}

impl Record {
    pub(crate) fn new(owner: &Owner, mode: Mode, claimant: &Claimant, since_unix_ms: u64) -> Self {
        let (owner, claimant) = (Some(owner.to_string()), claimant.clone());
        Self { version: VERSION, mode, slots: Vec::new(), owner, claimant, since_unix_ms: Some(since_unix_ms) }
    }

    pub(crate) fn with_slots(self, slots: &[u32]) -> Self {
        Self { slots: slots.to_vec(), ..self }
    }

    /// The same, of a semaphore of so many permits.
    pub(crate) fn with_limit(self, of: u32) -> Self {
        match self.mode {
            Mode::Permits { count, .. } => Self { mode: Mode::Permits { count, of }, ..self },
            Mode::Exclusive | Mode::Shared => self,
        }
    }

    /// How many permits are wanted or held, and of how many.
    pub(crate) fn permits(&self) -> (u32, u32) {
        match self.mode {
            Mode::Permits { count, of } => (count, of),
            Mode::Exclusive | Mode::Shared => (0, 0),
        }
    }

    pub(crate) fn to_json(&self) -> Vec<u8> {
        // Strings, numbers and a list of strings always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a claim. Those of etcd's own clients hold nothing, and are exclusive.
    pub(crate) fn read(kv: &KeyValue, recipe: Recipe) -> Result<Self, Failure> {
        match serde_json::from_slice::<Self>(&kv.value) {
            Ok(record) if record.version == VERSION => Ok(record),
            Err(_) if recipe == Recipe::Etcd => {
                let claimant = Claimant {
                    host: "unknown".into(),
                    user: "a client of etcd's own recipe".into(),
                    ..Default::default()
                };
                Ok(Self {
                    version: VERSION,
                    mode: Mode::Exclusive,
                    slots: Vec::new(),
                    owner: None,
                    claimant,
                    since_unix_ms: None,
                })
            }
            _ => Err(Failure::foreign(&kv.key)),
        }
    }

    /// Whose claim it is; `None` with one of etcd's own clients.
    pub(crate) fn owner(&self) -> Option<Owner> {
        self.owner.as_ref()?.parse().ok()
    }

    pub(crate) fn holder(self, kv: &KeyValue) -> Holder {
        Holder {
            owner: self.owner(),
            claimant: self.claimant,
            mode: self.mode,
            slots: self.slots.into(),
            fence: fence(kv),
            since_unix_ms: self.since_unix_ms,
            ..Default::default()
        }
    }

    pub(crate) fn waiter(self) -> Waiter {
        Waiter { claimant: self.claimant, mode: self.mode, since_unix_ms: self.since_unix_ms }
    }
}

/// The fence of a claim: the revision that created its key. The revision in an answer's header is another one as soon
/// as somebody else writes.
pub(crate) fn fence(kv: &KeyValue) -> Option<Fence> {
    Fence::new(u64::try_from(kv.create_revision).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(value: &[u8]) -> KeyValue {
        KeyValue { key: b"k".to_vec(), value: value.to_vec(), create_revision: 7, ..Default::default() }
    }

    #[test]
    fn a_record_reads_back_and_nothing_foreign_does() {
        let claimant =
            Claimant { host: "h\n\"".into(), pid: 7, user: "이".into(), labels: vec![("a".into(), "b".into())] };
        let owner = Owner::random().unwrap();
        let record = Record::new(&owner, Mode::Exclusive, &claimant, 1_700_000_000_000);
        let kv = stored(&record.to_json());
        assert_eq!(Record::read(&kv, Recipe::Fencepost).unwrap(), record);
        let holder = record.holder(&kv);
        assert_eq!((holder.owner, holder.claimant, holder.fence), (Some(owner), claimant, Fence::new(7)));
        for foreign in ["", "x", "{}", "7", r#"{"v":2,"host":"h","pid":1,"user":"u"}"#] {
            assert!(Record::read(&stored(foreign.as_bytes()), Recipe::Fencepost).is_err(), "{foreign}");
        }
        assert!(Record::read(&stored(b""), Recipe::Etcd).is_ok());
        let newer = stored(br#"{"v":2,"host":"h","pid":1,"user":"u"}"#);
        assert!(Record::read(&newer, Recipe::Etcd).is_err(), "ours, and newer than we can read");
    }
}

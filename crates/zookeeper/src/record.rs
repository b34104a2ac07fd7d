//! What a claim's node holds: who it is, for people, and what its grant has become since it was made.

use std::time::Duration;

use fencepost_core::claim::Claimant;
use serde::{Deserialize, Serialize};

/// The particulars of a claim, as JSON that people can read in `zkCli.sh`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The layout's version.
    v: u32,
    /// The session's timeout as it was granted, in milliseconds.
    ttl_ms: u64,
    /// Whether a writer lets readers in beside it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) shared: bool,
    /// The permits that it holds; none while it waits.
    #[serde(default, skip_serializing_if = "<[u32]>::is_empty")]
    pub(crate) slots: Box<[u32]>,
    #[serde(flatten)]
    pub(crate) claimant: Claimant,
}

const VERSION: u32 = 1;

impl Record {
    pub(crate) fn new(claimant: &Claimant, ttl: Duration) -> Self {
        Self {
            v: VERSION,
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            shared: false,
            slots: Box::default(),
            claimant: claimant.clone(),
        }
    }

    /// The same of a writer that became a reader.
    pub(crate) fn shared(self) -> Self {
        Self { shared: true, ..self }
    }

    /// The same of a claim that was granted these permits.
    pub(crate) fn with_slots(self, slots: &[u32]) -> Self {
        Self { slots: slots.into(), ..self }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Strings, numbers and a list of strings always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What another program wrote is shown as the name of its host, which is what Curator writes.
    pub(crate) fn read(data: &[u8]) -> Self {
        serde_json::from_slice(data).unwrap_or_else(|_| {
            let text = String::from_utf8_lossy(data).chars().filter(|c| !c.is_control()).take(80).collect();
            Self {
                v: 0,
                ttl_ms: 0,
                shared: false,
                slots: Box::default(),
                claimant: Claimant { host: text, user: "another program".to_owned(), ..Claimant::default() },
            }
        })
    }

    /// For how long at most the node outlives its client.
    pub(crate) fn ttl(&self) -> Option<Duration> {
        (self.ttl_ms > 0).then(|| Duration::from_millis(self.ttl_ms))
    }
}

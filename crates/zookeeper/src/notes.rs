//! What stands in the data of a lock's container. Plain locks never write there, and see by its version, for nothing, whether
//! anybody has: it comes with every listing.
//!
//! - **Readers** need the fence of the last writer, whose node is gone by then. The first reader leaves a *mark*, before it
//!   makes its node. Every writer whose node is made after that finds the mark, and writes its own fence there before it
//!   believes in its grant. Where no fence is written yet, the transaction of the mark stands for it: it is higher than every
//!   writer's that came before, and lower than every later one's.
//! - **A semaphore's limit**, once it was changed. Until then it is what the first in the queue says.

use fencepost_core::fence::Fence;
use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    session::Session,
    wire::{self, Done, Request, Stat, Step},
};

/// The notes of one lock, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Notes {
    /// The format's version.
    v: u32,
    /// Writers write their fences here.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) readers: bool,
    /// That of the last writer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fence: Option<u64>,
    /// How many permits there are since the change that wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<u32>,
}

const VERSION: u32 = 1;

impl Notes {
    /// Readers use the lock.
    pub(crate) fn mark() -> Self {
        Self { v: VERSION, readers: true, fence: None, limit: None }
    }

    /// Readers use the lock, and this is what they carry.
    pub(crate) fn of_writer(fence: Fence) -> Self {
        Self { fence: Some(fence.get()), ..Self::mark() }
    }

    /// The limit was changed.
    pub(crate) fn of_limit(of: u32) -> Self {
        Self { v: VERSION, readers: false, fence: None, limit: Some(of) }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        // Numbers always serialize.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// What makes no sense counts as nothing: to mark a lock anew is safe at any time.
    fn of(data: &[u8]) -> Result<Self, Failure> {
        match serde_json::from_slice::<Self>(data) {
            Ok(notes) if notes.v > VERSION => Err(Failure::later_version("the data of the lock's container")),
            Ok(notes) => Ok(notes),
            Err(_) => Ok(Self::default()),
        }
    }
}

/// A container as it was read.
#[derive(Clone, Debug)]
pub(crate) struct Container {
    pub(crate) notes: Notes,
    pub(crate) stat: Stat,
}

impl Container {
    pub(crate) fn of(node: &wire::Node) -> Result<Self, Failure> {
        Ok(Self { notes: Notes::of(&node.data)?, stat: node.stat })
    }

    pub(crate) async fn read(session: &Session, lock: &str) -> Result<Self, Failure> {
        Self::of(&session.ask(Request::get(lock, false)).await?)
    }

    /// What readers carry: the last writer's fence, else the transaction that wrote the mark.
    pub(crate) fn fence(&self) -> Result<Fence, Failure> {
        self.notes.fence.and_then(Fence::new).map_or_else(|| fence(self.stat.modified), Ok)
    }
}

/// Writes notes for as long as `node` stands in the queue. Answers whether it did.
pub(crate) async fn write(session: &Session, lock: &str, node: &str, notes: &Notes) -> Result<Done, Failure> {
    let (own, data) = (format!("{lock}/{node}"), notes.to_bytes());
    let steps = [Step::Check { path: &own, version: None }, Step::Write { path: lock, data: &data, version: None }];
    session.ask(Request::transaction(&steps)).await
}

/// A transaction as a fence.
pub(crate) fn fence(transaction: i64) -> Result<Fence, Failure> {
    u64::try_from(transaction).ok().and_then(Fence::new).ok_or_else(Failure::puzzling)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_read_back_and_anything_else_is_nothing() {
        for notes in [Notes::mark(), Notes::of_writer(Fence::new(7).unwrap()), Notes::of_limit(5)] {
            assert_eq!(Notes::of(&notes.to_bytes()).unwrap(), notes);
        }
        for nothing in ["", "somebody else's", "{}", "7"] {
            assert_eq!(Notes::of(nothing.as_bytes()).unwrap(), Notes::default(), "{nothing}");
        }
        assert!(Notes::of(br#"{"v":2,"readers":true}"#).is_err(), "a later version's are not passed over");
    }
}

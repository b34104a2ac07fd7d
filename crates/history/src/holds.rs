//! Holds and what was done under them: what each client believed, and what the store had promised.

use crate::{
    event::{Answer, Holding, Verb},
    history::Name,
};

/// Later than every time.
pub(crate) const NEVER: u64 = u64::MAX;

/// One grant, from the asking to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The lock.
    pub lock: Name,
    /// The grant.
    pub grant: Name,
    /// The client.
    pub by: Name,
    /// How it was granted.
    pub holding: Holding,
    /// Since when a writer asks to be a reader from there on: it holds as a reader at least.
    pub reader_since: Option<u64>,
    /// Which permits it has, where that was told.
    pub slots: Option<Box<[u32]>>,
    /// The line with the answer that granted it.
    pub line: u32,
    /// When it was asked for.
    pub asked: u64,
    /// When the answer came.
    pub granted: u64,
    /// Its fence.
    pub fence: Option<u64>,
    /// The store may not grant the lock to another before this: the TTL counts from before the last request that was
    /// answered, and a release ends it as soon as it is asked for.
    pub sure_until: u64,
    /// What the store had promised if nobody had given anything back.
    pub promised_until: u64,
    /// The store may still hold it until this, at the latest.
    pub possible_until: u64,
    /// The client believes until this.
    pub believed_until: u64,
    /// The client believes no more, whatever answers still come.
    pub(crate) closed: bool,
}

/// How something is held, as far as that decides who may be beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner<'a> {
    Alone,
    Shared,
    /// With these permits, where that was told. Their number is looked at elsewhere.
    Permits(&'a [u32]),
}

impl Manner<'_> {
    /// Whether the two may not be held at once.
    pub(crate) fn excludes(self, other: Manner<'_>) -> bool {
        match (self, other) {
            (Manner::Shared, Manner::Shared) => false,
            (Manner::Permits(one), Manner::Permits(two)) => one.iter().any(|slot| two.contains(slot)),
            _ => true,
        }
    }
}

impl Hold {
    /// How it was granted.
    pub(crate) fn manner(&self) -> Manner<'_> {
        match self.holding {
            Holding::Alone => Manner::Alone,
            Holding::Shared => Manner::Shared,
            Holding::Permits { .. } => Manner::Permits(self.slots.as_deref().unwrap_or_default()),
        }
    }

    /// How it was held at an instant after its grant, at the least.
    pub(crate) fn manner_at(&self, at: u64) -> Manner<'_> {
        if self.reader_since.is_some_and(|since| since <= at) { Manner::Shared } else { self.manner() }
    }

    /// How an operation is done. What a reader writes had been the writer's: it keeps readers out who came meanwhile.
    pub(crate) fn manner_of(&self, operation: &Operation) -> Manner<'_> {
        if operation.change.is_some() { self.manner() } else { self.manner_at(operation.at) }
    }

    /// How long it is held in each manner, if it is held until `end`: a writer that becomes a reader is one until its end.
    pub(crate) fn stretches(&self, end: u64) -> impl Iterator<Item = (Manner<'_>, u64)> {
        let granted = (self.manner(), self.reader_since.map_or(end, |since| since.min(end)));
        std::iter::once(granted).chain(self.reader_since.map(|_| (Manner::Shared, end)))
    }

    /// Until when the store surely holds it, if it may expire early by `tolerance`. A release is not early.
    pub(crate) fn sure_within(&self, tolerance: u64) -> u64 {
        self.sure_until.min(self.promised_until.saturating_sub(tolerance))
    }
}

/// An attempt to take a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The lock.
    pub lock: Name,
    /// The client.
    pub by: Name,
    /// When it was asked for.
    pub asked: u64,
    /// When the answer came, or the history ended.
    pub ended: u64,
    /// The line with the answer; with the question where there is none.
    pub line: u32,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Granted: the place of the hold.
    Granted(usize),
    /// Another held it.
    Busy,
    /// It failed and nothing was applied.
    Failed,
    /// Nobody knows.
    Unknown,
}

/// A question about a grant that is held, or was: a check, a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) grant: Name,
    pub(crate) verb: Verb,
    pub(crate) asked: u64,
    pub(crate) answered: u64,
    pub(crate) answer: Answer,
    pub(crate) line: u32,
}

/// Something done at a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    pub(crate) at: u64,
    pub(crate) line: u32,
    pub(crate) resource: Name,
    pub(crate) grant: Name,
    pub(crate) fence: Option<u64>,
    pub(crate) taken: bool,
    /// For a write: the version it was built on, and the one it makes.
    pub(crate) change: Option<(u64, u64)>,
}

/// A look into the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sighting {
    pub(crate) lock: Name,
    pub(crate) grant: Option<Name>,
    pub(crate) asked: u64,
    pub(crate) at: u64,
    pub(crate) line: u32,
}

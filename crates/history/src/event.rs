//! The format: one event for each line. The types say it once, for writing (names are strings) and for checking
//! (names are numbers).

use serde::{Deserialize, Serialize};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event<N = String> {
    /// When: nanoseconds on one clock that all of the history shares and that never jumps.
    pub at: u64,
    /// Who: a client, a resource, a store's observer. Each has at most one operation under way.
    pub by: N,
    /// What.
    #[serde(flatten)]
    pub what: What<N>,
}

/// What happened. Times and spans are in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum What<N = String> {
    /// A client is about to ask a store.
    Invoke {
        /// For what.
        verb: Verb,
        /// Of which lock.
        lock: N,
        /// For which grant; chosen by the client before it asks, and never used twice.
        grant: N,
        /// How it is to be held; alone when absent.
        #[serde(default, skip_serializing_if = "Holding::is_alone")]
        holding: Holding,
    },
    /// The answer came.
    Ok {
        /// What it says.
        answer: Answer,
        /// The fence, with a grant.
        #[serde(default = "nothing", skip_serializing_if = "Option::is_none")]
        fence: Option<u64>,
        /// How long the store keeps the lock for it, with a grant or a renewal; absent where nothing expires.
        #[serde(default = "nothing", skip_serializing_if = "Option::is_none")]
        ttl: Option<u64>,
        /// What the TTL counts from: the instant before the request that the store answered was sent. Absent when that
        /// was the question's; it is later for a grant that had been waited for.
        #[serde(default = "nothing", skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
        /// Until when the client believes that it holds; absent when it believes so until it learns otherwise.
        #[serde(default = "nothing", skip_serializing_if = "Option::is_none")]
        until: Option<u64>,
        /// Which permits they are, with a grant of some.
        #[serde(default = "no_slots", skip_serializing_if = "Option::is_none")]
        slots: Option<Box<[u32]>>,
    },
    /// It failed, and nothing was changed in the store.
    Fail {
        /// `busy` when another holds; else anything.
        why: N,
    },
    /// It is not known whether it was applied.
    Unknown {
        /// Why.
        why: N,
    },
    /// A client was told that it lost a grant.
    Lost {
        /// Which.
        grant: N,
        /// Why.
        why: N,
    },
    /// The process of this name ended. What it believed ended with it.
    Died,
    /// The store was made to forget a grant on purpose, by an administrator: no longer its duty to keep it.
    Freed {
        /// Which.
        grant: N,
        /// How.
        why: N,
    },
    /// A look into the store showed the holder of a lock.
    Sighting {
        /// The lock.
        lock: N,
        /// The holder's grant; absent when nobody held it.
        #[serde(default = "absent", skip_serializing_if = "Option::is_none")]
        grant: Option<N>,
        /// When the look began. It saw the store at some instant between this and `at`.
        asked: u64,
    },
    /// A resource was asked for its value.
    Read {
        /// Under which grant.
        grant: N,
        /// The fence that came along.
        #[serde(default = "nothing", skip_serializing_if = "Option::is_none")]
        fence: Option<u64>,
        /// The version that was read.
        version: u64,
        /// Whether the resource answered; false when it refused the fence.
        taken: bool,
    },
    /// A resource was asked to change its value.
    Write {
        /// Under which grant.
        grant: N,
        /// The fence that came along.
        #[serde(default = "nothing", skip_serializing_if = "Option::is_none")]
        fence: Option<u64>,
        /// The version that the writer had read.
        basis: u64,
        /// The version that the write makes.
        version: u64,
        /// Whether the resource accepted it; false when it refused the fence.
        taken: bool,
    },
    /// A fault was made, or ended.
    Fault {
        /// Which.
        fault: N,
        /// Whom it hit.
        target: N,
        /// Whether it begins or ends.
        phase: Phase,
        /// Whether it took effect. A fault that could not be installed proves nothing.
        installed: bool,
    },
    /// A wall clock stands this far from the true time from now on.
    Clock {
        /// Whose.
        of: N,
        /// Milliseconds; negative when it is slow.
        offset_ms: i64,
    },
    /// A remark for people.
    Note {
        /// The remark.
        text: N,
    },
}

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holding {
    /// By one, with nobody beside.
    #[default]
    Alone,
    /// By readers, with no writer beside them.
    Shared,
    /// By holders of permits.
    Permits {
        /// How many it holds.
        count: u32,
        /// How many there are.
        limit: u32,
    },
}

impl Holding {
    /// Whether nobody may be beside it.
    pub fn is_alone(&self) -> bool {
        *self == Holding::Alone
    }
}

/// What a store is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verb {
    /// The lock.
    Acquire,
    /// More time.
    Renew,
    /// To let readers in beside it: a writer that becomes a reader, with no moment in between in which another could write.
    Downgrade,
    /// To take it back.
    Release,
    /// Whether it is still held.
    Check,
}

/// What a store, or for a check the client itself, answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// The lock is held from now on.
    Granted,
    /// Still held; after a downgrade, as a reader's.
    Renewed,
    /// It was held and is free, or handed on, now.
    Released,
    /// Nothing of it was there.
    AlreadyExpired,
    /// Another holds it.
    HeldByOther,
    /// A check: held as far as is known.
    Held,
    /// A check or a renewal: not held any more.
    NotHeld,
}

/// Whether something begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// It begins.
    Begin,
    /// It ends.
    End,
}

// Named because a generic type would otherwise ask for `N: Default`.
fn nothing() -> Option<u64> {
    None
}

fn no_slots() -> Option<Box<[u32]>> {
    None
}

fn absent<N>() -> Option<N> {
    None
}

impl<N> Event<N> {
    /// The same event with other names.
    pub fn map<M>(self, mut name: impl FnMut(N) -> M) -> Event<M> {
        let by = name(self.by);
        Event { at: self.at, by, what: self.what.map(name) }
    }
}

impl<N> What<N> {
    /// A question about a lock that is held alone.
    pub fn asks(verb: Verb, lock: N, grant: N) -> Self {
        What::Invoke { verb, lock, grant, holding: Holding::Alone }
    }

    /// An answer that says nothing besides.
    pub fn says(answer: Answer) -> Self {
        What::Ok { answer, fence: None, ttl: None, from: None, until: None, slots: None }
    }

    /// The same with other names.
    pub fn map<M>(self, mut name: impl FnMut(N) -> M) -> What<M> {
        match self {
            What::Invoke { verb, lock, grant, holding } => {
                What::Invoke { verb, lock: name(lock), grant: name(grant), holding }
            }
            What::Ok { answer, fence, ttl, from, until, slots } => What::Ok { answer, fence, ttl, from, until, slots },
            What::Fail { why } => What::Fail { why: name(why) },
            What::Unknown { why } => What::Unknown { why: name(why) },
            What::Lost { grant, why } => What::Lost { grant: name(grant), why: name(why) },
            What::Died => What::Died,
            What::Freed { grant, why } => What::Freed { grant: name(grant), why: name(why) },
            What::Sighting { lock, grant, asked } => {
                What::Sighting { lock: name(lock), grant: grant.map(&mut name), asked }
            }
            What::Read { grant, fence, version, taken } => What::Read { grant: name(grant), fence, version, taken },
            What::Write { grant, fence, basis, version, taken } => {
                What::Write { grant: name(grant), fence, basis, version, taken }
            }
            What::Fault { fault, target, phase, installed } => {
                What::Fault { fault: name(fault), target: name(target), phase, installed }
            }
            What::Clock { of, offset_ms } => What::Clock { of: name(of), offset_ms },
            What::Note { text } => What::Note { text: name(text) },
        }
    }
}

//! What is asked of a store and what it answers.

use std::{fmt, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{clock::Sent, fence::Fence, limits::Ttl, name::LockName, owner::Owner, user};

/// How a lock is wanted.
///
/// A name that is in use as a lock (exclusive or shared) is refused as a semaphore and the other way round, as is a
/// semaphore with another limit: [`ErrorKind::Mismatch`](crate::error::ErrorKind::Mismatch). It is in use for as
/// long as anybody holds or waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// One holder, nobody beside it.
    #[default]
    Exclusive,
    /// Any number of shared holders, no exclusive one.
    Shared,
    /// `count` of the `of` permits that the semaphore has.
    Permits {
        /// Permits wanted by this claim, all or none, at most [`MOST_PERMITS`](crate::limits::MOST_PERMITS).
        count: u32,
        /// Permits there are.
        of: u32,
    },
}

/// One lock and how it is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The lock.
    pub name: LockName,
    /// How it is wanted.
    pub mode: Mode,
}

/// An owner value and what is, or was, claimed under it.
///
/// Every change in a store is conditional on it (O2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The owner value, unique to this claim (O1).
    pub owner: Owner,
    wants: Arc<[Want]>,
}

impl Holding {
    /// One lock, wanted exclusively.
    pub fn exclusive(name: LockName, owner: Owner) -> Self {
        Self::one(Want { name, mode: Mode::Exclusive }, owner)
    }

    /// One lock, wanted as it says.
    pub fn one(want: Want, owner: Owner) -> Self {
        Self { owner, wants: Arc::new([want]) }
    }

    /// Several locks, all or nothing. `None` when the list is empty, names a lock twice, or has permits among others:
    /// their slots could not be told apart.
    pub fn several(wants: Vec<Want>, owner: Owner) -> Option<Self> {
        let twice = wants.iter().enumerate().any(|(i, want)| wants[..i].iter().any(|other| other.name == want.name));
        let counted = wants.len() > 1 && wants.iter().any(|want| matches!(want.mode, Mode::Permits { .. }));
        (!wants.is_empty() && !twice && !counted).then(|| Self { owner, wants: wants.into() })
    }

    /// The same with every exclusive want a shared one, as after a downgrade.
    pub fn shared(&self) -> Self {
        let wants = self.wants.iter().map(|want| match want.mode {
            Mode::Exclusive => Want { name: want.name.clone(), mode: Mode::Shared },
            Mode::Shared | Mode::Permits { .. } => want.clone(),
        });
        Self { owner: self.owner, wants: wants.collect() }
    }

    /// The locks, never none.
    pub fn wants(&self) -> &[Want] {
        &self.wants
    }

    /// The first lock, which names the claim in messages.
    pub fn name(&self) -> &LockName {
        &self.wants[0].name
    }
}

/// A wish to hold one or several locks, all or nothing.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Who and what.
    pub holding: Holding,
    /// How long the grant shall last without a renewal.
    pub ttl: Ttl,
    /// Who asks, for people to read.
    pub claimant: Arc<Claimant>,
}

impl Claim {
    /// The first lock's name.
    pub fn name(&self) -> &LockName {
        self.holding.name()
    }

    /// The owner value.
    pub fn owner(&self) -> &Owner {
        &self.holding.owner
    }
}

/// Who holds or waits, for people to read. Nothing is decided by it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimant {
    /// The host's name.
    pub host: String,
    /// The process.
    pub pid: u32,
    /// The user's name, or the number where no name is known.
    pub user: String,
    /// `KEY=VALUE` pairs the caller attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<(String, String)>,
}

impl Claimant {
    /// This process on this host, without labels.
    pub fn here() -> Self {
        let uname = rustix::system::uname();
        Self {
            host: uname.nodename().to_string_lossy().into_owned(),
            pid: std::process::id(),
            user: user::name().to_owned(),
            labels: Vec::new(),
        }
    }
}

impl fmt::Display for Claimant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{} pid {}", self.user, self.host, self.pid)?;
        self.labels.iter().try_for_each(|(key, value)| write!(f, " {key}={value}"))
    }
}

/// Whether a claim that cannot be granted now shall queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// Answer [`Claimed::Busy`] and leave nothing behind.
    Once,
    /// Take a place in the queue and answer [`Claimed::Queued`].
    Queue,
}

/// A store's answer to a claim.
#[derive(Clone, Debug)]
pub enum Claimed {
    /// It is held from now on.
    Granted(Grant),
    /// It is held by another and nothing of the claim is left behind. A store that takes several locks in one step and
    /// has no queue for that answers so under either patience; the client then takes them one after the other.
    Busy(Busy),
    /// It is held by another and the claim has a place in the queue.
    Queued(Busy),
}

/// A grant as the store answered it. What may be believed of it, and until when, is decided by the
/// [lease machine](crate::machine).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The instant before the request that granted it was sent (T1).
    pub counted_from: Sent,
    /// The TTL the store granted, which may differ from the one asked for; `None` where grants do
    /// not expire.
    pub ttl: Option<Duration>,
    /// The fence, issued by the very step that granted (F2), where the store issues any. A reader carries that of
    /// the last writer and never advances it; where fences are numbers of the store's whole history, a reader may carry one
    /// between the last writer's and the next one's instead, which a resource cannot tell apart. Of permits, it is the
    /// fence of each slot that the grant has (F3).
    pub fence: Option<Fence>,
    /// The slots of the permits, counted from 0, ascending; empty unless permits were claimed.
    pub slots: Arc<[u32]>,
}

impl Grant {
    /// A grant of a lock, without slots.
    pub fn new(counted_from: Sent, ttl: Option<Duration>, fence: Option<Fence>) -> Self {
        Self { counted_from, ttl, fence, slots: Arc::default() }
    }
}

/// A store's answer to a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Still ours, for `ttl` from `counted_from`.
    Renewed {
        /// The instant before the request was sent.
        counted_from: Sent,
        /// The TTL the store granted.
        ttl: Duration,
    },
    /// No longer ours; nothing was changed.
    Lost(LossReason),
}

/// A store's answer to a release. None of them is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// It was ours and is free, or handed on, now. A claim that was queued has left the queue.
    Released,
    /// Nothing of ours was there: it expired, was deleted, or an earlier try released it.
    AlreadyExpired,
    /// Another holds it; nothing was changed.
    HeldByOther,
}

/// Why a lease is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LossReason {
    /// Its deadline passed without a successful renewal.
    Expired,
    /// Another's record stands in its place.
    TakenOver,
    /// The session it depended on ended in the store.
    SessionExpired,
    /// Its record was removed by somebody.
    Deleted,
    /// The client was closed.
    Closed,
    /// The caller's own bound on the total time held was reached.
    HeldTooLong,
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LossReason::Expired => "it expired before it could be renewed",
            LossReason::TakenOver => "another has taken it over",
            LossReason::SessionExpired => "its session ended in the store",
            LossReason::Deleted => "its record was deleted in the store",
            LossReason::Closed => "the client was closed",
            LossReason::HeldTooLong => "the limit on the time held was reached",
        })
    }
}

/// The outcome of an acquire that did not fail. "Busy" is an answer, not an error (C2).
#[derive(Debug)]
#[must_use = "the lease inside is given back when it is dropped"]
#[expect(clippy::large_enum_variant, reason = "what is acquired is a lease, of much the same size")]
pub enum Attempt<L> {
    /// Held from now on.
    Acquired(L),
    /// Held by another until the end of the waiting time.
    Busy(Busy),
}

impl<L> Attempt<L> {
    /// The lease, or `None` when the lock was busy.
    pub fn acquired(self) -> Option<L> {
        match self {
            Attempt::Acquired(lease) => Some(lease),
            Attempt::Busy(_) => None,
        }
    }
}

/// Who stands in the way of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Busy {
    /// Which lock it is, where several were asked for in one step.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_text_if_any")]
    pub lock: Option<LockName>,
    /// The holder, where the store could still tell.
    pub holder: Option<Holder>,
    /// How many wait before the claim, where the store knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
}

/// A holder as the store shows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Holder {
    /// Who, for people.
    pub claimant: Claimant,
    /// The owner value; left out of every output.
    #[serde(skip)]
    pub owner: Option<Owner>,
    /// How it is held.
    pub mode: Mode,
    /// The slots of its permits.
    #[serde(skip_serializing_if = "<[u32]>::is_empty")]
    pub slots: Box<[u32]>,
    /// The fence of the grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fence: Option<Fence>,
    /// When it was granted: milliseconds since 1970 on the store's clock, or the holder's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
    /// For how long yet, unless renewed; `None` where grants do not expire.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_in: Option<Duration>,
}

/// A waiter as the store shows it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Waiter {
    /// Who, for people.
    pub claimant: Claimant,
    /// How it is wanted.
    pub mode: Mode,
    /// When it came: milliseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since_unix_ms: Option<u64>,
}

/// What a store knows of one lock.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LockState {
    /// The lock.
    #[serde(serialize_with = "as_text")]
    pub name: LockName,
    /// Its holders; at most one that holds it exclusively.
    pub holders: Vec<Holder>,
    /// Its waiters, first come first.
    pub waiters: Vec<Waiter>,
}

fn as_text_if_any<S: serde::Serializer>(name: &Option<LockName>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_some(&name.as_ref().map(LockName::as_str))
}

fn as_text<S: serde::Serializer>(name: &LockName, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(name.as_str())
}

/// A store's answer to breaking a lock by force.
#[derive(Clone, Debug, PartialEq)]
pub enum Forced {
    /// Its holder lost it. The fence does not go back (F4).
    Broken(Option<Holder>),
    /// Nobody held it; nothing was changed.
    NotHeld,
    /// It is held with another fence than the one named; nothing was changed.
    OtherFence(Option<Fence>),
}

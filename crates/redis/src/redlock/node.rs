//! One of the servers: its connections, its verbs, and whether its vote counts.

use std::{
    fmt,
    sync::{Arc, LazyLock, Mutex, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Busy, Claim, Claimant, Holder, Release},
    clock::{Clock, Moment},
    error::Applied,
    name::LockName,
    owner::Owner,
    quorum::{Probation, Vote},
};
use redis::{Cmd, FromRedisValue, Value};
use tokio::sync::Semaphore;

use super::{
    crowd::PLACES,
    debts::Debts,
    opening::{self, Roster},
};
use crate::{
    answer::{holder, text},
    connection::Link,
    failure::Failure,
    record::{self, UNQUEUED},
    room::{Hearing, Room},
    scripts::Script,
};

/// The scripts that only a lock by majority needs.
static CLAIM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../scripts/record.lua"),
        include_str!("../scripts/queue.lua"),
        include_str!("../scripts/holders.lua"),
        include_str!("../scripts/quorum_vote.lua"),
        include_str!("../scripts/quorum_claim.lua")
    ))
});
static RENEW: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("../scripts/record.lua"), include_str!("../scripts/quorum_renew.lua")))
});
static PUT_BACK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../scripts/record.lua"),
        include_str!("../scripts/queue.lua"),
        include_str!("../scripts/holders.lua"),
        include_str!("../scripts/quorum_vote.lua"),
        include_str!("../scripts/quorum_put_back.lua")
    ))
});
static CONFIRM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../scripts/record.lua"),
        include_str!("../scripts/queue.lua"),
        include_str!("../scripts/holders.lua"),
        include_str!("../scripts/quorum_confirm.lua")
    ))
});
static RETRACT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../scripts/record.lua"),
        include_str!("../scripts/queue.lua"),
        include_str!("../scripts/holders.lua"),
        include_str!("../scripts/quorum_retract.lua"),
        include_str!("../scripts/release.lua")
    ))
});

/// One server.
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) link: Arc<Link>,
    pub(super) room: Arc<Room>,
    /// `HOST:PORT`, for people.
    pub(super) address: String,
    pub(super) debts: Debts,
    /// Where waiters stand in line who ask for their places.
    pub(super) places: Semaphore,
    clock: Arc<dyn Clock>,
    roster: Arc<Roster>,
    acquaintance: Mutex<Option<Acquaintance>>,
}

/// What is known of the server behind the present connection.
#[derive(Clone, Copy, Debug)]
struct Acquaintance {
    generation: u64,
    standing: Standing,
}

/// Whether a server's votes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Once it has been up for long enough.
    Since(Probation),
    /// Always, since it does not tell its uptime.
    Unasked,
    /// Never: it is another one of our servers by another name, or a replica.
    Never,
}

impl Standing {
    /// Whether a vote counts at `now` for leases that are at most `longest`.
    pub(super) fn counts(self, now: Moment, longest: Duration) -> bool {
        match self {
            Self::Since(probation) => probation.is_over(now, longest),
            Self::Unasked => true,
            Self::Never => false,
        }
    }
}

/// Where a claim stands at one server.
#[derive(Debug)]
pub(super) enum Place {
    Granted,
    Vote,
    Busy(Busy),
    Queued(Busy),
}

/// What the claim script is told besides the lock's name.
#[derive(Debug)]
pub(super) struct ClaimWords {
    pub(super) owner: String,
    pub(super) ttl: String,
    pub(super) patience: &'static str,
    pub(super) claimant: Arc<Claimant>,
    pub(super) round: String,
    pub(super) ticket: String,
}

impl Node {
    pub(super) fn new(
        index: usize,
        link: Arc<Link>,
        room: Arc<Room>,
        address: String,
        clock: Arc<dyn Clock>,
        roster: Arc<Roster>,
    ) -> Arc<Self> {
        let (debts, places) = (Debts::default(), Semaphore::new(PLACES));
        Arc::new(Self { index, link, room, address, debts, places, clock, roster, acquaintance: Mutex::default() })
    }

    /// The plain `SET NX`, built once for all servers.
    pub(super) async fn set(&self, set: &Cmd) -> Result<bool, Failure> {
        Ok(self.link.ask(set).await? == Value::Okay)
    }

    /// Takes the lock, or a vote or a place in the queue.
    pub(super) async fn claim(&self, name: &LockName, words: &ClaimWords, hearing: Hearing) -> Result<Place, Failure> {
        let mode = if hearing == Hearing::Polling { "P" } else { "S" };
        let channel = &*self.room.channel;
        let ClaimWords { owner, ttl, patience, claimant, round, ticket } = words;
        let json = record::json_with_vote(claimant, channel, Some(format!("{mode}{ticket}")));
        let arguments = [&**owner, ttl, patience, mode, channel, &json, round, ticket];
        let answer = self.link.call(&CLAIM, &self.room.keys.all(name), &arguments).await?;
        let Value::Array(parts) = &answer else { return Err(Failure::puzzling()) };
        match &parts[..] {
            [granted] if text(granted) == Some("granted") => Ok(Place::Granted),
            [what, value, left, Value::Int(waiters)] => {
                let busy = Busy {
                    holder: Some(holder(value, left).ok_or_else(Failure::foreign)?),
                    ahead: u64::try_from(*waiters).ok(),
                    ..Busy::default()
                };
                match text(what) {
                    Some("vote") => Ok(Place::Vote),
                    Some("busy") => Ok(Place::Busy(busy)),
                    Some("queued") => Ok(Place::Queued(busy)),
                    _ => Err(Failure::puzzling()),
                }
            }
            _ => Err(Failure::puzzling()),
        }
    }

    /// Turns a vote into a grant; `false` when the vote is another's by now.
    pub(super) async fn confirm(
        &self,
        name: &LockName,
        owner: &Owner,
        ttl: Duration,
        round: u64,
    ) -> Result<bool, Failure> {
        let arguments = [owner.to_string(), ttl.as_millis().to_string(), round.to_string()];
        let arguments = arguments.each_ref().map(String::as_str);
        match text(&self.link.call(&CONFIRM, &self.room.keys.all(name), &arguments).await?) {
            Some("renewed") => Ok(true),
            Some("deleted" | "taken") => Ok(false),
            _ => Err(Failure::puzzling()),
        }
    }

    /// Puts the record of a lease back that a quorum has; `false` when another's is there.
    pub(super) async fn put_back(&self, claim: &Claim, round: u64) -> Result<bool, Failure> {
        let json = record::json(&claim.claimant, &self.room.channel);
        let arguments = [claim.owner().to_string(), claim.ttl.millis().to_string(), json, round.to_string()];
        let arguments = arguments.each_ref().map(String::as_str);
        match text(&self.link.call(&PUT_BACK, &self.room.keys.all(claim.name()), &arguments).await?) {
            Some("kept") => Ok(true),
            Some("taken") => Ok(false),
            _ => Err(Failure::puzzling()),
        }
    }

    /// Gives back what rounds up to `round` left, the place in the queue included.
    pub(super) async fn retract(&self, name: &LockName, owner: &Owner, round: u64) -> Result<Release, Failure> {
        let arguments = [format!("{UNQUEUED}{owner}"), round.to_string()];
        let arguments = arguments.each_ref().map(String::as_str);
        release(self.link.call(&RETRACT, &self.room.keys.all(name), &arguments).await?)
    }

    /// Gives back whatever is recorded under the owner.
    pub(super) async fn release(&self, name: &LockName, owner: &Owner) -> Result<Release, Failure> {
        let unqueued = format!("{UNQUEUED}{owner}");
        release(self.link.call(&self.room.scripts.release, &self.room.keys.all(name), &[&unqueued]).await?)
    }

    /// One word for each lock, as `quorum_renew.lua` gives it.
    pub(super) async fn renew(&self, keys: &[String], arguments: &[&str]) -> Result<Vec<String>, Failure> {
        let answer = self.link.call(&RENEW, keys, arguments).await?;
        let words = Vec::<String>::from_redis_value(answer).map_err(|_| Failure::puzzling())?;
        if words.len() == keys.len() { Ok(words) } else { Err(Failure::puzzling()) }
    }

    /// Breaks the lock; answers who held it here.
    pub(super) async fn force(&self, name: &LockName) -> Result<Option<Holder>, Failure> {
        // Not repeated: by then a waiter may hold it, who would lose it too.
        let answer = self.link.call_unrepeated(&self.room.scripts.force, &self.room.keys.all(name), &[""; 0]).await?;
        let Value::Array(parts) = &answer else { return Err(Failure::puzzling()) };
        match &parts[..] {
            [free] if text(free) == Some("free") => Ok(None),
            [broken, value, left] if text(broken) == Some("broken") => {
                Ok(Some(holder(value, left).ok_or_else(Failure::puzzling)?))
            }
            _ => Err(Failure::puzzling()),
        }
    }

    /// A vote for, if it counts for leases that are at most `longest`.
    pub(super) async fn counted(&self, ttl: Duration, longest: Duration) -> Vote {
        if self.counts(longest).await { Vote::For { ttl } } else { Vote::Unknown }
    }

    /// Whether this server's votes count now.
    pub(super) async fn counts(&self, longest: Duration) -> bool {
        self.standing().await.is_some_and(|standing| standing.counts(self.now(), longest))
    }

    /// The same as far as it is known without asking the server.
    pub(super) fn counts_already(&self, longest: Duration) -> bool {
        let generation = self.link.generation();
        let known = self.acquaintance().filter(|known| known.generation == generation);
        known.is_some_and(|known| known.standing.counts(self.now(), longest))
    }

    /// What is known of the server. A restart breaks every connection, so that one look for each is enough; it comes
    /// after the answer that is to be counted, and may only tell of a younger server than the one that gave it.
    pub(super) async fn standing(&self) -> Option<Standing> {
        let generation = self.link.generation();
        match *self.acquaintance() {
            Some(known) if known.generation == generation => return Some(known.standing),
            _ => {}
        }
        Box::pin(self.meet()).await.ok()
    }

    /// Asks the server who it is and for how long it has been up, and remembers it for this connection.
    pub(super) async fn meet(&self) -> Result<Standing, Failure> {
        loop {
            let before = self.link.generation();
            let answers = opening::ask_who(&self.link).await?;
            let generation = self.link.generation();
            // A connection made meanwhile may lead to another server than the one that answered.
            if before == generation || before == 0 {
                let standing = self.roster.judge(self, answers);
                let kept = *standing.as_ref().unwrap_or(&Standing::Never);
                *self.acquaintance() = Some(Acquaintance { generation, standing: kept });
                return standing;
            }
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(super) async fn sleep_until(&self, until: Moment) {
        self.clock.sleep_until(until).await;
    }

    pub(super) fn close(&self) {
        // The connection first: a waiter that is woken must find it closed, or it would queue again unheard.
        self.link.close();
        self.room.close();
    }

    fn acquaintance(&self) -> std::sync::MutexGuard<'_, Option<Acquaintance>> {
        self.acquaintance.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a request that failed so may have reached the server, or may do so yet.
pub(super) fn may_have_arrived(failure: &Failure) -> bool {
    failure.applied() != Applied::No
}

fn release(answer: Value) -> Result<Release, Failure> {
    match answer {
        Value::Int(1) => Ok(Release::Released),
        Value::Int(0) => Ok(Release::AlreadyExpired),
        Value::Int(-1) => Ok(Release::HeldByOther),
        _ => Err(Failure::puzzling()),
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("address", &self.address).finish_non_exhaustive()
    }
}

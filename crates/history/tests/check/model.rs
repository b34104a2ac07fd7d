//! Random lives of grants, as a model that can be written as a history and judged without the checker.

use fencepost_history::{Answer, Event, History, Verb, What};
use proptest::prelude::*;

/// One grant, from the asking to its end. All times differ from each other's by construction of [`lives`].
#[derive(Clone, Debug)]
pub(crate) struct Life {
    pub(crate) lock: u8,
    pub(crate) asked: u64,
    pub(crate) granted: u64,
    pub(crate) ttl: Option<u64>,
    pub(crate) until: Option<u64>,
    pub(crate) fence: Option<u64>,
    pub(crate) end: End,
}

/// How a grant ends on the client's side.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Never,
    /// A release that is asked for then; the answer comes with it.
    Released(u64),
    Lost(u64),
    Died(u64),
}

/// An operation at the one resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deed {
    pub(crate) at: u64,
    /// Which life.
    pub(crate) life: usize,
    pub(crate) fence: Option<u64>,
    pub(crate) basis: u64,
    pub(crate) version: u64,
    pub(crate) taken: bool,
}

impl Life {
    pub(crate) fn promised_until(&self) -> u64 {
        self.ttl.map_or(u64::MAX, |ttl| self.asked + ttl)
    }

    pub(crate) fn sure_until(&self) -> u64 {
        match self.end {
            End::Released(at) | End::Lost(at) => self.promised_until().min(at),
            End::Died(at) if self.ttl.is_none() => at,
            End::Died(_) | End::Never => self.promised_until(),
        }
    }

    pub(crate) fn believed_until(&self) -> u64 {
        let until = self.until.unwrap_or(u64::MAX);
        match self.end {
            End::Released(at) | End::Lost(at) | End::Died(at) => until.min(at),
            End::Never => until,
        }
    }
}

/// A few lives, whose times collide often.
pub(crate) fn lives() -> impl Strategy<Value = Vec<Life>> {
    let life = (
        0..2u8,
        0..40u64,
        1..10u64,
        prop::option::of(1..30u64),
        prop::option::of(0..60u64),
        prop::option::of(1..6u64),
        (0..4u8, 1..40u64),
    );
    prop::collection::vec(life, 1..8).prop_map(|all| {
        let of =
            |(lock, asked, took, ttl, until, fence, (end, after)): (u8, u64, u64, _, Option<u64>, _, (u8, u64))| {
                let granted = asked + took;
                let end = match end {
                    0 => End::Never,
                    1 => End::Released(granted + after),
                    2 => End::Lost(granted + after),
                    _ => End::Died(granted + after),
                };
                Life { lock, asked, granted, ttl, until: until.map(|span| asked + span), fence, end }
            };
        all.into_iter().map(of).collect()
    })
}

/// A deed by the number of a life, which may have to be cut to their count, and the time since it was granted.
pub(crate) type RawDeed = (usize, u64, Option<u64>, u64, u64, bool);

/// A few deeds.
pub(crate) fn deeds() -> impl Strategy<Value = Vec<RawDeed>> {
    prop::collection::vec((0..8usize, 0..60u64, prop::option::of(1..6u64), 0..4u64, 0..4u64, any::<bool>()), 0..10)
}

pub(crate) fn place(lives: &[Life], raw: &[RawDeed]) -> Vec<Deed> {
    let mut deeds: Vec<Deed> = raw
        .iter()
        .map(|(life, after, fence, basis, version, taken)| {
            let life = life % lives.len();
            let at = lives[life].granted + after;
            Deed { at, life, fence: *fence, basis: *basis, version: *version, taken: *taken }
        })
        .collect();
    deeds.sort_by_key(|deed| deed.at);
    deeds
}

/// The history of these lives. Each has a client of its own.
pub(crate) fn history(lives: &[Life], deeds: &[Deed]) -> History {
    let mut events = Vec::new();
    for (index, life) in lives.iter().enumerate() {
        let (by, grant, lock) = (format!("client {index}"), format!("grant {index}"), format!("lock {}", life.lock));
        let mut push = |at, what| events.push(Event { at, by: by.clone(), what });
        push(life.asked, What::Invoke { verb: Verb::Acquire, lock: lock.clone(), grant: grant.clone() });
        let (ttl, until, fence) = (life.ttl, life.until, life.fence);
        push(life.granted, What::Ok { answer: Answer::Granted, fence, ttl, from: None, until });
        match life.end {
            End::Never => {}
            End::Released(at) => {
                push(at, What::Invoke { verb: Verb::Release, lock, grant });
                push(at, What::Ok { answer: Answer::AlreadyExpired, fence: None, ttl: None, from: None, until: None });
            }
            End::Lost(at) => push(at, What::Lost { grant, why: "told".to_owned() }),
            End::Died(at) => push(at, What::Died),
        }
    }
    for deed in deeds {
        let grant = format!("grant {}", deed.life);
        let Deed { at, fence, basis, version, taken, .. } = *deed;
        events.push(Event { at, by: "ledger".to_owned(), what: What::Write { grant, fence, basis, version, taken } });
    }
    History::of(events)
}

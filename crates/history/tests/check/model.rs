//! Random lives of grants, as a model that can be written as a history and judged without the checker.

use fencepost_history::{Answer, Event, History, Holding, Verb, What};
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
    pub(crate) holding: Holding,
    pub(crate) slots: Option<Box<[u32]>>,
    /// When it asks to be a reader from there on, which is granted at once. Only of one that is alone.
    pub(crate) reader_since: Option<u64>,
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
    /// For a write: the version it was built on, and the one it makes.
    pub(crate) change: Option<(u64, u64)>,
    pub(crate) taken: bool,
}

/// How many permits there are in the model.
pub(crate) const LIMIT: u32 = 3;

impl Deed {
    /// A write remains what its grant was given for; a read is a reader's as soon as the writer asked to be one.
    pub(crate) fn of_reader(&self, life: &Life) -> bool {
        let since = life.reader_since.filter(|_| self.change.is_none());
        life.holding == Holding::Shared || since.is_some_and(|since| since <= self.at)
    }
}

impl Life {
    pub(crate) fn permits(&self) -> Option<u32> {
        match self.holding {
            Holding::Permits { count, .. } => Some(count),
            Holding::Alone | Holding::Shared => None,
        }
    }

    /// By the definition: readers are beside readers, and permits beside others of other slots.
    pub(crate) fn excludes(&self, other: &Life) -> bool {
        let slots = |life: &Life| life.slots.iter().flatten().copied().collect::<Vec<_>>();
        match (self.holding, other.holding) {
            (Holding::Shared, Holding::Shared) => false,
            (Holding::Permits { .. }, Holding::Permits { .. }) => {
                slots(self).iter().any(|slot| slots(other).contains(slot))
            }
            _ => true,
        }
    }

    /// How long this one keeps the other one out, if it is held until `end`: a writer that became a reader keeps readers out only
    /// until it asked for that.
    pub(crate) fn keeps_out_until(&self, other: &Life, end: u64) -> u64 {
        match self.reader_since {
            _ if !self.excludes(other) => 0,
            Some(since) if other.holding == Holding::Shared => since.min(end),
            _ => end,
        }
    }

    /// Whether their fences are of one sequence.
    pub(crate) fn shares_fences_with(&self, other: &Life) -> bool {
        match (self.permits(), other.permits()) {
            (None, None) => true,
            (Some(_), Some(_)) => self.excludes(other),
            _ => false,
        }
    }

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

type RawLife =
    (u8, u64, u64, Option<u64>, Option<u64>, Option<u64>, (u8, u64), (Holding, Option<Box<[u32]>>), Option<u64>);

/// Mostly alone; else as a reader, or with permits whose slots are told or not.
fn holding() -> impl Strategy<Value = (Holding, Option<Box<[u32]>>)> {
    let permits = (1..=2u32, prop::option::of(0..LIMIT)).prop_map(|(count, first)| {
        let slots = first.map(|first| (first..first + count).map(|slot| slot % LIMIT).collect());
        (Holding::Permits { count, limit: LIMIT }, slots)
    });
    prop_oneof![3 => Just((Holding::Alone, None)), 2 => Just((Holding::Shared, None)), 2 => permits]
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
        holding(),
        prop::option::weighted(0.3, 1..30u64),
    );
    prop::collection::vec(life, 1..8).prop_map(|all| {
        let of = |(lock, asked, took, ttl, until, fence, (end, after), (holding, slots), writes_for): RawLife| {
            let granted = asked + took;
            let end = match end {
                0 => End::Never,
                1 => End::Released(granted + after),
                2 => End::Lost(granted + after),
                _ => End::Died(granted + after),
            };
            let until = until.map(|span| asked + span);
            let reader_since = writes_for.filter(|_| holding.is_alone()).map(|span| granted + span);
            Life { lock, asked, granted, ttl, until, fence, holding, slots, reader_since, end }
        };
        all.into_iter().map(of).collect()
    })
}

/// A deed by the number of a life, which may have to be cut to their count, and the time since it was granted.
pub(crate) type RawDeed = (usize, u64, Option<u64>, Option<(u64, u64)>, bool);

/// A few deeds.
pub(crate) fn deeds() -> impl Strategy<Value = Vec<RawDeed>> {
    let change = prop::option::weighted(0.7, (0..4u64, 0..4u64));
    prop::collection::vec((0..8usize, 0..60u64, prop::option::of(1..6u64), change, any::<bool>()), 0..10)
}

pub(crate) fn place(lives: &[Life], raw: &[RawDeed]) -> Vec<Deed> {
    let mut deeds: Vec<Deed> = raw
        .iter()
        .map(|(life, after, fence, change, taken)| {
            let life = life % lives.len();
            let at = lives[life].granted + after;
            Deed { at, life, fence: *fence, change: *change, taken: *taken }
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
        push(
            life.asked,
            What::Invoke { verb: Verb::Acquire, lock: lock.clone(), grant: grant.clone(), holding: life.holding },
        );
        let (ttl, until, fence) = (life.ttl, life.until, life.fence);
        let slots = life.slots.clone();
        push(life.granted, What::Ok { answer: Answer::Granted, fence, ttl, from: None, until, slots });
        if let Some(at) = life.reader_since {
            push(at, What::asks(Verb::Downgrade, lock.clone(), grant.clone()));
            // No more time than it had.
            let (answer, from) = (Answer::Renewed, Some(life.asked));
            push(at, What::Ok { answer, fence: None, ttl, from, until, slots: None });
        }
        match life.end {
            End::Never => {}
            End::Released(at) => {
                push(at, What::asks(Verb::Release, lock, grant));
                push(at, What::says(Answer::AlreadyExpired));
            }
            End::Lost(at) => push(at, What::Lost { grant, why: "told".to_owned() }),
            End::Died(at) => push(at, What::Died),
        }
    }
    for deed in deeds {
        let grant = format!("grant {}", deed.life);
        let Deed { at, fence, taken, .. } = *deed;
        let what = match deed.change {
            Some((basis, version)) => What::Write { grant, fence, basis, version, taken },
            None => What::Read { grant, fence, version: 0, taken },
        };
        events.push(Event { at, by: "ledger".to_owned(), what });
    }
    History::of(events)
}

//! A line read in one go. What `serde` makes of [`Event`] itself has to keep all fields until it knows which event it is; this has
//! room for each field of any, and needs to keep nothing. What it cannot read is read that way, which also says what is wrong.

use serde::Deserialize;

use crate::{
    event::{Answer, Event, Holding, Phase, Verb, What},
    reader::Text,
};

/// The name of an event.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Invoke,
    Ok,
    Fail,
    Unknown,
    Lost,
    Died,
    Freed,
    Sighting,
    Read,
    Write,
    Fault,
    Clock,
    Note,
}

/// Every field of every event.
#[derive(Deserialize)]
pub(crate) struct Line<'a> {
    at: u64,
    #[serde(borrow)]
    by: Text<'a>,
    event: Kind,
    verb: Option<Verb>,
    #[serde(borrow)]
    lock: Option<Text<'a>>,
    #[serde(borrow)]
    grant: Option<Text<'a>>,
    #[serde(default)]
    holding: Holding,
    answer: Option<Answer>,
    fence: Option<u64>,
    ttl: Option<u64>,
    from: Option<u64>,
    until: Option<u64>,
    slots: Option<Box<[u32]>>,
    #[serde(borrow)]
    why: Option<Text<'a>>,
    asked: Option<u64>,
    version: Option<u64>,
    basis: Option<u64>,
    taken: Option<bool>,
    #[serde(borrow)]
    fault: Option<Text<'a>>,
    #[serde(borrow)]
    target: Option<Text<'a>>,
    phase: Option<Phase>,
    installed: Option<bool>,
    #[serde(borrow)]
    of: Option<Text<'a>>,
    offset_ms: Option<i64>,
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

impl<'a> Line<'a> {
    /// The event; none when a field is missing.
    pub(crate) fn event(self) -> Option<Event<Text<'a>>> {
        let Self { answer, fence, ttl, from, until, slots, holding, .. } = self;
        let what = match self.event {
            Kind::Invoke => What::Invoke { verb: self.verb?, lock: self.lock?, grant: self.grant?, holding },
            Kind::Ok => What::Ok { answer: answer?, fence, ttl, from, until, slots },
            Kind::Fail => What::Fail { why: self.why? },
            Kind::Unknown => What::Unknown { why: self.why? },
            Kind::Lost => What::Lost { grant: self.grant?, why: self.why? },
            Kind::Died => What::Died,
            Kind::Freed => What::Freed { grant: self.grant?, why: self.why? },
            Kind::Sighting => What::Sighting { lock: self.lock?, grant: self.grant, asked: self.asked? },
            Kind::Read => What::Read { grant: self.grant?, fence, version: self.version?, taken: self.taken? },
            Kind::Write => {
                let (basis, version, taken) = (self.basis?, self.version?, self.taken?);
                What::Write { grant: self.grant?, fence, basis, version, taken }
            }
            Kind::Fault => {
                let (phase, installed) = (self.phase?, self.installed?);
                What::Fault { fault: self.fault?, target: self.target?, phase, installed }
            }
            Kind::Clock => What::Clock { of: self.of?, offset_ms: self.offset_ms? },
            Kind::Note => What::Note { text: self.text? },
        };
        Some(Event { at: self.at, by: self.by, what })
    }
}

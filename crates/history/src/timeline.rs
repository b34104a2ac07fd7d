//! From events to holds.

use crate::{
    event::{Answer, Holding, Verb, What},
    history::{History, Name},
    holds::{Asked, Attempt, Hold, NEVER, Operation, Outcome, Sighting},
};

/// A history as holds and attempts.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    /// In the order in which they were granted.
    pub holds: Vec<Hold>,
    /// In the order in which they ended.
    pub attempts: Vec<Attempt>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) sightings: Vec<Sighting>,
    /// The holds that a death ended, and when.
    pub(crate) deaths: Vec<(usize, u64)>,
    pub(crate) unknown: u64,
    pub(crate) orphans: u64,
    /// The time of the last event.
    pub(crate) end: u64,
    /// For each name, the place of the hold whose grant it is.
    hold_of: Vec<u32>,
}

/// A question without an answer yet.
#[derive(Clone, Copy)]
struct Open {
    verb: Verb,
    lock: Name,
    grant: Name,
    holding: Holding,
    at: u64,
    line: u32,
}

const NO_HOLD: u32 = u32::MAX;

impl Timeline {
    /// Reads a history.
    pub fn of(history: &History) -> Self {
        let names = history.names();
        let mut timeline = Self { hold_of: vec![NO_HOLD; names], ..Self::default() };
        let mut open: Vec<Option<Open>> = vec![None; names];
        let mut holds_by: Vec<Vec<usize>> = vec![Vec::new(); names];
        // Four events for each hold is the least; what is not needed is never touched.
        let holds = history.events().len() / 4;
        timeline.holds.reserve(holds);
        timeline.attempts.reserve(holds);
        timeline.asked.reserve(holds);
        timeline.end = history.events().last().map_or(0, |last| last.event.at);
        for recorded in history.events() {
            let (event, line) = (&recorded.event, recorded.line);
            let (at, by) = (event.at, event.by);
            match &event.what {
                &What::Invoke { verb, lock, grant, holding } => {
                    // One who asks anew without an answer has given the first question up.
                    if let Some(before) = open[by.index()].replace(Open { verb, lock, grant, holding, at, line }) {
                        timeline.unanswered(by, before, at);
                    }
                    match verb {
                        Verb::Release => timeline.release_begun(grant, at),
                        Verb::Downgrade => timeline.downgrade_begun(grant, at),
                        Verb::Acquire | Verb::Renew | Verb::Check => {}
                    }
                }
                &What::Ok { answer, fence, ttl, from, until, ref slots } => match open[by.index()].take() {
                    Some(question) => {
                        let from = from.unwrap_or(question.at);
                        let reply = Reply { at, line, answer, fence, ttl, from, until, slots };
                        timeline.answered(by, question, reply, &mut holds_by);
                    }
                    None => timeline.orphans += 1,
                },
                &What::Fail { why } => match open[by.index()].take() {
                    Some(question) if question.verb == Verb::Acquire => {
                        let busy = history.text(why) == "busy";
                        let outcome = if busy { Outcome::Busy } else { Outcome::Failed };
                        timeline.attempt(by, question, at, line, outcome);
                    }
                    Some(question) if question.verb == Verb::Downgrade => timeline.downgrade_failed(question),
                    Some(_) => {}
                    None => timeline.orphans += 1,
                },
                What::Unknown { .. } => match open[by.index()].take() {
                    Some(question) => timeline.unanswered(by, question, at),
                    None => timeline.orphans += 1,
                },
                &What::Lost { grant, .. } => timeline.lost(grant, at),
                What::Died => {
                    if let Some(question) = open[by.index()].take() {
                        timeline.unanswered(by, question, at);
                    }
                    timeline.died(at, &mut holds_by[by.index()]);
                }
                &What::Freed { grant, .. } => {
                    if let Some(hold) = timeline.hold_mut(grant) {
                        hold.sure_until = hold.sure_until.min(at);
                    }
                }
                &What::Sighting { lock, grant, asked } => {
                    timeline.sightings.push(Sighting { lock, grant, asked, at, line });
                }
                &What::Read { grant, fence, taken, .. } => {
                    timeline.operations.push(Operation { at, line, resource: by, grant, fence, taken, change: None });
                }
                &What::Write { grant, fence, basis, version, taken } => {
                    let change = Some((basis, version));
                    timeline.operations.push(Operation { at, line, resource: by, grant, fence, taken, change });
                }
                What::Fault { .. } | What::Clock { .. } | What::Note { .. } => {}
            }
        }
        let end = timeline.end;
        for (by, question) in (0..).map(Name).zip(open) {
            if let Some(question) = question {
                timeline.unanswered(by, question, end);
            }
        }
        timeline
    }

    /// The hold of a grant, if it was ever granted.
    pub(crate) fn hold_of(&self, grant: Name) -> Option<usize> {
        self.hold_of.get(grant.index()).filter(|place| **place != NO_HOLD).map(|place| *place as usize)
    }

    fn hold_mut(&mut self, grant: Name) -> Option<&mut Hold> {
        let place = self.hold_of(grant)?;
        self.holds.get_mut(place)
    }

    fn answered(&mut self, by: Name, question: Open, reply: Reply<'_>, holds_by: &mut [Vec<usize>]) {
        let Open { verb, grant, at: asked, .. } = question;
        match (verb, reply.answer) {
            (Verb::Acquire, Answer::Granted) => {
                let place = match self.hold_of(grant) {
                    Some(place) => {
                        self.extend(grant, reply);
                        place
                    }
                    None => self.begin(by, question, reply, holds_by),
                };
                self.attempt(by, question, reply.at, reply.line, Outcome::Granted(place));
            }
            (Verb::Acquire, _) => self.attempt(by, question, reply.at, reply.line, Outcome::Failed),
            (Verb::Renew | Verb::Downgrade, Answer::Renewed) => self.extend(grant, reply),
            (Verb::Renew | Verb::Downgrade, _) => self.lost(grant, reply.at),
            (Verb::Release | Verb::Check, answer) => {
                if verb == Verb::Release
                    && let Some(hold) = self.hold_mut(grant)
                {
                    hold.possible_until = hold.possible_until.min(reply.at);
                }
                self.asked.push(Asked { grant, verb, asked, answered: reply.at, answer, line: reply.line });
            }
        }
    }

    fn begin(&mut self, by: Name, question: Open, reply: Reply<'_>, holds_by: &mut [Vec<usize>]) -> usize {
        let place = self.holds.len();
        let promised = later(reply.from, reply.ttl);
        self.holds.push(Hold {
            lock: question.lock,
            grant: question.grant,
            by,
            holding: question.holding,
            reader_since: None,
            slots: reply.slots.clone(),
            line: reply.line,
            asked: question.at,
            granted: reply.at,
            fence: reply.fence,
            sure_until: promised,
            promised_until: promised,
            possible_until: later(reply.at, reply.ttl),
            believed_until: reply.until.unwrap_or(NEVER),
            closed: false,
        });
        // More holds than fit 32 bits do not fit a memory.
        self.hold_of[question.grant.index()] = u32::try_from(place).expect("fewer holds than fit 32 bits");
        holds_by[by.index()].push(place);
        place
    }

    fn extend(&mut self, grant: Name, reply: Reply<'_>) {
        let Some(hold) = self.hold_mut(grant) else { return };
        let promised = later(reply.from, reply.ttl);
        hold.possible_until = hold.possible_until.max(later(reply.at, reply.ttl));
        if !hold.closed {
            hold.sure_until = hold.sure_until.max(promised);
            hold.promised_until = hold.promised_until.max(promised);
            hold.believed_until = reply.until.unwrap_or(NEVER);
        }
    }

    fn release_begun(&mut self, grant: Name, at: u64) {
        if let Some(hold) = self.hold_mut(grant) {
            hold.sure_until = hold.sure_until.min(at);
            hold.believed_until = hold.believed_until.min(at);
            hold.closed = true;
        }
    }

    /// From now on the store may let readers in, and the client takes itself for a reader, whatever the answer will be.
    fn downgrade_begun(&mut self, grant: Name, at: u64) {
        if let Some(hold) = self.hold_mut(grant).filter(|hold| hold.holding == Holding::Alone) {
            hold.reader_since.get_or_insert(at);
        }
    }

    /// Nothing was changed by this question. An earlier one whose outcome is unknown may have been applied.
    fn downgrade_failed(&mut self, question: Open) {
        if let Some(hold) = self.hold_mut(question.grant) {
            hold.reader_since = hold.reader_since.filter(|since| *since != question.at);
        }
    }

    fn lost(&mut self, grant: Name, at: u64) {
        self.release_begun(grant, at);
    }

    fn died(&mut self, at: u64, holds: &mut Vec<usize>) {
        for place in holds.drain(..) {
            let hold = &mut self.holds[place];
            if hold.believed_until > at {
                self.deaths.push((place, at));
            }
            hold.believed_until = hold.believed_until.min(at);
            // A store that has no TTL frees the lock when it notices.
            if hold.promised_until == NEVER {
                hold.sure_until = hold.sure_until.min(at);
            }
            hold.closed = true;
        }
    }

    fn attempt(&mut self, by: Name, question: Open, ended: u64, line: u32, outcome: Outcome) {
        self.attempts.push(Attempt { lock: question.lock, by, asked: question.at, ended, line, outcome });
    }

    fn unanswered(&mut self, by: Name, question: Open, at: u64) {
        self.unknown += 1;
        if question.verb == Verb::Acquire {
            self.attempt(by, question, at, question.line, Outcome::Unknown);
        }
    }
}

#[derive(Clone, Copy)]
struct Reply<'a> {
    at: u64,
    line: u32,
    answer: Answer,
    fence: Option<u64>,
    ttl: Option<u64>,
    from: u64,
    until: Option<u64>,
    slots: &'a Option<Box<[u32]>>,
}

fn later(at: u64, span: Option<u64>) -> u64 {
    span.map_or(NEVER, |span| at.saturating_add(span))
}

//! The sweeps. Each looks for one kind of wrong, in O(n log n).

mod effects;
mod excluding;
mod fairness;
mod fences;
mod honesty;
mod intervals;
mod overlaps;
mod stale;

use crate::{
    finding::{Finding, Findings, Kind, Measures},
    history::{History, Name},
    holds::Hold,
    timeline::Timeline,
};

/// What is borne, and what is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// By how many nanoseconds an expiry in a store may be early: stores count in milliseconds, and clocks are not
    /// equally fast. 2 ms by default.
    pub tolerance: u64,
    /// How often a waiter may be passed over; without it that is only measured.
    pub most_bypassed: Option<u64>,
    /// How many nanoseconds after its holder's death a lock may come free; without it that is only measured.
    pub slowest_recovery: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { tolerance: 2_000_000, most_bypassed: None, slowest_recovery: None }
    }
}

/// Checks a history.
pub fn check(history: &History, options: &Options) -> Findings {
    let timeline = Timeline::of(history);
    let mut pass = Pass {
        history,
        timeline: &timeline,
        options,
        order: Order::of(&timeline),
        list: Vec::new(),
        measures: Measures {
            grants: timeline.holds.len() as u64,
            operations: timeline.operations.len() as u64,
            unknown: timeline.unknown,
            orphans: timeline.orphans,
            ..Measures::default()
        },
    };
    overlaps::double_grants(&mut pass);
    overlaps::beliefs(&mut pass);
    overlaps::too_many_permits(&mut pass);
    overlaps::beyond_lease(&mut pass);
    overlaps::against_sightings(&mut pass);
    fences::order(&mut pass);
    fences::uniqueness(&mut pass);
    effects::at_resources(&mut pass);
    stale::operations(&mut pass);
    honesty::answers(&mut pass);
    honesty::busy(&mut pass);
    fairness::bypass(&mut pass);
    fairness::idle(&mut pass);
    fairness::recovery(&mut pass);
    let Pass { mut list, measures, .. } = pass;
    list.sort_by(|a, b| (a.at, a.kind, &a.lines).cmp(&(b.at, b.kind, &b.lines)));
    Findings { list, measures }
}

/// One check under way.
struct Pass<'a> {
    history: &'a History,
    timeline: &'a Timeline,
    options: &'a Options,
    order: Order,
    list: Vec<Finding>,
    measures: Measures,
}

impl<'a> Pass<'a> {
    fn found(&mut self, kind: Kind, at: u64, lines: &[u32], said: String) {
        self.list.push(Finding { kind, at, lines: lines.to_vec(), said });
    }

    fn text(&self, name: Name) -> &'a str {
        self.history.text(name)
    }

    /// How a hold is called in words.
    fn called(&self, hold: &Hold) -> String {
        match hold.fence {
            Some(fence) => format!("{} (grant {}, fence {fence})", self.text(hold.by), self.text(hold.grant)),
            None => format!("{} (grant {})", self.text(hold.by), self.text(hold.grant)),
        }
    }
}

/// The holds of each lock, in the order in which they were granted.
struct Order {
    places: Vec<u32>,
    /// Where each lock's part begins and ends, in the order of the locks' names.
    parts: Vec<(Name, std::ops::Range<usize>)>,
}

impl Order {
    fn of(timeline: &Timeline) -> Self {
        // Holds are in the order of their grants already, and the sort keeps that within each lock.
        let mut places: Vec<u32> = (0..).take(timeline.holds.len()).collect();
        places.sort_by_key(|place| timeline.holds[*place as usize].lock);
        let mut parts = Vec::new();
        let mut begin = 0;
        for part in places.chunk_by(|a, b| timeline.holds[*a as usize].lock == timeline.holds[*b as usize].lock) {
            let end = begin + part.len();
            parts.push((timeline.holds[part[0] as usize].lock, begin..end));
            begin = end;
        }
        Self { places, parts }
    }

    /// The holds of one lock, by their places.
    fn of_lock(&self, lock: Name) -> &[u32] {
        match self.parts.binary_search_by_key(&lock, |part| part.0) {
            Ok(found) => &self.places[self.parts[found].1.clone()],
            Err(_) => &[],
        }
    }

    fn locks(&self) -> impl Iterator<Item = &[u32]> {
        self.parts.iter().map(|part| &self.places[part.1.clone()])
    }
}

/// A moment of the history in words: milliseconds since its first event.
fn ms(history: &History, at: u64) -> String {
    let first = history.events().first().map_or(0, |first| first.event.at);
    span(at.saturating_sub(first))
}

/// A span in words.
fn span(nanos: u64) -> String {
    format!("{}.{:03} ms", nanos / 1_000_000, nanos / 1000 % 1000)
}

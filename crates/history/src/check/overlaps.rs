//! Two at once: in the store, in the clients' beliefs, and beliefs that the store does not back.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use super::{Pass, excluding::Foremost, intervals::Intervals, ms, span};
use crate::{
    event::Holding,
    finding::Kind,
    history::Name,
    holds::{Hold, NEVER},
    timeline::Timeline,
};

/// The store granted while it surely held for another.
pub(super) fn double_grants(pass: &mut Pass<'_>) {
    let tolerance = pass.options.tolerance;
    for pair in two_at_once(pass, |hold| hold.sure_within(tolerance)) {
        let (one, two) = pair.of(pass.timeline);
        let rest = span(pair.until.min(pass.timeline.end.max(two.granted)) - two.granted);
        let said = format!(
            "the store granted {} to {} while it had promised it to {} for at least {rest} more",
            pass.text(two.lock),
            pass.called(two),
            pass.called(one),
        );
        pass.found(Kind::DoubleGrant, two.granted, &[one.line, two.line], said);
    }
}

/// Two clients believed at once.
pub(super) fn beliefs(pass: &mut Pass<'_>) {
    for pair in two_at_once(pass, |hold| hold.believed_until) {
        let (one, two) = pair.of(pass.timeline);
        let until = if pair.until == NEVER {
            "to the end".to_owned()
        } else {
            format!("until {}", ms(pass.history, pair.until))
        };
        let said = format!(
            "{} was granted {} at {} while {} still believed that it held it, {until}",
            pass.called(two),
            pass.text(two.lock),
            ms(pass.history, two.granted),
            pass.called(one),
        );
        pass.found(Kind::BeliefOverlap, two.granted, &[one.line, two.line], said);
    }
}

/// A hold that was granted before an earlier one, which excludes it, had ended.
struct Pair {
    earlier: usize,
    later: usize,
    /// When the earlier one's exclusion ends.
    until: u64,
}

impl Pair {
    fn of<'a>(&self, timeline: &'a Timeline) -> (&'a Hold, &'a Hold) {
        (&timeline.holds[self.earlier], &timeline.holds[self.later])
    }
}

/// Of each hold that began too early, the pair with the earlier one that excludes it longest.
fn two_at_once(pass: &Pass<'_>, end: impl Fn(&Hold) -> u64) -> Vec<Pair> {
    let holds = &pass.timeline.holds;
    let mut pairs = Vec::new();
    for part in pass.order.locks() {
        let mut longest = Foremost::default();
        for later in part.iter().map(|place| *place as usize) {
            let hold = &holds[later];
            let excluding = longest.excluding(hold.manner()).filter(|(until, _)| *until > hold.granted);
            pairs.extend(excluding.max().map(|(until, earlier)| Pair { earlier, later, until }));
            for (manner, until) in hold.stretches(end(hold)) {
                longest.add(until, later, manner);
            }
        }
    }
    pairs
}

/// More permits were held at once than there are: in the store, and in the clients' beliefs.
pub(super) fn too_many_permits(pass: &mut Pass<'_>) {
    let tolerance = pass.options.tolerance;
    for (kind, held, more) in [
        (Kind::DoubleGrant, "granted", permits_beyond(pass, |hold| hold.sure_within(tolerance))),
        (Kind::BeliefOverlap, "believed in", permits_beyond(pass, |hold| hold.believed_until)),
    ] {
        for (place, count) in more {
            let hold = &pass.timeline.holds[place];
            let Holding::Permits { limit, .. } = hold.holding else { continue };
            let said = format!(
                "{count} permits of {} are {held} at once with those of {}, and there are {limit}",
                pass.text(hold.lock),
                pass.called(hold),
            );
            pass.found(kind, hold.granted, &[hold.line], said);
        }
    }
}

/// Each hold with which there were more permits than its limit, and how many there were.
fn permits_beyond(pass: &Pass<'_>, end: impl Fn(&Hold) -> u64) -> Vec<(usize, u64)> {
    let holds = &pass.timeline.holds;
    let mut beyond = Vec::new();
    for part in pass.order.locks() {
        let mut ends: BinaryHeap<Reverse<(u64, u32)>> = BinaryHeap::new();
        let mut held = 0u64;
        for place in part.iter().map(|place| *place as usize) {
            let hold = &holds[place];
            let Holding::Permits { count, limit } = hold.holding else { continue };
            while let Some(Reverse((_, over))) = ends.peek().copied().filter(|Reverse((end, _))| *end <= hold.granted) {
                ends.pop();
                held -= u64::from(over);
            }
            if end(hold) > hold.granted {
                held += u64::from(count);
                ends.push(Reverse((end(hold), count)));
            }
            if held > u64::from(limit) {
                beyond.push((place, held));
            }
        }
    }
    beyond
}

/// A client believed for longer than the store had promised (T1).
pub(super) fn beyond_lease(pass: &mut Pass<'_>) {
    let end = pass.timeline.end;
    for hold in &pass.timeline.holds {
        let believed = hold.believed_until.min(end);
        if believed > hold.promised_until {
            let said = format!(
                "{} believed that it held {} for {} longer than the store had promised",
                pass.called(hold),
                pass.text(hold.lock),
                span(believed - hold.promised_until),
            );
            pass.found(Kind::BeliefBeyondLease, hold.promised_until, &[hold.line], said);
        }
    }
}

/// A look into the store showed another, or nobody, while a client believed. Told once for each grant.
pub(super) fn against_sightings(pass: &mut Pass<'_>) {
    let timeline = pass.timeline;
    if timeline.sightings.is_empty() {
        return;
    }
    // A look shows one holder, which says nothing against others that may be beside it.
    let mut believed: HashMap<Name, Intervals> = HashMap::new();
    for part in pass.order.locks() {
        let of = |place: &u32| {
            let hold = &timeline.holds[*place as usize];
            let until = hold.reader_since.map_or(hold.believed_until, |since| since.min(hold.believed_until));
            (hold.granted, until, *place)
        };
        let Some(first) = part.first() else { continue };
        let alone = part.iter().filter(|place| timeline.holds[**place as usize].holding.is_alone());
        believed.insert(timeline.holds[*first as usize].lock, Intervals::of(alone.map(of).collect()));
    }
    let mut told = vec![false; timeline.holds.len()];
    for sighting in &timeline.sightings {
        let shown = sighting.grant.and_then(|grant| timeline.hold_of(grant));
        let shown = shown.and_then(|place| u32::try_from(place).ok());
        let Some(believed) = believed.get(&sighting.lock) else { continue };
        let Some(place) = believed.covering(sighting.asked, sighting.at, shown) else { continue };
        if std::mem::replace(&mut told[place as usize], true) {
            continue;
        }
        let hold = &timeline.holds[place as usize];
        let holder = sighting.grant.map_or("nobody", |grant| pass.text(grant));
        let said = format!(
            "the store showed {holder} as the holder of {} while {} believed that it held it",
            pass.text(sighting.lock),
            pass.called(hold),
        );
        pass.found(Kind::BeliefBeyondLease, sighting.at, &[hold.line, sighting.line], said);
    }
}

//! Two at once: in the store, in the clients' beliefs, and beliefs that the store does not back.

use std::collections::HashMap;

use super::{Pass, intervals::Intervals, ms, span};
use crate::{finding::Kind, history::Name, holds::NEVER};

/// The store granted while it surely held for another.
pub(super) fn double_grants(pass: &mut Pass<'_>) {
    let tolerance = pass.options.tolerance;
    two_at_once(
        pass,
        |hold| hold.sure_within(tolerance),
        |pass, earlier, later| {
            let (one, two) = (&pass.timeline.holds[earlier], &pass.timeline.holds[later]);
            let rest = span(one.sure_until.min(pass.timeline.end.max(two.granted)) - two.granted);
            let said = format!(
                "the store granted {} to {} while it had promised it to {} for {rest} more",
                pass.text(two.lock),
                pass.called(two),
                pass.called(one),
            );
            pass.found(Kind::DoubleGrant, two.granted, &[one.line, two.line], said);
        },
    );
}

/// Two clients believed at once.
pub(super) fn beliefs(pass: &mut Pass<'_>) {
    two_at_once(
        pass,
        |hold| hold.believed_until,
        |pass, earlier, later| {
            let (one, two) = (&pass.timeline.holds[earlier], &pass.timeline.holds[later]);
            let until = if one.believed_until == NEVER {
                "to the end".to_owned()
            } else {
                format!("until {}", ms(pass.history, one.believed_until))
            };
            let said = format!(
                "{} was granted {} at {} while {} still believed that it held it, {until}",
                pass.called(two),
                pass.text(two.lock),
                ms(pass.history, two.granted),
                pass.called(one),
            );
            pass.found(Kind::BeliefOverlap, two.granted, &[one.line, two.line], said);
        },
    );
}

/// Calls `found` with each hold that was granted before an earlier one ended, and that earlier one.
fn two_at_once(
    pass: &mut Pass<'_>,
    end: impl Fn(&crate::holds::Hold) -> u64,
    mut found: impl FnMut(&mut Pass<'_>, usize, usize),
) {
    let holds = &pass.timeline.holds;
    let mut pairs = Vec::new();
    for part in pass.order.locks() {
        let mut lasting: Option<usize> = None; // of those before, the one that ends last
        for place in part.iter().map(|place| *place as usize) {
            if let Some(before) = lasting.filter(|before| end(&holds[*before]) > holds[place].granted) {
                pairs.push((before, place));
            }
            if lasting.is_none_or(|before| end(&holds[place]) > end(&holds[before])) {
                lasting = Some(place);
            }
        }
    }
    for (earlier, later) in pairs {
        found(pass, earlier, later);
    }
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
    let mut believed: HashMap<Name, Intervals> = HashMap::new();
    for part in pass.order.locks() {
        let of = |place: &u32| {
            let hold = &timeline.holds[*place as usize];
            (hold.granted, hold.believed_until, *place)
        };
        let Some(first) = part.first() else { continue };
        believed.insert(timeline.holds[*first as usize].lock, Intervals::of(part.iter().map(of).collect()));
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

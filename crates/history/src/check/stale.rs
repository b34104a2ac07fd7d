//! Operations at a resource by one to whom the lock no longer belonged.

use std::collections::HashMap;

use super::{Pass, excluding::Foremost};
use crate::{finding::Kind, history::Name, holds::Operation};

/// Judges each operation by the newest grant of its lock that its own may not be beside, and by the newest such that had been at
/// the resource.
pub(super) fn operations(pass: &mut Pass<'_>) {
    let timeline = pass.timeline;
    // For each lock, how many of its holds are granted by now, and the newest of them; operations are in the order of their times.
    let mut granted: HashMap<Name, (usize, Foremost)> = HashMap::new();
    // For each resource and lock, the newest holds that were there.
    let mut been: HashMap<(Name, Name), Foremost> = HashMap::new();
    for operation in &timeline.operations {
        let Some(place) = timeline.hold_of(operation.grant) else {
            if operation.taken {
                never_granted(pass, operation);
            }
            continue;
        };
        let hold = &timeline.holds[place];
        let part = pass.order.of_lock(hold.lock);
        let (count, newest) = granted.entry(hold.lock).or_default();
        while let Some(next) = part.get(*count).map(|next| *next as usize) {
            let one = &timeline.holds[next];
            if one.granted > operation.at {
                break;
            }
            newest.add(next as u64, next, one.manner());
            *count += 1;
        }
        // The answer may still be on its way when the holder is judged by another's clock: then it is its own newest.
        let excluding = |foremost: &Foremost| {
            foremost.excluding(hold.manner_of(operation)).fold(place, |newest, (_, other)| newest.max(other))
        };
        let newest = excluding(newest);
        let at_resource = been.entry((operation.resource, hold.lock)).or_default();
        let there = excluding(at_resource);
        if operation.taken {
            at_resource.add(place as u64, place, hold.manner());
        }
        let (kind, other) = match operation.taken {
            true if there > place => (Kind::StaleAccepted, there),
            true if newest > place => (Kind::LateAccepted, newest),
            true => continue,
            false if newest > place => (Kind::StaleRefused, newest),
            false => (Kind::RightfulRefused, newest),
        };
        judged(pass, operation, kind, place, other);
    }
}

fn never_granted(pass: &mut Pass<'_>, operation: &Operation) {
    let said = format!(
        "{} accepted an operation under grant {}, which was never granted",
        pass.text(operation.resource),
        pass.text(operation.grant),
    );
    pass.found(Kind::NeverGranted, operation.at, &[operation.line], said);
}

fn judged(pass: &mut Pass<'_>, operation: &Operation, kind: Kind, place: usize, newest: usize) {
    let (hold, newer) = (&pass.timeline.holds[place], &pass.timeline.holds[newest]);
    let (resource, who, since) = (pass.text(operation.resource), pass.called(hold), pass.called(newer));
    let said = match kind {
        Kind::StaleAccepted => format!("{resource} accepted what came late from {who}; {since} had been there since"),
        Kind::LateAccepted => format!("{resource} accepted what came late from {who}, before {since} had been there"),
        Kind::StaleRefused => format!("{resource} refused what came late from {who}; {since} had the lock since"),
        _ => format!("{resource} refused {who}, who was the newest holder"),
    };
    pass.found(kind, operation.at, &[newer.line, operation.line], said);
}

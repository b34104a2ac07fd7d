//! Operations at a resource by one to whom the lock no longer belonged.

use std::collections::HashMap;

use super::Pass;
use crate::{finding::Kind, history::Name, holds::Operation};

/// Judges each operation by the newest grant of its lock, and by the newest that had been at the resource.
pub(super) fn operations(pass: &mut Pass<'_>) {
    let timeline = pass.timeline;
    // For each lock, how many of its holds are granted by now; operations are in the order of their times.
    let mut granted: HashMap<Name, usize> = HashMap::new();
    // For each resource and lock, the newest hold that was there.
    let mut been: HashMap<(Name, Name), usize> = HashMap::new();
    for operation in &timeline.operations {
        let Some(place) = timeline.hold_of(operation.grant) else {
            if operation.taken {
                never_granted(pass, operation);
            }
            continue;
        };
        let hold = &timeline.holds[place];
        let part = pass.order.of_lock(hold.lock);
        let count = granted.entry(hold.lock).or_default();
        while part.get(*count).is_some_and(|next| timeline.holds[*next as usize].granted <= operation.at) {
            *count += 1;
        }
        // The answer may still be on its way when the holder is judged by another's clock: then it is its own newest.
        let newest = part[..*count].last().map_or(place, |newest| (*newest as usize).max(place));
        let at_resource = (operation.resource, hold.lock);
        let there = been.get(&at_resource).copied().unwrap_or(place);
        let (kind, other) = match operation.taken {
            true if there > place => (Kind::StaleAccepted, there),
            true if newest > place => (Kind::LateAccepted, newest),
            false if newest > place => (Kind::StaleRefused, newest),
            false => (Kind::RightfulRefused, newest),
            true => {
                been.insert(at_resource, place);
                continue;
            }
        };
        if kind == Kind::LateAccepted {
            been.insert(at_resource, place);
        }
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

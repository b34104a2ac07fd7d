//! What came of it at the resource, whatever the locks did.

use std::collections::HashMap;

use super::Pass;
use crate::{
    finding::Kind,
    holds::{Manner, Operation},
    timeline::Timeline,
};

/// No accepted fence below an accepted one, and each write built on the newest version. Readers are checked and advance nothing
/// (F3).
pub(super) fn at_resources(pass: &mut Pass<'_>) {
    #[derive(Default)]
    struct Seen {
        fence: Option<(u64, u32)>,
        version: Option<(u64, u32)>,
    }
    let mut resources: HashMap<_, Seen> = HashMap::new();
    let timeline = pass.timeline;
    for operation in timeline.operations.iter().filter(|one| one.taken) {
        let seen = resources.entry(operation.resource).or_default();
        let (resource, who) = (pass.text(operation.resource), pass.text(operation.grant));
        if let Some(fence) = operation.fence {
            match seen.fence {
                Some((highest, line)) if fence < highest => {
                    let said = format!("{resource} accepted fence {fence} of grant {who} after fence {highest}");
                    pass.found(Kind::EffectBackwards, operation.at, &[line, operation.line], said);
                }
                _ if reads(timeline, operation) => {}
                _ => seen.fence = Some((fence, operation.line)),
            }
        }
        if let Some((basis, version)) = operation.change {
            if let Some((newest, line)) = seen.version.filter(|(newest, _)| *newest != basis) {
                let said = format!(
                    "an update of {resource} is lost: grant {who} wrote version {version} on the basis of version {basis}, \
                     and the newest was {newest}"
                );
                pass.found(Kind::LostUpdate, operation.at, &[line, operation.line], said);
            }
            seen.version = Some((version, operation.line));
        }
    }
}

fn reads(timeline: &Timeline, operation: &Operation) -> bool {
    let hold = timeline.hold_of(operation.grant).map(|place| &timeline.holds[place]);
    hold.is_some_and(|hold| hold.manner_of(operation) == Manner::Shared)
}

//! Fences rise with the grants and are never given twice (F1). A reader's is not below that of the writer before him, and below
//! that of every later one; permits have one for each slot (F3).

use std::collections::BTreeMap;

use super::Pass;
use crate::{event::Holding, finding::Kind, holds::Hold, timeline::Timeline};

/// A grant that was asked for after another had been answered has the higher fence, or as a reader the same one. Between
/// two readers there is no order.
pub(super) fn order(pass: &mut Pass<'_>) {
    let holds = &pass.timeline.holds;
    let mut pairs = Vec::new();
    for line in lines(pass) {
        let mut by_asking: Vec<u32> = line.clone();
        by_asking.sort_by_key(|place| holds[*place as usize].asked);
        let mut granted = line.iter().map(|place| *place as usize).peekable();
        let (mut of_writers, mut of_readers): (Option<usize>, Option<usize>) = (None, None);
        for place in by_asking.into_iter().map(|place| place as usize) {
            while let Some(before) = granted.next_if(|before| holds[*before].granted <= holds[place].asked) {
                let highest = if reads(&holds[before]) { &mut of_readers } else { &mut of_writers };
                if holds[before].fence > highest.and_then(|highest| holds[highest].fence) {
                    *highest = Some(before);
                }
            }
            let Some(fence) = holds[place].fence else { continue };
            let compared = if reads(&holds[place]) { [of_writers, None] } else { [of_writers, of_readers] };
            let higher = |before: &usize| holds[*before].fence.is_some_and(|before| before > fence);
            pairs.extend(compared.into_iter().flatten().filter(higher).map(|before| (before, place)));
        }
    }
    for (earlier, later) in once_each(pairs) {
        let (one, two) = (&holds[earlier], &holds[later]);
        let said = format!(
            "the fence went back: {} was granted {} after {}",
            pass.called(two),
            pass.text(two.lock),
            pass.called(one)
        );
        pass.found(Kind::FenceBackwards, two.granted, &[one.line, two.line], said);
    }
}

/// No two grants of a lock, or of a slot, have one fence.
pub(super) fn uniqueness(pass: &mut Pass<'_>) {
    let holds = &pass.timeline.holds;
    let mut pairs = Vec::new();
    for line in lines(pass) {
        let own = line.iter().filter(|place| !reads(&holds[**place as usize]));
        let mut by_fence: Vec<(u64, u32)> =
            own.filter_map(|place| holds[*place as usize].fence.map(|fence| (fence, *place))).collect();
        by_fence.sort_unstable();
        let twice = by_fence.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        pairs.extend(twice.map(|pair| (pair[0].1 as usize, pair[1].1 as usize)));
    }
    for (earlier, later) in once_each(pairs) {
        let (one, two) = (&holds[earlier], &holds[later]);
        let said =
            format!("{} and {} have the same fence for {}", pass.called(one), pass.called(two), pass.text(two.lock));
        pass.found(Kind::FenceTwice, two.granted, &[one.line, two.line], said);
    }
}

/// The holds that share a sequence of fences: of each lock, and of each slot of those with permits.
fn lines(pass: &Pass<'_>) -> Vec<Vec<u32>> {
    let mut lines = Vec::new();
    for part in pass.order.locks() {
        let mut slots: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut whole = Vec::with_capacity(part.len());
        for place in part {
            let Hold { holding, slots: own, .. } = hold(pass.timeline, *place);
            match holding {
                Holding::Permits { .. } => {
                    own.iter().flatten().for_each(|slot| slots.entry(*slot).or_default().push(*place))
                }
                Holding::Alone | Holding::Shared => whole.push(*place),
            }
        }
        lines.push(whole);
        lines.extend(slots.into_values());
    }
    lines
}

fn reads(hold: &Hold) -> bool {
    hold.holding == Holding::Shared
}

fn hold(timeline: &Timeline, place: u32) -> &Hold {
    &timeline.holds[place as usize]
}

/// A grant of several slots is told once.
fn once_each(mut pairs: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    pairs.sort_unstable_by_key(|(earlier, later)| (*later, *earlier));
    pairs.dedup_by_key(|(_, later)| *later);
    pairs
}

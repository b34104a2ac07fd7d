//! Fences rise with the grants and are never given twice (F1).

use super::Pass;
use crate::finding::Kind;

/// A grant that was asked for after another had been answered has the higher fence.
pub(super) fn order(pass: &mut Pass<'_>) {
    let holds = &pass.timeline.holds;
    let mut pairs = Vec::new();
    for part in pass.order.locks() {
        let mut by_asking: Vec<u32> = part.to_vec();
        by_asking.sort_by_key(|place| holds[*place as usize].asked);
        let mut granted = part.iter().map(|place| *place as usize).peekable();
        let mut highest: Option<usize> = None;
        for place in by_asking.into_iter().map(|place| place as usize) {
            while let Some(before) = granted.next_if(|before| holds[*before].granted <= holds[place].asked) {
                if holds[before].fence > highest.and_then(|highest| holds[highest].fence) {
                    highest = Some(before);
                }
            }
            let (Some(fence), Some(before)) = (holds[place].fence, highest) else { continue };
            if holds[before].fence.is_some_and(|before| before > fence) {
                pairs.push((before, place));
            }
        }
    }
    for (earlier, later) in pairs {
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

/// No two grants of a lock have one fence.
pub(super) fn uniqueness(pass: &mut Pass<'_>) {
    let holds = &pass.timeline.holds;
    let mut pairs = Vec::new();
    for part in pass.order.locks() {
        let mut by_fence: Vec<(u64, u32)> =
            part.iter().filter_map(|place| holds[*place as usize].fence.map(|fence| (fence, *place))).collect();
        by_fence.sort_unstable();
        let twice = by_fence.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        pairs.extend(twice.map(|pair| (pair[0].1 as usize, pair[1].1 as usize)));
    }
    for (earlier, later) in pairs {
        let (one, two) = (&holds[earlier], &holds[later]);
        let said =
            format!("{} and {} have the same fence for {}", pass.called(one), pass.called(two), pass.text(two.lock));
        pass.found(Kind::FenceTwice, two.granted, &[one.line, two.line], said);
    }
}

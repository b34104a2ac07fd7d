//! Who was passed over, and for how long a lock was wanted while nobody had it.

use std::collections::HashMap;

use super::{Pass, ms, span};
use crate::{
    finding::Kind,
    history::Name,
    holds::{Attempt, Outcome},
};

/// Counts, for each granted attempt, the later comers that were served before it.
pub(super) fn bypass(pass: &mut Pass<'_>) {
    let mut by_lock: HashMap<Name, Vec<&Attempt>> = HashMap::new();
    for attempt in &pass.timeline.attempts {
        if matches!(attempt.outcome, Outcome::Granted(_)) {
            by_lock.entry(attempt.lock).or_default().push(attempt);
        }
    }
    let mut too_often = Vec::new();
    for attempts in by_lock.values() {
        let mut times: Vec<u64> = attempts.iter().map(|attempt| attempt.asked).collect();
        times.sort_unstable();
        let mut served = Counts::new(times.len());
        // Attempts are in the order in which they ended.
        for attempt in attempts {
            let rank = times.partition_point(|asked| *asked <= attempt.asked);
            let passed = served.total - served.up_to(rank);
            served.add(rank.saturating_sub(1));
            pass.measures.most_bypassed = pass.measures.most_bypassed.max(passed);
            if pass.options.most_bypassed.is_some_and(|most| passed > most) {
                too_often.push((*attempt, passed));
            }
        }
    }
    for (attempt, passed) in too_often {
        let said = format!(
            "{} waited for {} from {} on, and {passed} who came later were served first",
            pass.text(attempt.by),
            pass.text(attempt.lock),
            ms(pass.history, attempt.asked),
        );
        pass.found(Kind::Bypassed, attempt.ended, &[attempt.line], said);
    }
}

/// A Fenwick tree: how many of the first so many places are taken.
struct Counts {
    tree: Vec<u32>,
    total: u64,
}

impl Counts {
    fn new(places: usize) -> Self {
        Self { tree: vec![0; places + 1], total: 0 }
    }

    fn add(&mut self, place: usize) {
        self.total += 1;
        let mut index = place + 1;
        while let Some(count) = self.tree.get_mut(index) {
            *count += 1;
            index += index & index.wrapping_neg();
        }
    }

    fn up_to(&self, places: usize) -> u64 {
        let (mut index, mut sum) = (places, 0);
        while index > 0 {
            sum += u64::from(self.tree[index]);
            index &= index - 1;
        }
        sum
    }
}

/// The longest time in which a lock was wanted and nobody believed that he held it.
pub(super) fn idle(pass: &mut Pass<'_>) {
    let mut changes: Vec<u128> = Vec::with_capacity(2 * (pass.timeline.attempts.len() + pass.timeline.holds.len()));
    for attempt in &pass.timeline.attempts {
        changes.push(packed(attempt.lock, attempt.asked, WANTS));
        changes.push(packed(attempt.lock, attempt.ended, WANTS_NO_MORE));
    }
    for hold in pass.timeline.holds.iter().filter(|hold| hold.believed_until > hold.granted) {
        changes.push(packed(hold.lock, hold.granted, BELIEVES));
        changes.push(packed(hold.lock, hold.believed_until, BELIEVES_NO_MORE));
    }
    changes.sort_unstable();
    for part in changes.chunk_by(|a, b| a >> 96 == b >> 96) {
        let (mut wanting, mut believing, mut since) = (0, 0, None);
        for change in part {
            let at = (change >> 32) as u64; // the lock above it is cut off
            if let Some(since) = since {
                pass.measures.longest_idle = pass.measures.longest_idle.max(at - since);
            }
            match *change as u32 {
                BELIEVES => believing += 1,
                WANTS => wanting += 1,
                BELIEVES_NO_MORE => believing -= 1,
                _ => wanting -= 1,
            }
            let idle = wanting > 0 && believing == 0;
            since = if idle { since.or(Some(at)) } else { None };
        }
    }
}

// At equal times, whoever comes is counted before whoever goes.
const BELIEVES: u32 = 0;
const WANTS: u32 = 1;
const BELIEVES_NO_MORE: u32 = 2;
const WANTS_NO_MORE: u32 = 3;

/// Lock, time and change as one number that sorts in this order.
fn packed(lock: Name, at: u64, change: u32) -> u128 {
    u128::from(lock.0) << 96 | u128::from(at) << 32 | u128::from(change)
}

/// The time from each holder's death to the next grant of his lock.
pub(super) fn recovery(pass: &mut Pass<'_>) {
    let timeline = pass.timeline;
    let mut slow = Vec::new();
    for (place, died) in &timeline.deaths {
        let hold = &timeline.holds[*place];
        let part = pass.order.of_lock(hold.lock);
        let next = part.partition_point(|other| timeline.holds[*other as usize].granted <= *died);
        let Some(next) = part.get(next).map(|next| &timeline.holds[*next as usize]) else { continue };
        let took = next.granted - died;
        pass.measures.slowest_recovery = pass.measures.slowest_recovery.max(Some(took));
        if pass.options.slowest_recovery.is_some_and(|most| took > most) {
            slow.push((hold, next, took));
        }
    }
    for (dead, next, took) in slow {
        let said = format!("{} came free {} after {} had died", pass.text(dead.lock), span(took), pass.called(dead),);
        pass.found(Kind::SlowRecovery, next.granted, &[dead.line, next.line], said);
    }
}

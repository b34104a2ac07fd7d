//! Answers that cannot have been so.

use std::collections::HashMap;

use super::{Pass, intervals::Intervals, span};
use crate::{
    event::{Answer, Verb},
    finding::Kind,
    history::Name,
    holds::{Asked, Outcome},
};

/// Grants that were over on arrival, checks that said "held" after the deadline, releases that released what another
/// held.
pub(super) fn answers(pass: &mut Pass<'_>) {
    let timeline = pass.timeline;
    for hold in timeline.holds.iter().filter(|hold| hold.granted > hold.promised_until) {
        let said = format!("{} took a grant that was over when it arrived", pass.called(hold));
        pass.found(Kind::DishonestAnswer, hold.granted, &[hold.line], said);
    }
    for asked in &timeline.asked {
        match (asked.verb, asked.answer) {
            (Verb::Check, Answer::Held) => held(pass, asked),
            (Verb::Release, Answer::Released) => released(pass, asked),
            _ => {}
        }
    }
}

fn held(pass: &mut Pass<'_>, asked: &Asked) {
    let Some(place) = pass.timeline.hold_of(asked.grant) else { return };
    let hold = &pass.timeline.holds[place];
    if asked.asked > hold.promised_until {
        let late = span(asked.asked - hold.promised_until);
        let said = format!("{} was told that it holds, {late} after the end of its lease", pass.called(hold));
        pass.found(Kind::DishonestAnswer, asked.answered, &[hold.line, asked.line], said);
    }
}

fn released(pass: &mut Pass<'_>, asked: &Asked) {
    let timeline = pass.timeline;
    let Some(place) = timeline.hold_of(asked.grant) else { return };
    let hold = &timeline.holds[place];
    // The newest grant that was there before the release was asked for.
    let part = pass.order.of_lock(hold.lock);
    let before = part.partition_point(|other| timeline.holds[*other as usize].granted <= asked.asked);
    let Some(other) = before.checked_sub(1).map(|last| &timeline.holds[part[last] as usize]) else { return };
    let tolerance = pass.options.tolerance;
    if other.granted > hold.granted
        && other.manner().excludes(hold.manner_at(asked.asked))
        && other.sure_within(tolerance) > asked.answered
    {
        let said = format!(
            "{} was told \"released\" while the store held {} for {}",
            pass.called(hold),
            pass.text(hold.lock),
            pass.called(other),
        );
        pass.found(Kind::DishonestAnswer, asked.answered, &[other.line, asked.line], said);
    }
}

/// "Busy" although nobody can have held or wanted it.
pub(super) fn busy(pass: &mut Pass<'_>) {
    let timeline = pass.timeline;
    let refused = timeline.attempts.iter().filter(|attempt| attempt.outcome == Outcome::Busy);
    let mut possible: HashMap<Name, Vec<(u64, u64, u32)>> = refused.map(|attempt| (attempt.lock, Vec::new())).collect();
    for (id, attempt) in (0..).zip(&timeline.attempts) {
        let Some(possible) = possible.get_mut(&attempt.lock) else { continue };
        let until = match attempt.outcome {
            Outcome::Granted(place) => timeline.holds[place].possible_until,
            Outcome::Busy | Outcome::Failed => attempt.ended,
            // It may have been applied, for a TTL that nobody knows.
            Outcome::Unknown => u64::MAX,
        };
        possible.push((attempt.asked, until, id));
    }
    let possible: HashMap<Name, Intervals> =
        possible.into_iter().map(|(lock, all)| (lock, Intervals::of(all))).collect();
    let tolerance = pass.options.tolerance;
    for (id, attempt) in (0..).zip(&timeline.attempts).filter(|(_, attempt)| attempt.outcome == Outcome::Busy) {
        let others = &possible[&attempt.lock]; // made above for each lock that was busy
        let begin = attempt.asked.saturating_sub(tolerance);
        if others.covering(attempt.ended, begin, Some(id)).is_none() {
            let said = format!(
                "{} was told that {} is busy, and nobody can have held it",
                pass.text(attempt.by),
                pass.text(attempt.lock)
            );
            pass.found(Kind::DishonestAnswer, attempt.ended, &[attempt.line], said);
        }
    }
}

//! The round on its own. What becomes of many rounds among many clients is shown by the simulator.

use proptest::prelude::*;

use super::*;
use crate::clock::Sent;

const TTL: Duration = Duration::from_secs(10);

fn at(millis: u64) -> Moment {
    Moment::from_nanos(millis * 1_000_000)
}

fn round(nodes: usize) -> Round {
    Round::begin(Quorum::of(nodes).unwrap(), Sent::at(at(1_000)))
}

fn voted(node: usize, vote: Vote) -> Event {
    Event::Voted { node, vote }
}

fn yes(node: usize) -> Event {
    voted(node, Vote::For { ttl: TTL })
}

#[test]
fn any_two_quorums_share_a_store() {
    for nodes in 1..=32 {
        let quorum = Quorum::of(nodes).unwrap();
        assert!(2 * quorum.needed() > nodes && quorum.needed() + quorum.spare() == nodes);
        assert_eq!(quorum.objection().is_some(), nodes == 1 || nodes % 2 == 0, "{nodes}");
    }
    assert!(Quorum::of(0).is_none());
}

#[test]
fn a_round_is_settled_by_the_third_of_five_and_no_later() {
    let mut round = round(5);
    assert_eq!(round.on(at(1_001), yes(4)), Action::Nothing);
    assert_eq!(round.on(at(1_002), yes(0)), Action::Nothing);
    assert_eq!(round.on(at(1_003), yes(2)), Action::Settle(Verdict::Won { ttl: TTL }));
    assert_eq!(round.on(at(1_004), yes(1)), Action::Nothing, "a vote more than needed is kept");
    assert_eq!(round.on(at(9_000), Event::Tick), Action::Nothing, "told once");
}

#[test]
fn a_round_is_settled_as_soon_as_a_quorum_is_impossible() {
    let mut round = round(5);
    assert_eq!(round.on(at(1_001), yes(0)), Action::Nothing);
    assert_eq!(round.on(at(1_001), voted(1, Vote::Against)), Action::Nothing);
    assert_eq!(round.on(at(1_001), voted(2, Vote::Against)), Action::Nothing);
    assert_eq!(round.on(at(1_002), voted(3, Vote::Against)), Action::Settle(Verdict::Lost(Defeat::Outvoted)));
    assert_eq!(round.traces().collect::<Vec<_>>(), [0, 4], "where something of it may lie");
    assert_eq!(round.on(at(1_900), yes(4)), Action::GiveBack, "a late yes to a lost round");
    assert_eq!(round.on(at(1_900), voted(4, Vote::Unknown)), Action::GiveBack);
    assert_eq!(round.on(at(1_900), voted(4, Vote::Against)), Action::Nothing);
}

#[test]
fn c2_an_outage_is_not_a_refusal() {
    let mut outage = round(5);
    outage.on(at(1_001), voted(0, Vote::Unknown));
    outage.on(at(1_001), voted(1, Vote::Against));
    outage.on(at(1_001), voted(2, Vote::Unknown));
    assert_eq!(outage.on(at(1_002), voted(3, Vote::Unknown)), Action::Settle(Verdict::Lost(Defeat::OutOfReach)));
    let mut held = round(5);
    held.on(at(1_001), voted(0, Vote::Unknown));
    held.on(at(1_001), voted(1, Vote::Against));
    assert_eq!(held.on(at(1_001), voted(2, Vote::Against)), Action::Nothing, "two answers are no quorum");
    assert_eq!(held.on(at(1_002), yes(3)), Action::Settle(Verdict::Lost(Defeat::Outvoted)));
}

#[test]
fn silence_is_neither_yes_nor_no() {
    let mut round = round(5);
    for node in 0..2 {
        assert_eq!(round.on(at(1_001), yes(node)), Action::Nothing);
    }
    assert_eq!(round.on(at(1_049), Event::Tick), Action::Nothing);
    assert_eq!(round.on(at(1_050), Event::Tick), Action::Settle(Verdict::Lost(Defeat::OutOfReach)));
    assert_eq!(round.traces().count(), 5, "a store that did not answer may have granted");
}

#[test]
fn one_store_cannot_vote_twice() {
    let mut round = round(3);
    for _ in 0..5 {
        assert_eq!(round.on(at(1_001), yes(0)), Action::Nothing);
    }
    assert_eq!(round.on(at(1_001), yes(99)), Action::Nothing, "nor one that does not exist");
    assert_eq!(round.on(at(1_001), yes(1)), Action::Settle(Verdict::Won { ttl: TTL }));
}

/// Source: node-redlock 296.
#[test]
fn t1_a_quorum_after_the_grant_is_over_is_no_grant() {
    for (came, won) in [(10_897, true), (10_898, false), (60_000, false)] {
        let mut round = round(3);
        round.on(at(came), yes(0));
        let action = round.on(at(came), yes(1));
        let verdict = if won { Verdict::Won { ttl: TTL } } else { Verdict::Lost(Defeat::TooLate) };
        assert_eq!(action, Action::Settle(verdict), "at {came}");
        assert_eq!(round.on(at(came), yes(2)), if won { Action::Nothing } else { Action::GiveBack });
    }
}

#[test]
fn t1_the_shortest_ttl_counts() {
    let mut round = round(3);
    round.on(at(1_001), voted(0, Vote::For { ttl: TTL / 2 }));
    assert_eq!(round.on(at(1_001), yes(1)), Action::Settle(Verdict::Won { ttl: TTL / 2 }));
}

#[test]
fn a_store_that_restarted_is_not_counted_for_one_ttl() {
    // It says 3 s and may be up for just over two.
    let probation = Probation::from_uptime(at(100_000), 3);
    assert_eq!(probation.started, at(98_000));
    assert!(!probation.is_over(at(107_999), TTL));
    assert!(probation.is_over(at(108_000), TTL));
    assert!(Probation::from_uptime(at(100_000), u64::MAX).is_over(at(100_000), TTL));
}

#[test]
fn a_trace_is_given_back_until_the_store_confirms_it_twice() {
    let mut work = CleaningUp::begin(at(0), TTL, true);
    assert_eq!(work.next(at(0)), Errand::Ask);
    work.answered(at(50), false);
    let Errand::Wait(due) = work.next(at(50)) else { panic!("a pause after a failure") };
    assert!(due > at(50) && due < at(100));
    work.answered(at(200), true);
    assert_eq!(work.next(at(200)), Errand::Wait(at(300)), "a request may have overtaken the first look");
    work.answered(at(300), true);
    assert_eq!(work.next(at(300)), Errand::Done);
    assert_eq!(CleaningUp::begin(at(0), TTL, false).next(at(10_000)), Errand::Done, "over by itself");
}

fn vote() -> impl Strategy<Value = Vote> {
    prop_oneof![
        3 => (1_000..20_000_u64).prop_map(|ms| Vote::For { ttl: Duration::from_millis(ms) }),
        2 => Just(Vote::Against),
        1 => Just(Vote::Unknown),
    ]
}

proptest! {
    /// Whatever comes in whatever order: it is settled exactly once and by its limit, it is won only by a quorum of
    /// different stores that said yes, and only while what the shortest of them granted lasts.
    #[test]
    fn a_round_ends_once_and_right(
        nodes in 1..9_usize,
        mut answers in proptest::collection::vec((0..9_usize, vote(), 0..30_000_u64), 0..30),
    ) {
        answers.sort_by_key(|(_, _, when)| *when);
        let quorum = Quorum { node_limit: Duration::from_secs(20), ..Quorum::of(nodes).unwrap() };
        let mut round = Round::begin(quorum, Sent::at(at(0)));
        let (mut verdicts, mut model) = (Vec::new(), vec![None; nodes]);
        let mut ticked = false;
        for (node, vote, when) in answers.into_iter().chain([(99, Vote::Unknown, 30_001)]) {
            if when >= 20_000 && !ticked {
                ticked = true;
                if let Action::Settle(verdict) = round.on(at(20_000), Event::Tick) {
                    verdicts.push((verdict, at(20_000)));
                }
            }
            let open = verdicts.is_empty();
            if open && node < nodes && model[node].is_none_or(|earlier| earlier == Vote::Unknown) {
                model[node] = Some(vote);
            }
            match round.on(at(when), voted(node, vote)) {
                Action::Settle(verdict) => verdicts.push((verdict, at(when))),
                Action::GiveBack => prop_assert!(vote != Vote::Against && matches!(verdicts[0].0, Verdict::Lost(_))),
                Action::Nothing => {}
            }
        }
        prop_assert_eq!(verdicts.len(), 1);
        let granted: Vec<_> = model.iter().filter_map(|vote| match vote {
            Some(Vote::For { ttl }) => Some(*ttl),
            _ => None,
        }).collect();
        match verdicts[0] {
            (Verdict::Won { ttl }, when) => {
                prop_assert!(granted.len() > nodes / 2);
                prop_assert_eq!(Some(ttl), granted.iter().min().copied());
                prop_assert!(when < at(0).after(ttl - quorum.drift.allowance(ttl)));
            }
            (Verdict::Lost(Defeat::TooLate), _) => prop_assert!(granted.len() > nodes / 2),
            (Verdict::Lost(_), _) => prop_assert!(granted.len() <= nodes / 2),
        }
    }

    /// The lease machine takes its own allowance off; together they give up at least what was set.
    #[test]
    fn a_larger_drift_is_given_up_in_full(percent in 1.0..50.0, millis in 10..100_000_000_u64) {
        let (drift, ttl) = (Drift::percent(percent).unwrap(), Duration::from_millis(millis));
        let granted = drift.granted(ttl);
        let believed = granted.saturating_sub(drift_allowance(granted));
        let allowed = ttl.mul_f64(1.0 - percent / 100.0).saturating_sub(Duration::from_millis(2));
        prop_assert!(believed <= allowed + Duration::from_micros(1), "{believed:?} of {allowed:?}");
    }
}

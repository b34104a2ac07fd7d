//! A good history is clean, and each mutation of it is flagged.

use fencepost_history::{Holding, Kind, Options, check};
use proptest::prelude::*;

use crate::model::{Deed, End, Life, history};

/// Holders one after the other, as a correct lock and a resource that checks fences make them: each reads, and writes
/// on the basis of that.
fn good(steps: &[(u64, u64, u64)]) -> (Vec<Life>, Vec<Deed>) {
    let (mut lives, mut deeds, mut now) = (Vec::new(), Vec::new(), 0);
    for (index, (gap, took, held)) in (1..).zip(steps) {
        let asked = now + gap;
        let granted = asked + took;
        let end = granted + held + 1;
        let ttl = took + held + 50;
        deeds.push(Deed {
            at: granted,
            life: lives.len(),
            fence: Some(index),
            change: Some((index - 1, index)),
            taken: true,
        });
        let until = Some(asked + ttl - 10);
        lives.push(Life {
            holding: Holding::Alone,
            slots: None,
            reader_since: None,
            lock: 0,
            asked,
            granted,
            ttl: Some(ttl),
            until,
            fence: Some(index),
            end: End::Released(end),
        });
        now = end;
    }
    (lives, deeds)
}

/// Changes what happened around the grant of this number.
type Change = fn(&mut Vec<Life>, &mut Vec<Deed>, usize);

/// What can be changed, and as what it must be flagged.
const MUTATIONS: &[(&str, Change, Kind)] = &[
    (
        "the fence is the one of the grant before",
        |lives, _, at| lives[at].fence = lives[at - 1].fence,
        Kind::FenceTwice,
    ),
    (
        "fences are swapped",
        |lives, _, at| {
            let before = lives[at - 1].fence;
            lives[at - 1].fence = std::mem::replace(&mut lives[at].fence, before);
        },
        Kind::FenceBackwards,
    ),
    (
        "the holder before never released",
        |lives, _, at| {
            let late = lives[at].granted + 1 - lives[at - 1].asked;
            lives[at - 1].ttl = Some(late);
            lives[at - 1].end = End::Never;
        },
        Kind::DoubleGrant,
    ),
    (
        "the holder before went on believing",
        |lives, _, at| {
            lives[at - 1].until = Some(lives[at].granted + 1);
            lives[at - 1].end = End::Never;
        },
        Kind::BeliefOverlap,
    ),
    (
        "the belief is longer than the lease",
        |lives, _, at| {
            lives[at].until = None;
            lives[at].ttl = Some(lives[at].granted - lives[at].asked);
        },
        Kind::BeliefBeyondLease,
    ),
    (
        "the answer came after the end",
        |lives, _, at| lives[at].ttl = Some(lives[at].granted - lives[at].asked - 1),
        Kind::DishonestAnswer,
    ),
    (
        "the write before came again",
        |_, deeds, at| {
            let late = Deed { at: deeds[at].at, ..deeds[at - 1] };
            deeds.insert(at + 1, late);
        },
        Kind::StaleAccepted,
    ),
    ("a write was built on an old version", |_, deeds, at| deeds[at].change = deeds[at - 1].change, Kind::LostUpdate),
    ("the resource took an old fence", |_, deeds, at| deeds[at].fence = Some(0), Kind::EffectBackwards),
    ("the resource refused the holder", |_, deeds, at| deeds[at].taken = false, Kind::RightfulRefused),
];

proptest! {
    #[test]
    fn a_good_history_is_clean_and_each_mutation_is_flagged(
        steps in prop::collection::vec((1..20u64, 1..20u64, 0..20u64), 2..12),
        which in 1..11usize,
    ) {
        let options = Options { tolerance: 0, ..Options::default() };
        let (lives, deeds) = good(&steps);
        let clean = check(&history(&lives, &deeds), &options);
        prop_assert!(clean.list.is_empty(), "{:#?}", clean.list);
        let at = 1 + which % (lives.len() - 1);
        for (what, change, kind) in MUTATIONS {
            let (mut lives, mut deeds) = (lives.clone(), deeds.clone());
            change(&mut lives, &mut deeds, at);
            let findings = check(&history(&lives, &deeds), &options);
            prop_assert!(findings.has(*kind), "{what}, at {at}: {:#?}\n{lives:#?}", findings.list);
        }
    }
}

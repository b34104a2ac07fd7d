//! The sweeps against the definitions, written down as loops over all pairs.

use std::collections::BTreeSet;

use fencepost_history::{Holding, Kind, Options, check};
use proptest::prelude::*;

use crate::model::{Deed, End, LIMIT, Life, deeds, history, lives, place};

const EXACT: Options = Options { tolerance: 0, most_bypassed: None, slowest_recovery: None };

/// When each kind shows, by the definitions.
fn by_definition(lives: &[Life], deeds: &[Deed]) -> BTreeSet<(Kind, u64)> {
    let mut found = BTreeSet::new();
    let end = lives.iter().flat_map(|life| [life.granted, last(life)]).chain(deeds.iter().map(|deed| deed.at)).max();
    let end = end.unwrap_or(0);
    for (i, later) in lives.iter().enumerate() {
        for (j, earlier) in lives.iter().enumerate().filter(|(_, earlier)| earlier.lock == later.lock) {
            if i == j {
                continue;
            }
            if (earlier.granted, j) < (later.granted, i) {
                if earlier.keeps_out_until(later, earlier.sure_until()) > later.granted {
                    found.insert((Kind::DoubleGrant, later.granted));
                }
                if earlier.keeps_out_until(later, earlier.believed_until()) > later.granted {
                    found.insert((Kind::BeliefOverlap, later.granted));
                }
                let own = later.holding != Holding::Shared && earlier.holding != Holding::Shared;
                if own && later.shares_fences_with(earlier) && later.fence.is_some() && earlier.fence == later.fence {
                    found.insert((Kind::FenceTwice, later.granted));
                }
            }
            let readers = later.holding == Holding::Shared && earlier.holding == Holding::Shared;
            let one_sequence = later.shares_fences_with(earlier) && !readers;
            if one_sequence && earlier.granted <= later.asked && later.fence.is_some() && earlier.fence > later.fence {
                found.insert((Kind::FenceBackwards, later.granted));
            }
        }
        for (kind, end) in
            [(Kind::DoubleGrant, Life::sure_until as fn(&Life) -> u64), (Kind::BeliefOverlap, Life::believed_until)]
        {
            if later.permits().is_some() && permits_with(lives, i, end) > LIMIT {
                found.insert((kind, later.granted));
            }
        }
        if later.believed_until().min(end) > later.promised_until() {
            found.insert((Kind::BeliefBeyondLease, later.promised_until()));
        }
        if later.granted > later.promised_until() {
            found.insert((Kind::DishonestAnswer, later.granted));
        }
    }
    for (n, deed) in deeds.iter().enumerate() {
        judge(lives, deeds, n, deed, &mut found);
    }
    found
}

/// How many permits are held when this one is granted, with its own.
fn permits_with(lives: &[Life], i: usize, end: impl Fn(&Life) -> u64) -> u32 {
    let (granted, lock) = (lives[i].granted, lives[i].lock);
    let there = lives
        .iter()
        .enumerate()
        .filter(|(j, life)| life.lock == lock && (life.granted, *j) <= (granted, i) && end(life) > granted);
    there.filter_map(|(_, life)| life.permits()).sum()
}

fn judge(lives: &[Life], deeds: &[Deed], n: usize, deed: &Deed, found: &mut BTreeSet<(Kind, u64)>) {
    let rank = |life: usize| (lives[life].granted, life);
    let newer = |life: usize| {
        let (one, own) = (&lives[life], &lives[deed.life]);
        let beside = deed.of_reader(own) && one.holding == Holding::Shared;
        one.lock == own.lock && one.excludes(own) && !beside && rank(life) > rank(deed.life)
    };
    let granted_since = (0..lives.len()).any(|life| newer(life) && lives[life].granted <= deed.at);
    let been_since = deeds[..n].iter().any(|before| before.taken && newer(before.life));
    match (deed.taken, been_since, granted_since) {
        (true, true, _) => found.insert((Kind::StaleAccepted, deed.at)),
        (true, false, true) => found.insert((Kind::LateAccepted, deed.at)),
        (false, _, true) => found.insert((Kind::StaleRefused, deed.at)),
        (false, _, false) => found.insert((Kind::RightfulRefused, deed.at)),
        (true, false, false) => false,
    };
    let advances = |deed: &Deed| !deed.of_reader(&lives[deed.life]);
    let accepted = || deeds[..n].iter().filter(|before| before.taken);
    if deed.taken {
        if deed.fence.is_some() && accepted().any(|before| advances(before) && before.fence > deed.fence) {
            found.insert((Kind::EffectBackwards, deed.at));
        }
        let newest = accepted().filter_map(|before| before.change).next_back();
        if let (Some((_, newest)), Some((basis, _))) = (newest, deed.change)
            && newest != basis
        {
            found.insert((Kind::LostUpdate, deed.at));
        }
    }
}

fn last(life: &Life) -> u64 {
    let ended = match life.end {
        End::Never => life.granted,
        End::Released(at) | End::Lost(at) | End::Died(at) => at,
    };
    ended.max(life.reader_since.unwrap_or_default())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_sweeps_find_what_the_definitions_say(lives in lives(), raw in deeds()) {
        let deeds = place(&lives, &raw);
        let findings = check(&history(&lives, &deeds), &EXACT);
        let found: BTreeSet<_> = findings.list.iter().map(|finding| (finding.kind, finding.at)).collect();
        prop_assert_eq!(found, by_definition(&lives, &deeds));
    }

    #[test]
    fn the_bypass_count_is_what_the_definition_says(lives in lives()) {
        let findings = check(&history(&lives, &[]), &EXACT);
        let passed = |one: &Life, rank: usize| {
            lives.iter().enumerate().filter(|(other_rank, other)| {
                other.lock == one.lock && other.asked > one.asked && (other.granted, *other_rank) < (one.granted, rank)
            }).count() as u64
        };
        let most = lives.iter().enumerate().map(|(rank, one)| passed(one, rank)).max().unwrap_or(0);
        prop_assert_eq!(findings.measures.most_bypassed, most);
    }

    #[test]
    fn the_idle_time_is_what_the_definition_says(lives in lives()) {
        let findings = check(&history(&lives, &[]), &EXACT);
        // Instants are whole numbers here: look at the middle of each step between two.
        let mut longest = 0;
        for lock in 0..2 {
            let mut run = 0;
            for at in 0..200u64 {
                let mut of_lock = lives.iter().filter(|life| life.lock == lock);
                let wanted = of_lock.clone().any(|life| life.asked <= at && at < life.granted);
                let held = of_lock.any(|life| life.granted <= at && at < life.believed_until());
                run = if wanted && !held { run + 1 } else { 0 };
                longest = longest.max(run);
            }
        }
        prop_assert_eq!(findings.measures.longest_idle, longest);
    }
}

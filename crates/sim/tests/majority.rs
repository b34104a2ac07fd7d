//! What holds within the assumptions of a lock by majority, and what the search finds beyond them.

use fencepost_sim::{Assumptions, Breach, Plan, World, search};

/// Of each kind of world. More of them, from any seed: `cargo run --release -p fencepost-sim -- within SEED`.
const WORLDS: u64 = 400;
/// Seeds that a search may try. It finds each in far fewer.
const BUDGET: u64 = 20_000;

const WITHIN: Assumptions = Assumptions {
    clocks_jump: false,
    servers_forget: false,
    guarded: false,
    clocks_drift: false,
    writers_pause: false,
};

fn two_believe(breach: &Breach) -> bool {
    matches!(breach, Breach::TwoBelieve { .. })
}

fn late_write(breach: &Breach) -> bool {
    matches!(breach, Breach::LateWrite { .. })
}

/// Another stretch of seeds in each run; printed, so that it can be repeated.
fn first_seed() -> u64 {
    let seed = fastrand::u64(..1 << 40);
    println!("seeds from {seed} on");
    seed
}

/// No world of these breaks anything, and most of them are busy.
fn holds(assumptions: Assumptions, wanted: fn(&Breach) -> bool) {
    let first = first_seed();
    let (mut grants, mut renewals) = (0, 0);
    for seed in first..first + WORLDS {
        let plan = Plan::of(seed, assumptions);
        let outcome = World::run(&plan);
        assert!(!outcome.breach.as_ref().is_some_and(wanted), "{}", search::told(&plan));
        grants += outcome.grants;
        renewals += outcome.renewals;
    }
    assert!(
        grants > 5 * WORLDS && renewals > WORLDS,
        "only {grants} grants and {renewals} renewals: nothing was tested"
    );
}

/// A story of so many troubles is short enough to read.
const SHORT: usize = 6;

/// The search finds it by itself, and soon one of which little is left after shrinking.
fn is_found(assumptions: Assumptions, wanted: fn(&Breach) -> bool) -> Plan {
    let mut first = first_seed();
    for _ in 0..30 {
        let found = search::search(first, BUDGET, assumptions, wanted).expect("the counter-example is within reach");
        let plan = search::shrink(&found, wanted);
        if plan.troubles.len() <= SHORT {
            println!("after {} seeds:\n{}", found.tried, search::told(&plan));
            return plan;
        }
        first += found.tried;
    }
    panic!("no story can be told in {SHORT} troubles");
}

#[test]
fn within_the_assumptions_no_two_believe_and_no_write_is_late() {
    holds(WITHIN, |_| true);
}

#[test]
fn the_restart_guard_bears_servers_that_forget() {
    holds(Assumptions { guarded: true, ..WITHIN }, |_| true);
}

/// A world that the search found: a request of a lost round came late, its record was renewed and counted, and then the request
/// to give that round back came later still.
#[test]
fn what_a_renewal_counts_is_not_taken_away_by_a_late_give_back() {
    let plan = Plan::of(10_981, Assumptions { guarded: true, ..WITHIN });
    assert!(World::run(&plan).breach.is_none(), "{}", search::told(&plan));
}

#[test]
fn a_paused_writer_is_no_second_believer() {
    holds(Assumptions { writers_pause: true, ..WITHIN }, two_believe);
}

#[test]
fn a_clock_that_jumps_is_found() {
    let plan = is_found(Assumptions { clocks_jump: true, ..WITHIN }, two_believe);
    assert!(plan.troubles.iter().any(|trouble| matches!(trouble, fencepost_sim::Trouble::Jump { .. })));
}

#[test]
fn a_server_that_forgets_is_found() {
    let plan = is_found(Assumptions { servers_forget: true, ..WITHIN }, two_believe);
    assert!(plan.troubles.iter().any(|trouble| matches!(trouble, fencepost_sim::Trouble::Forget { .. })));
}

#[test]
fn clocks_that_differ_by_more_than_the_drift_are_found() {
    is_found(Assumptions { clocks_drift: true, ..WITHIN }, two_believe);
}

#[test]
fn a_paused_writer_is_found() {
    let plan = is_found(Assumptions { writers_pause: true, ..WITHIN }, late_write);
    assert!(plan.troubles.iter().any(|trouble| matches!(trouble, fencepost_sim::Trouble::Pause { .. })));
}

/// What a search found is repeated by its seed alone.
#[test]
fn a_seed_is_a_world() {
    for seed in 0..50 {
        let plan = Plan::of(seed, Assumptions { clocks_jump: true, ..WITHIN });
        assert_eq!(plan, Plan::of(seed, Assumptions { clocks_jump: true, ..WITHIN }));
        assert_eq!(World::tell(&plan).story, World::tell(&plan).story);
    }
}

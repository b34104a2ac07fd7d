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

/// The search finds it by itself, and what is left after shrinking is short enough to read.
fn is_found(assumptions: Assumptions, wanted: fn(&Breach) -> bool) -> Plan {
    let first = first_seed();
    let found = search::search(first, BUDGET, assumptions, wanted).expect("the counter-example is within reach");
    let plan = search::shrink(&found, wanted);
    println!("after {} seeds:\n{}", found.tried, search::told(&plan));
    assert!(plan.troubles.len() <= 6, "the story can be told shorter");
    plan
}

#[test]
fn within_the_assumptions_no_two_believe_and_no_write_is_late() {
    holds(WITHIN, |_| true);
}

#[test]
fn the_restart_guard_bears_servers_that_forget() {
    holds(Assumptions { guarded: true, ..WITHIN }, |_| true);
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

//! What becomes of a message on its way.

use fastrand::Rng;

use crate::{
    plan::{Plan, Trouble},
    server::Micros,
};

/// When a message arrives: never, once, or twice.
pub(crate) fn fate(plan: &Plan, random: &mut Rng, now: Micros, client: usize, server: usize) -> Vec<Micros> {
    if is_cut(plan, now, client, server) || random.u32(0..100) == 0 {
        return Vec::new();
    }
    let usual = random.u64(50..3_000) + slowness(plan, now, client, server);
    let mut arrivals = vec![now + usual];
    if random.u32(0..50) == 0 {
        arrivals.push(now + usual + random.u64(0..plan.ttl * 2_000)); // a copy, perhaps very late
    }
    arrivals.retain(|at| !is_cut(plan, *at, client, server));
    arrivals
}

fn is_cut(plan: &Plan, now: Micros, between: usize, and: usize) -> bool {
    plan.troubles.iter().any(|trouble| match *trouble {
        Trouble::Cut { client, server, at, lasts } => client == between && server == and && during(now, at, lasts),
        _ => false,
    })
}

fn slowness(plan: &Plan, now: Micros, between: usize, and: usize) -> Micros {
    let slow = plan.troubles.iter().filter_map(|trouble| match *trouble {
        Trouble::Slow { client, server, at, lasts, by }
            if client == between && server == and && during(now, at, lasts) =>
        {
            Some(by * 1_000)
        }
        _ => None,
    });
    slow.sum()
}

fn during(now: Micros, at_millis: u64, lasts_millis: u64) -> bool {
    (at_millis * 1_000..(at_millis + lasts_millis) * 1_000).contains(&now)
}

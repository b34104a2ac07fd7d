//! Looking for a plan that breaks something, and making it short.

use crate::{
    plan::{Assumptions, Plan},
    world::{Breach, Outcome, World},
};

/// What was found, and after how many seeds.
#[derive(Clone, Debug)]
pub struct Found {
    /// The plan as it was drawn.
    pub plan: Plan,
    /// The breach.
    pub breach: Breach,
    /// Seeds tried.
    pub tried: u64,
}

/// Tries `budget` seeds from `first` on, and answers the first plan whose breach is `wanted`.
pub fn search(first: u64, budget: u64, assumptions: Assumptions, wanted: impl Fn(&Breach) -> bool) -> Option<Found> {
    (0..budget).find_map(|tried| {
        let plan = Plan::of(first + tried, assumptions);
        let breach = World::run(&plan).breach.filter(&wanted)?;
        Some(Found { plan, breach, tried: tried + 1 })
    })
}

/// Delays tried for each shorter plan: without a trouble all that follows is another world.
const NOISES: u64 = 12;

/// Leaves out every trouble without which the same thing breaks, with these delays or others.
pub fn shrink(found: &Found, wanted: impl Fn(&Breach) -> bool) -> Plan {
    let breaks = |plan: &Plan| World::run(plan).breach.is_some_and(|breach| wanted(&breach));
    let mut plan = found.plan.clone();
    let mut number = 0;
    while number < plan.troubles.len() {
        let mut shorter = plan.clone();
        shorter.troubles.remove(number);
        let noises = (0..NOISES).map(|noise| plan.noise.wrapping_add(noise));
        let breaking = noises.map(|noise| Plan { noise, ..shorter.clone() }).find(&breaks);
        match breaking {
            // What was needed before may not be needed any more.
            Some(shorter) => (plan, number) = (shorter, 0),
            None => number += 1,
        }
    }
    plan
}

/// As much of a story as a page shows.
const LINES: usize = 40;

/// The plan and what happened, for people; the story from a little before the breach on.
pub fn told(plan: &Plan) -> String {
    let Outcome { story, .. } = World::tell(plan);
    // From the last grant before those that collide.
    let grants: Vec<_> = story.iter().enumerate().filter(|(_, line)| line.ends_with(" holds")).collect();
    let from = grants.len().checked_sub(2).map_or(0, |last| grants[last].0.saturating_sub(12));
    let from = from.max(story.len().saturating_sub(LINES));
    format!("{plan}\n{}\n", story[from..].join("\n"))
}

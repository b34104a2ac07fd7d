//! Searches for what breaks a lock by majority, shortens it, and tells it.

use std::process::ExitCode;

use fencepost_sim::{Assumptions, Breach, search};

const BUDGET: u64 = 100_000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let beyond = arguments.next().unwrap_or_default();
    let first = arguments.next().and_then(|seed| seed.parse().ok()).unwrap_or_default();
    let none = Assumptions::default();
    let assumptions = match &*beyond {
        "within" => none,
        "guarded" => Assumptions { guarded: true, ..none },
        "forgets" => Assumptions { servers_forget: true, ..none },
        "jumps" => Assumptions { clocks_jump: true, ..none },
        "drifts" => Assumptions { clocks_drift: true, ..none },
        "pauses" => Assumptions { writers_pause: true, ..none },
        _ => {
            eprintln!("usage: fencepost-sim within|guarded|forgets|jumps|drifts|pauses [FIRST SEED]");
            return ExitCode::from(64);
        }
    };
    let any = |_: &Breach| true;
    match search::search(first, BUDGET, assumptions, any) {
        Some(found) => {
            println!("found after {} seeds\n{}", found.tried, search::told(&search::shrink(&found, any)));
            ExitCode::FAILURE
        }
        None => {
            println!("nothing found with {BUDGET} seeds from {first} on");
            ExitCode::SUCCESS
        }
    }
}

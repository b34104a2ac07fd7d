//! Locks by majority under simulated clocks, networks, crashes and pauses: the very machines that the store runs
//! ([`Round`] and [`LeaseMachine`]), driven through a [`Plan`] of troubles in virtual time.
//!
//! A plan is drawn from a seed, and a world that is run with it does the same every time. Two things are looked for:
//! two clients that believe at once, and a write that lands while another client holds. Within the assumptions of the
//! algorithm neither may ever be found. Beyond them the counter-examples are found by search: no test says what
//! they look like. A plan that was found is [shrunk](search::shrink) to the troubles that matter, and told event by
//! event.
//!
//! ```text
//! cargo run -p fencepost-sim -- jumps          # a store's clock jumps; searches, shrinks and tells
//! cargo run -p fencepost-sim -- jumps 4711     # from this seed on
//! ```
//!
//! [`Round`]: fencepost_core::quorum::Round
//! [`LeaseMachine`]: fencepost_core::machine::LeaseMachine

mod client;
mod network;
pub mod plan;
pub mod search;
mod server;
pub mod world;

pub use plan::{Assumptions, Plan, Trouble};
pub use world::{Breach, World};

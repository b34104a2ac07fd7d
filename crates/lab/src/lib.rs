//! The fault laboratory: real servers and real processes, broken on purpose, and a checker that says what came of it.
//!
//! A [`Scenario`] is a story with a danger: a holder is paused beyond its lease, a server comes back without its data. It
//! is played on a [`Subject`], a store with a client, and ends in a [`Verdict`] over the history that was recorded. What
//! every scenario expects is written down beside it, so that a change shows. A scenario whose danger was not reached is
//! [`Verdict::Vacuous`], and never a success.

pub mod agent;
mod cut;
mod fault;
pub mod measure;
mod player;
mod recorder;
pub mod report;
mod resource;
pub mod run;
mod scenario;
pub mod scenarios;
mod stage;
mod stand;
mod subject;
pub mod twice;
mod verdict;
pub mod versions;

pub use cut::{CutBy, Wish};
pub use player::AgentCommand;
pub use scenario::{About, Expected, NotPlayed, Reached, Scenario, Stop};
pub use stage::{IDLE_LIMIT, LOCK, Stage, TTL};
pub use subject::{SUBJECTS, StoreKind, Subject};
pub use verdict::Verdict;

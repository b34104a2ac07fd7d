//! The checker finds what is wrong, and nothing else.

mod brute_force;
mod downgrades;
mod examples;
mod model;
mod mutations;
mod reading;
mod sharing;

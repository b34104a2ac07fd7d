//! The command with real processes: what it promises to whoever starts it, and to whoever waits behind it.
#![allow(missing_docs, clippy::unwrap_used)]
// How long something took, for bounds with a wide margin; no deadline is decided by it.
#![allow(clippy::disallowed_methods)]

mod advice;
mod election;
mod environment;
mod exit_codes;
mod lab;
mod listing;
mod loss;
mod periods;
mod postgres;
mod quorums;
mod redis;
mod repeats;
mod scripts;
mod signals;
mod terminal;
mod together;
mod world;

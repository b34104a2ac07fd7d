//! Patterns on real stores, by processes of which some are killed, with exact sums.
#![allow(missing_docs, clippy::unwrap_used)] // a test that cannot set itself up has failed

mod advice;
mod atomic;
mod claims;
mod cluster;
mod database;
mod examples;
mod fenced;
mod fenced_http;
mod hybrid;
mod processes;
mod rates;
mod requests;
mod shadows;
mod single_writer;
mod updates;

//! The laboratory on real servers and real processes.

mod cut;
mod matrix;
mod pretended;
mod readmes;
mod report;

//! The laboratory on real servers and real processes.

mod matrix;
mod report;

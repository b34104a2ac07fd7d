//! The places of the stores in this workspace.

mod memory;

pub use memory::{MemorySite, memory};

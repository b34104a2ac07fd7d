//! The fencing token (F1).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fencing token: a number that rises with every grant of one lock.
///
/// Send it with each write; the resource keeps the highest it has seen and refuses anything lower
/// in the same atomic step as the write. It fits a signed 64-bit column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// The highest fence: 2^63 − 1.
    pub const MAX: u64 = i64::MAX as u64;

    /// A fence as a store issued it; `None` when it is zero or beyond 63 bits.
    pub fn new(number: u64) -> Option<Self> {
        (1..=Self::MAX).contains(&number).then_some(Self(number))
    }

    /// The number to send to the resource.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

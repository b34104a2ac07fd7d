//! The fencing token (F1).

use std::fmt;

use serde::{Deserialize, Serialize};

/// A fencing token: a number that rises with every grant of one lock.
///
/// Send it with each write; the resource keeps the highest it has seen and refuses anything lower
/// in the same atomic step as the write. It fits a signed 64-bit column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
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

impl TryFrom<u64> for Fence {
    type Error = &'static str;

    /// For what was written down before: no other number was ever a fence.
    fn try_from(number: u64) -> Result<Self, Self::Error> {
        Self::new(number).ok_or("a fence is a whole number from 1 to 2^63 - 1")
    }
}

impl From<Fence> for u64 {
    fn from(fence: Fence) -> Self {
        fence.get()
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_no_other_number_is_read_as_a_fence() {
        assert_eq!(serde_json::from_str::<Fence>("7").unwrap(), Fence(7));
        assert_eq!(serde_json::to_string(&Fence(Fence::MAX)).unwrap(), Fence::MAX.to_string());
        for bad in ["0", "9223372036854775808", "-1", "\"7\""] {
            assert!(serde_json::from_str::<Fence>(bad).is_err(), "{bad}");
        }
    }
}

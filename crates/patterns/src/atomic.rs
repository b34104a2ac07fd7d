//! Changes that need no lock: the store compares and changes in one step.
//!
//! `atomic::redis` works on keys of your own over a connection of your own, `atomic::postgres` on rows inside a
//! client or transaction of your own. Both answer alike: what is refused for a reason that the caller can act on is a
//! [`Refusal`] in the answer, and changed nothing; an `Err` is the connection's or the server's.
//!
//! # After an answer that was lost
//!
//! A change by difference, such as a decrement or a transfer, cannot be repeated safely: nobody can tell whether it was made.
//! Give it a name: `reserve` for an order is repeated safely, and so is anything under
//! `fencepost::Locks::once`. A change by comparison can be read back.

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

use std::fmt;

/// Why nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is less than was wanted.
    Insufficient {
        /// What is there.
        has: i64,
    },
    /// There is nothing of this name.
    Missing {
        /// Which.
        what: String,
    },
    /// It holds something else than a whole number of 64 bits.
    NotANumber {
        /// Which.
        what: String,
    },
    /// It holds something else than one value.
    WrongType {
        /// Which.
        what: String,
        /// What it holds: a `hash`, a `list` and so on.
        holds: String,
    },
    /// The sum has more than 63 bits.
    Overflow {
        /// What is there.
        has: i64,
    },
    /// Zero or less cannot be taken, moved or reserved.
    NotPositive {
        /// What was asked for.
        amount: i64,
    },
    /// Whence and whither are the same.
    SameAccount,
    /// The order is there with another amount, or was settled the other way.
    OtherOrder {
        /// Its amount.
        amount: i64,
        /// `reserved`, `confirmed` or `cancelled`.
        state: String,
    },
    /// It was changed by others each time, or something else kept it from being changed, such as a trigger.
    Contended {
        /// How often.
        conflicts: u32,
    },
    /// The keys lie in different slots of a cluster, so that no step can change them together.
    OtherSlot {
        /// Two of them.
        keys: [String; 2],
    },
}

/// What came of it: done, or refused and nothing changed.
pub type Outcome<T> = Result<T, Refusal>;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Insufficient { has } => write!(f, "there are only {has}"),
            Self::Missing { what } => write!(f, "there is no {what:?}"),
            Self::NotANumber { what } => write!(f, "{what:?} holds no whole number of 64 bits"),
            Self::WrongType { what, holds } => write!(f, "{what:?} holds a {holds} and not one value"),
            Self::Overflow { has } => write!(f, "there are {has}, and the sum would have more than 63 bits"),
            Self::NotPositive { amount } => write!(f, "{amount} is no amount: it must be more than zero"),
            Self::SameAccount => f.write_str("whence and whither are the same"),
            Self::OtherOrder { amount, state } => write!(f, "the order is {state}, with an amount of {amount}"),
            Self::Contended { conflicts } => write!(f, "others changed it first {conflicts} times in a row"),
            Self::OtherSlot { keys: [a, b] } => write!(
                f,
                "{a:?} and {b:?} lie in different slots of a cluster; give both the same hash tag, such as {{shop}}:{a}"
            ),
        }?;
        f.write_str("; nothing was changed")
    }
}

impl std::error::Error for Refusal {}

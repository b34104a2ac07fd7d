//! Handing out pieces of work, each to one worker at a time.
//!
//! A worker takes tickets for a while. What it acknowledges in that time is done for good; what it does not comes back and is handed
//! out again, before any other, and counted. An acknowledgement is conditional on still having the ticket: of two who worked on
//! one, because the first was paused for too long, only the one who has it now is heard.
//!
//! | what happens | what comes of it |
//! |---|---|
//! | a worker dies | its tickets come back when their time is over, on the store's clock |
//! | it is paused for longer than that | another gets them; its acknowledgements are refused. **What it did elsewhere is done**: bind that to the ticket, as key of a `once` |
//! | the answer to a take is lost | nobody works on those tickets until their time is over |
//! | the answer to an acknowledgement is lost | it is done or not; repeated, it is refused if it was done. In PostgreSQL let it commit together with the work |
//! | a ticket kills every worker | it comes back for ever, with a rising count: set it aside when that is too high |
//! | Redis loses acknowledged writes | tickets that were done can come back; others can be lost |

#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;

use std::fmt;

use fencepost_core::{error::Error, owner::Owner};

/// A ticket that was handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket<K> {
    /// Its name.
    pub key: K,
    /// How often it was handed out, this time included.
    pub tries: u64,
}

/// Who has a ticket: a random value of one worker, which nobody else can be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Worker(Owner);

impl Worker {
    /// A new worker.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn new() -> Result<Self, Error> {
        Owner::random().map(Self)
    }
}

impl fmt::Display for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

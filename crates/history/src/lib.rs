//! What happened to a lock, as a list of events, and what was wrong with it.
//!
//! A history tells who asked for what and what came back, until when a client believed that it held, what a resource
//! accepted and refused, and which faults were made. It knows the difference between *believes* and *holds*:
//!
//! - A client **believes** from the answer that granted until the instant it named itself, until it began to release,
//!   until it was told of the loss, or until it died.
//! - A store **surely holds** for a client from the answer on, and for no longer than the TTL counted from *before* the
//!   request was sent: whatever the store did in between, it may not grant the lock to another in that time.
//!
//! [`read`] reads a history from JSON lines, one [`Event`] each, from any tool that writes them; `docs/history.md` is the
//! reference of the format. [`check`] sweeps over it in O(n log n) and answers [`Findings`].
//!
//! ```
//! let text = r#"
//! {"at":1000,"by":"a","event":"invoke","verb":"acquire","lock":"x","grant":"a1"}
//! {"at":2000,"by":"a","event":"ok","answer":"granted","ttl":9000,"until":9500}
//! {"at":3000,"by":"b","event":"invoke","verb":"acquire","lock":"x","grant":"b1"}
//! {"at":4000,"by":"b","event":"ok","answer":"granted","ttl":9000,"until":11500}
//! "#;
//! let history = fencepost_history::read(text.as_bytes()).whole()?;
//! let options = fencepost_history::Options { tolerance: 0, ..Default::default() };
//! let findings = fencepost_history::check(&history, &options);
//! assert_eq!(findings.list[0].kind, fencepost_history::Kind::DoubleGrant);
//! # Ok::<(), fencepost_history::BrokenLines>(())
//! ```

mod check;
mod event;
mod finding;
mod foreign;
mod history;
mod holds;
mod line;
mod reader;
mod timeline;

pub use check::{Options, check};
pub use event::{Answer, Event, Holding, Phase, Verb, What};
pub use finding::{Finding, Findings, Kind, Measures};
pub use foreign::Foreign;
pub use history::{History, Name, Recorded};
pub use holds::{Attempt, Hold, Outcome};
pub use reader::{BrokenLine, BrokenLines, Head, Reading, VERSION, read};
pub use timeline::Timeline;

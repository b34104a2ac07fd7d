//! The suite that every store must pass, and the tools to put a store through it.
//!
//! A rule is a plain async function over a [`Site`]: the place where a store lives, and what an administrator, a
//! network and a failing server can do to it. The store's [`Capabilities`] choose which rules apply; one that does not
//! says so on standard error, with the reason.
//!
//! # To run one store's suite
//!
//! ```text
//! cargo test -p fencepost-conformance --test suite redis::           # all rules on Redis
//! cargo test -p fencepost-conformance --test suite t1_               # one rule on every store
//! cargo run  -p fencepost-conformance --bin planted-bugs             # does the suite catch what it should?
//! ```
//!
//! # To add a store
//!
//! Write a [`Site`] in [`sites`], mostly the URL and what an administrator's tools do to a record, and one module in
//! `tests/suite.rs`:
//!
//! ```ignore
//! mod etcd {
//!     fencepost_conformance::conformance_suite!(fencepost_conformance::sites::etcd);
//! }
//! ```
//!
//! A constructor is an async function that answers a fresh site, for instance with a server of its own; whatever it
//! started ends when the site is dropped. Every rule gets its own site, so that no test sees another's leftovers.
//!
//! Times in rules are bounds with a wide margin. A rule that has not ended after [`LIMIT`] fails.
//!
//! [`Site`]: site::Site
//! [`Capabilities`]: fencepost_core::capabilities::Capabilities

pub mod clocks;
pub mod crowd;
pub mod holder;
pub mod ledger;
pub mod repeats;
pub mod rules;
pub mod site;
pub mod sites;
mod steps;

use std::{future::Future, io::Write, path::Path, pin::Pin, time::Duration};

use crate::site::{Site, Verdict};

/// How long one rule may take.
pub const LIMIT: Duration = Duration::from_secs(90);

/// A rule at work on a site.
pub type Proof<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// Puts one rule to the test on a fresh site. `holder` is the helper executable.
///
/// # Panics
/// When the rule is broken, or has not ended after [`LIMIT`].
pub fn prove<S: Site>(site: impl Future<Output = S>, holder: &str, rule: for<'a> fn(&'a S) -> Proof<'a>) {
    holder::found_at(Path::new(holder));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let verdict = runtime.expect("a runtime").block_on(async {
        let site = site.await;
        tokio::time::timeout(LIMIT, rule(&site)).await.expect("the rule must end within its limit")
    });
    if let Err(reason) = verdict {
        // Not by `print!`, which the test harness hides for a test that passes.
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        let _ = writeln!(std::io::stderr(), "{test}: does not apply: {}", reason.0);
    }
}

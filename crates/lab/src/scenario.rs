//! What a scenario is.

use std::time::Duration;

use fencepost_core::store::BoxFuture;

use crate::{
    stage::{IDLE_LIMIT, Stage},
    subject::Subject,
    verdict::Verdict,
};

/// A story that can be played on a store: the steps that lead into a danger, and what is expected of it.
pub trait Scenario: Sync {
    /// What it is called, and why there is one.
    fn about(&self) -> About;

    /// The verdict that is expected, and why.
    ///
    /// # Errors
    /// Why it is not played on that subject: each cell of the matrix has a verdict or a reason.
    fn expects(&self, subject: Subject) -> Result<Expected, NotPlayed>;

    /// From when on a lock that is wanted and that nobody has counts as blocked.
    fn idle_limit(&self) -> Duration {
        IDLE_LIMIT
    }

    /// Whether a fault of it needs rights that not everybody has, so that it may be NOT-RUN where everything is installed.
    fn privileged(&self, _on: Subject) -> bool {
        false
    }

    /// Whether its danger is a network that is cut: servers and clients are put on hosts of their own then, where the kernel allows it.
    fn cuts_the_network(&self) -> bool {
        false
    }

    /// Whether its danger is a disk that is full: the data of this subject are put on a small one of their own then.
    fn fills_the_disk(&self, _on: Subject) -> bool {
        false
    }

    /// Plays it. Whether its danger was reached is part of the answer: what never came to the point proves nothing.
    fn play<'a>(&'a self, stage: &'a mut Stage) -> BoxFuture<'a, Result<Reached, Stop>>;
}

/// What people read of a scenario.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its name on the command line.
    pub name: &'static str,
    /// A heading.
    pub title: &'static str,
    /// Why it matters.
    pub why: &'static str,
    /// What is done.
    pub steps: &'static [&'static str],
    /// Where it is from.
    pub source: &'static str,
}

/// What is expected, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The verdict.
    pub verdict: Verdict,
    /// The reason, in one sentence.
    pub because: &'static str,
}

/// Why a scenario is not played on a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotPlayed {
    /// It does not apply there, or tells nothing that another one does not tell.
    Because(&'static str),
    /// The subject stands apart: [`Subject::apart`] says in which scenarios it is played.
    Apart,
}

/// Shorthand for [`Scenario::expects`] where a subject that stands apart has a reason of this scenario's own.
pub(crate) const fn not_played(because: &'static str) -> Result<Expected, NotPlayed> {
    Err(NotPlayed::Because(because))
}

/// Whether the dangerous state was there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reached {
    /// It was.
    Yes,
    /// It was not, and why.
    No(String),
}

/// Why a scenario ended early.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Stop {
    /// Something that it needs is missing.
    #[error("{0}")]
    Missing(String),
    /// A fault could not be made.
    #[error("the fault could not be made: {0}")]
    NotInstalled(String),
    /// A fault was made, and nothing came of it.
    #[error("the fault changed nothing: {0}")]
    Ineffective(String),
    /// The laboratory failed.
    #[error("{0}")]
    Failed(String),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Stop::Failed(error.to_string())
    }
}

/// Shorthand for [`Scenario::expects`].
pub(crate) const fn expect(verdict: Verdict, because: &'static str) -> Result<Expected, NotPlayed> {
    Ok(Expected { verdict, because })
}

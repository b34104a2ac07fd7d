//! What was measured, for programs and for people.

mod table;

use serde::{Deserialize, Serialize};

use crate::{floor::Measured, plan::Work, samples::Samples, work::transfers::Transfer};

/// The version of the report's form. It rises when a field changes its meaning or goes; new fields may come at any time.
pub const SCHEMA: u32 = 1;

/// A run's figures. [`Display`](std::fmt::Display) shows them as a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The store's URL without secrets.
    pub store: String,
    /// Processors of the machine.
    pub cores: usize,
    /// One for each work and size.
    pub outcomes: Vec<Outcome>,
}

/// The figures of one work of one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// The work.
    pub work: Work,
    /// Tasks, waiters or leases.
    pub size: usize,
    /// The time that one took.
    pub latency: Option<Latency>,
    /// How many in a second.
    pub per_second: Option<f64>,
    /// The floors of the same run.
    pub against: Vec<Against>,
    /// What else there is to count.
    pub figures: Vec<Figure>,
    /// What the reader has to know.
    pub notes: Vec<String>,
    /// The ways of [`Work::Transfers`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transfers: Vec<Transfer>,
}

impl Outcome {
    pub(crate) fn of(work: Work, size: usize) -> Self {
        let (against, figures, notes, transfers) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { work, size, latency: None, per_second: None, against, figures, notes, transfers }
    }
}

/// Times in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Half of them took less.
    pub p50_us: f64,
    /// All but one in a hundred took less.
    pub p99_us: f64,
    /// How many there were.
    pub samples: u64,
}

/// A floor, and how we stand to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Against {
    /// What was done.
    pub floor: String,
    /// The time that one took.
    pub latency: Latency,
    /// How many in a second, where that was measured.
    pub per_second: Option<f64>,
    /// Ours by the floor's, the median over the rounds: of throughput for [`Work::Tasks`], else of time.
    pub ratio: f64,
    /// What we want the ratio to be.
    pub goal: Option<Goal>,
    /// Whether it is so.
    pub met: Option<bool>,
}

impl Measured<'_> {
    pub(crate) fn against(&self, theirs: &Samples, per_second: Option<f64>, ratio: f64, goal: Option<Goal>) -> Against {
        let met = goal.map(|goal| goal.is_met_by(ratio));
        Against { floor: self.what.into(), latency: theirs.latency(), per_second, ratio, goal, met }
    }
}

/// A figure that has no floor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// The unit, empty for a number.
    pub unit: &'static str,
    /// What we want it to be.
    pub goal: Option<Goal>,
    /// Whether it is so.
    pub met: Option<bool>,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64, unit: &'static str) -> Self {
        Self { name: name.into(), value, unit, goal: None, met: None }
    }

    pub(crate) fn with(self, goal: Goal) -> Self {
        Self { met: Some(goal.is_met_by(self.value)), goal: Some(goal), ..self }
    }
}

/// A bound on a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// It shall not be more.
    AtMost(f64),
    /// It shall not be less.
    AtLeast(f64),
}

impl Goal {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Goal::AtMost(most) => value <= most,
            Goal::AtLeast(least) => value >= least,
        }
    }
}

//! What is measured, how much of it and for how long.

use std::{fmt, path::PathBuf, str::FromStr, time::Duration};

use fencepost::Namespace;
use serde::Serialize;

/// One kind of measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// Taking a free lock and giving it back, one after the other.
    Alone,
    /// The same by several tasks at once, each on a lock of its own.
    Tasks,
    /// From the release to the waiter that holds, with many waiting for one lock.
    HandOver,
    /// Many leases held by one client.
    Leases,
    /// The command `fencepost run` next to `flock`.
    Startup,
    /// What is built from locks, each next to the plain lock. Only when it is asked for.
    Primitives,
    /// Many readers of one lock, and many who wait for a hundred permits. Only when it is asked for.
    Crowds,
    /// How often those who wait are passed over by later ones. Only when it is asked for.
    Fairness,
    /// Amounts moved between accounts, with a lock and without, on this store and on those [beside](Plan::beside) it. Only when it is
    /// asked for.
    Transfers,
}

impl Work {
    /// All of them, in the order in which they run. Leases come first: memory that another work has freed would be
    /// used again for them, and would not count.
    pub const ALL: [Work; 9] = [
        Work::Leases,
        Work::Alone,
        Work::Tasks,
        Work::HandOver,
        Work::Startup,
        Work::Primitives,
        Work::Crowds,
        Work::Fairness,
        Work::Transfers,
    ];

    /// Its word on the command line and in the report.
    pub fn word(self) -> &'static str {
        match self {
            Work::Alone => "alone",
            Work::Tasks => "tasks",
            Work::HandOver => "handover",
            Work::Leases => "leases",
            Work::Startup => "startup",
            Work::Primitives => "primitives",
            Work::Crowds => "crowds",
            Work::Fairness => "fairness",
            Work::Transfers => "transfers",
        }
    }

    pub(crate) fn parts(self, plan: &Plan) -> Vec<Part> {
        let part = |size: &usize, weight| Part { work: self, size: *size, weight };
        match self {
            Work::Alone => vec![part(&1, 4.0)],
            Work::Tasks => plan.tasks.iter().map(|tasks| part(tasks, 2.0)).collect(),
            Work::HandOver => plan.waiters.iter().map(|waiters| part(waiters, 2.0)).collect(),
            // A renewal of every lease at the usual TTL has to fit in.
            Work::Leases => vec![part(&plan.leases, 10.0)],
            Work::Startup => vec![part(&1, 4.0)],
            Work::Primitives => vec![part(&1, 4.0)],
            Work::Crowds => vec![part(&plan.crowd, 4.0)],
            Work::Fairness => vec![part(&FAIRNESS_TASKS, 4.0)],
            Work::Transfers => plan.workers.iter().map(|workers| part(workers, 4.0)).collect(),
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = Work::ALL.into_iter().find(|work| work.word() == word);
        found.ok_or_else(|| format!("the works are {}", Work::ALL.map(Work::word).join(", ")))
    }
}

/// Tasks for [`Work::Fairness`], among eight clients.
const FAIRNESS_TASKS: usize = 64;

/// A run to come.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The store's URL.
    pub url: String,
    /// The round trip to the store, where it is to be put at a distance: relays on this machine hold everything back, ours
    /// and the floor's. Hand-overs then show how many round trips they are made of.
    pub distance: Option<Duration>,
    /// The prefix of all names. A directory gets a namespace of its own instead, which is removed in the end.
    pub namespace: Namespace,
    /// How long all of it may take, but for what has to be finished.
    pub total: Duration,
    /// The works wanted; when it is empty, all but those that run only when they are asked for.
    pub only: Vec<Work>,
    /// Numbers of tasks for [`Work::Tasks`].
    pub tasks: Vec<usize>,
    /// Numbers of waiters for [`Work::HandOver`].
    pub waiters: Vec<usize>,
    /// The number of leases for [`Work::Leases`].
    pub leases: usize,
    /// How many come at once for [`Work::Crowds`].
    pub crowd: usize,
    /// More stores for [`Work::Transfers`], measured in turns with the first.
    pub beside: Vec<String>,
    /// Numbers of workers for [`Work::Transfers`].
    pub workers: Vec<usize>,
    /// Numbers of accounts for [`Work::Transfers`], two or more each.
    pub accounts: Vec<usize>,
    /// The command `fencepost` for [`Work::Startup`], which is left out without it.
    pub command: Option<PathBuf>,
}

impl Plan {
    /// All that runs without being asked for, in 50 seconds.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            distance: None,
            namespace: Namespace::default(),
            total: Duration::from_secs(50),
            only: Vec::new(),
            tasks: vec![1, 8, 64],
            waiters: vec![1, 8, 64, 1000],
            leases: 10_000,
            crowd: 1_000,
            beside: Vec::new(),
            workers: vec![1, 4, 16],
            accounts: vec![2, 64],
            command: None,
        }
    }

    pub(crate) fn works(&self) -> impl Iterator<Item = Work> {
        Work::ALL.into_iter().filter(|work| match self.only.is_empty() {
            true => match work {
                Work::Startup => self.command.is_some(),
                Work::Primitives | Work::Crowds | Work::Fairness | Work::Transfers => false,
                Work::Leases | Work::Alone | Work::Tasks | Work::HandOver => true,
            },
            false => self.only.contains(work),
        })
    }
}

/// One work with one size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) work: Work,
    /// Tasks, waiters or leases.
    pub(crate) size: usize,
    /// Its share of the time.
    pub(crate) weight: f64,
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.work {
            Work::Alone => f.write_str("take and release alone"),
            Work::Tasks => write!(f, "take and release by {} at once", self.size),
            Work::HandOver => write!(f, "hand-over with {} waiting", self.size),
            Work::Leases => write!(f, "{} leases held", self.size),
            Work::Startup => f.write_str("start of the command"),
            Work::Primitives => f.write_str("primitives beside the plain lock"),
            Work::Crowds => write!(f, "{} readers, and as many who wait for permits", self.size),
            Work::Fairness => write!(f, "{} who want one lock all the time", self.size),
            Work::Transfers => write!(f, "transfers by {} at once", self.size),
        }
    }
}

//! What a run of a scenario says.

use std::fmt;

use fencepost_history::{Findings, Kind};
use serde::{Deserialize, Serialize};

/// The outcome of a scenario on a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub enum Verdict {
    /// The dangerous state was reached, and nothing was wrong.
    Ok,
    /// Safe, and for a while nobody could have the lock although somebody wanted it.
    Blocked,
    /// Somebody was late, and the resource refused him by his fence or was not harmed.
    OverlapFenced,
    /// Two acted as holders, or one believed or was told what was not so, and no fence decided.
    Overlap,
    /// The store granted twice, or its fences did not rise.
    DoubleGrant,
    /// What happened cannot be told.
    Unknown,
    /// The dangerous state was not reached: nothing is proved, and it never counts as success.
    Vacuous,
    /// Something that it needs is not there, or a fault could not be made.
    NotRun,
    /// The laboratory itself failed.
    Infrastructure,
}

impl Verdict {
    /// All of them.
    pub const ALL: [Verdict; 9] = [
        Verdict::Ok,
        Verdict::Blocked,
        Verdict::OverlapFenced,
        Verdict::Overlap,
        Verdict::DoubleGrant,
        Verdict::Unknown,
        Verdict::Vacuous,
        Verdict::NotRun,
        Verdict::Infrastructure,
    ];

    /// The word for it.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "OK",
            Verdict::Blocked => "BLOCKED",
            Verdict::OverlapFenced => "OVERLAP-FENCED",
            Verdict::Overlap => "OVERLAP",
            Verdict::DoubleGrant => "DOUBLE-GRANT",
            Verdict::Unknown => "UNKNOWN",
            Verdict::Vacuous => "VACUOUS",
            Verdict::NotRun => "NOT-RUN",
            Verdict::Infrastructure => "INFRASTRUCTURE",
        }
    }

    /// What it means, in a few words.
    pub fn means(self) -> &'static str {
        match self {
            Verdict::Ok => "the danger was there, and nothing was wrong",
            Verdict::Blocked => "safe, and nobody could have the lock for a while",
            Verdict::OverlapFenced => "somebody was late, and the fence kept the resource right",
            Verdict::Overlap => "two acted as holders, and nothing stopped the late one",
            Verdict::DoubleGrant => "the store itself granted twice, or its fences did not rise",
            Verdict::Unknown => "what happened cannot be told",
            Verdict::Vacuous => "the dangerous state was not reached: proves nothing",
            Verdict::NotRun => "something that it needs is not there",
            Verdict::Infrastructure => "the laboratory itself failed",
        }
    }

    /// The exit code when it came unexpected.
    pub fn exit_code(self) -> u8 {
        match self {
            Verdict::DoubleGrant => 40,
            Verdict::Overlap => 41,
            Verdict::OverlapFenced => 42,
            Verdict::Blocked => 43,
            Verdict::Unknown => 44,
            Verdict::Vacuous => 45,
            Verdict::NotRun => 46,
            Verdict::Infrastructure => 47,
            Verdict::Ok => 48,
        }
    }

    /// Whether it says something of the store: the scenario took place and its danger was reached.
    pub fn tells(self) -> bool {
        !matches!(self, Verdict::Unknown | Verdict::Vacuous | Verdict::NotRun | Verdict::Infrastructure)
    }

    /// What the findings of a whole history say, of which nobody knows whether its danger was reached: without a grant, nothing.
    pub fn of_all(findings: &Findings, idle_limit: u64) -> Self {
        if findings.measures.grants == 0 { Verdict::Vacuous } else { Verdict::of(findings, idle_limit) }
    }

    /// What findings say. `idle_limit` is the time in nanoseconds from which on an unused lock counts as blocked.
    pub fn of(findings: &Findings, idle_limit: u64) -> Self {
        let wrong = |kinds: &[Kind]| kinds.iter().any(|kind| findings.has(*kind));
        // A resource that refused somebody checks fences.
        let harm = findings.harm()
            || wrong(&[Kind::DishonestAnswer, Kind::RightfulRefused])
            || (findings.overlap() && !wrong(&[Kind::StaleRefused, Kind::LateAccepted]));
        if wrong(&[Kind::DoubleGrant, Kind::FenceBackwards, Kind::FenceTwice]) {
            Verdict::DoubleGrant
        } else if harm || (wrong(&[Kind::BeliefBeyondLease]) && !wrong(&[Kind::StaleRefused])) {
            Verdict::Overlap
        } else if findings.overlap() {
            Verdict::OverlapFenced
        } else if findings.measures.longest_idle >= idle_limit || wrong(&[Kind::Bypassed, Kind::SlowRecovery]) {
            Verdict::Blocked
        } else {
            Verdict::Ok
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

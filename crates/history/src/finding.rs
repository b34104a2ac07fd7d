//! What a check finds.

use serde::Serialize;

/// A kind of wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The store granted a lock that it surely held for another.
    DoubleGrant,
    /// Two clients believed at once that they held one lock.
    BeliefOverlap,
    /// A client believed for longer than the store had promised.
    BeliefBeyondLease,
    /// A later grant has a lower fence.
    FenceBackwards,
    /// Two grants have one fence.
    FenceTwice,
    /// A resource accepted an operation of one who was late, after a newer holder had been there.
    StaleAccepted,
    /// A resource accepted an operation of one who was late, and no newer holder had been there yet: who came later
    /// saw it. No harm.
    LateAccepted,
    /// A resource refused an operation of one who was late: the fence did its work.
    StaleRefused,
    /// A resource refused the newest holder.
    RightfulRefused,
    /// A resource accepted a fence lower than one that it had accepted before.
    EffectBackwards,
    /// A write was built on a version that was no longer the newest: an update is lost.
    LostUpdate,
    /// An operation at the resource came from one who was never granted the lock.
    NeverGranted,
    /// An answer said what cannot have been so.
    DishonestAnswer,
    /// A waiter was passed over more often than is allowed.
    Bypassed,
    /// The lock came free later than is allowed.
    SlowRecovery,
}

/// Something that was wrong, or nearly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Of which kind.
    pub kind: Kind,
    /// When it showed.
    pub at: u64,
    /// The lines that show it; the one where it shows comes last.
    pub lines: Vec<u32>,
    /// In words.
    pub said: String,
}

/// What is measured beside.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measures {
    /// Grants.
    pub grants: u64,
    /// Operations at resources, accepted or refused.
    pub operations: u64,
    /// The most grants to later comers that one waiter had to see.
    pub most_bypassed: u64,
    /// The longest time in which somebody waited for a lock and nobody alive believed that he held it.
    pub longest_idle: u64,
    /// The longest time from a holder's death to the next grant of its lock.
    pub slowest_recovery: Option<u64>,
    /// Operations of which nobody knows whether they were applied.
    pub unknown: u64,
    /// Answers without a question: the line with the question is missing or broken.
    pub orphans: u64,
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// In the order of their times.
    pub list: Vec<Finding>,
    /// What was measured.
    pub measures: Measures,
}

impl Findings {
    /// Whether there is one of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        self.list.iter().any(|finding| finding.kind == kind)
    }

    /// Those of this kind.
    pub fn of(&self, kind: Kind) -> impl Iterator<Item = &Finding> {
        self.list.iter().filter(move |finding| finding.kind == kind)
    }

    /// Whether the resource's data are wrong, or may be: somebody wrote who should not have.
    pub fn harm(&self) -> bool {
        [Kind::StaleAccepted, Kind::EffectBackwards, Kind::LostUpdate, Kind::NeverGranted]
            .into_iter()
            .any(|kind| self.has(kind))
    }

    /// Whether somebody was late: acted, or believed, after another had been granted the lock.
    pub fn overlap(&self) -> bool {
        self.harm()
            || [Kind::BeliefOverlap, Kind::StaleRefused, Kind::LateAccepted].into_iter().any(|kind| self.has(kind))
    }
}

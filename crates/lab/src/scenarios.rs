//! The stories, one file each.

mod answered_by_the_other;
mod cancelled_commit;
mod client_clock_drifts;
mod client_clock_jumps;
mod contention;
mod counter_goes_back;
mod crash_before_replication;
mod cut_off;
mod delete_anothers_lock;
mod deposed_master;
mod duplicate_request;
mod holder_killed;
mod holder_vanishes;
mod kleppmann_pause;
mod late_reply;
mod leader_dies;
mod leader_frozen;
mod leader_in_a_minority;
mod leaders_disk_is_slow;
mod lock_on_a_standby;
mod lost_renewal_replies;
mod lost_reply;
mod machine_suspended;
mod paused_holder_keeps_it;
mod permits;
mod planned_failover;
mod pool_shares_a_session;
mod readers_and_writers;
mod redlock_clock_jump;
mod redlock_node_forgets;
mod redlock_restart_guard;
mod restart;
mod restart_without_data;
mod scenes;
mod server_clock_goes_back;
mod server_clock_jumps;
mod server_frozen;
mod server_wakes;
mod snapshot_restored;
mod store_is_full;
mod synchronous_standby;
mod write_in_flight;

use crate::scenario::Scenario;

/// All of them, in the order of the matrix.
pub const ALL: &[&dyn Scenario] = &[
    &contention::Contention,
    &readers_and_writers::ReadersAndWriters,
    &permits::Permits,
    &holder_killed::HolderKilled,
    &holder_vanishes::HolderVanishes,
    &kleppmann_pause::KleppmannPause,
    &machine_suspended::MachineSuspended,
    &paused_holder_keeps_it::PausedHolderKeepsIt,
    &write_in_flight::WriteInFlight,
    &delete_anothers_lock::DeleteAnothersLock,
    &late_reply::LateReply,
    &lost_reply::LostReply,
    &duplicate_request::DuplicateRequest,
    &lost_renewal_replies::LostRenewalReplies,
    &cut_off::CutOff,
    &server_frozen::ServerFrozen,
    &server_wakes::ServerWakes,
    &store_is_full::StoreIsFull,
    &server_clock_jumps::ServerClockJumps,
    &server_clock_goes_back::ServerClockGoesBack,
    &client_clock_jumps::ClientClockJumps,
    &client_clock_drifts::ClientClockDrifts,
    &restart::Restart,
    &restart_without_data::RestartWithoutData,
    &snapshot_restored::SnapshotRestored,
    &planned_failover::PlannedFailover,
    &crash_before_replication::CrashBeforeReplication,
    &answered_by_the_other::AnsweredByTheOther,
    &deposed_master::DeposedMaster,
    &counter_goes_back::CounterGoesBack,
    &leader_dies::LeaderDies,
    &leader_frozen::LeaderFrozen,
    &leaders_disk_is_slow::LeadersDiskIsSlow,
    &leader_in_a_minority::LeaderInAMinority,
    &synchronous_standby::SynchronousStandby,
    &cancelled_commit::CancelledCommit,
    &pool_shares_a_session::PoolSharesASession,
    &lock_on_a_standby::LockOnAStandby,
    &redlock_clock_jump::RedlockClockJump,
    &redlock_node_forgets::RedlockNodeForgets,
    &redlock_restart_guard::RedlockRestartGuard,
];

/// The scenario of this name.
///
/// # Errors
/// The names that are nearest to it.
pub fn named(name: &str) -> Result<&'static dyn Scenario, Vec<&'static str>> {
    let found = ALL.iter().find(|scenario| scenario.about().name == name);
    found.copied().ok_or_else(|| nearest(name, ALL.iter().map(|scenario| scenario.about().name)))
}

/// The up to three names that are most like `name`.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut ranked: Vec<(usize, &str)> = known
        .map(|known| (if known.contains(name) || name.contains(known) { 0 } else { distance(name, known) }, known))
        .collect();
    ranked.sort_unstable();
    let close = |(distance, known): &(usize, &str)| *distance <= known.len() / 2;
    ranked.into_iter().filter(close).take(3).map(|(_, known)| known).collect()
}

/// How many letters have to be put in, taken out or exchanged (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, b) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{scenario::NotPlayed, subject::SUBJECTS};

    #[test]
    fn each_cell_has_a_verdict_or_a_reason() {
        for (scenario, subject) in ALL.iter().flat_map(|scenario| SUBJECTS.iter().map(move |on| (scenario, on))) {
            let said = scenario.expects(*subject);
            let why = match said {
                Ok(expected) => Some(expected.because),
                Err(NotPlayed::Because(why)) => Some(why),
                Err(NotPlayed::Apart) => subject.apart(),
            };
            assert!(why.is_some_and(|why| !why.is_empty()), "{} on {subject}: no reason", scenario.about().name);
        }
    }

    #[test]
    fn an_unknown_scenario_names_the_nearest() {
        let nearest = |name| named(name).map(|scenario| scenario.about().name).unwrap_err();
        assert_eq!(nearest("klepmann-pause")[0], "kleppmann-pause");
        assert_eq!(nearest("killed"), ["holder-killed"]);
        assert!(nearest("zzzzzzzzzzzzzzzzzzzzzzz").is_empty());
        assert!(named("contention").is_ok());
    }

    #[test]
    fn each_name_is_there_once_and_each_scenario_says_what_it_does() {
        let mut names: Vec<_> = ALL.iter().map(|scenario| scenario.about().name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        for about in ALL.iter().map(|scenario| scenario.about()) {
            assert!(!about.steps.is_empty() && !about.why.is_empty() && !about.source.is_empty(), "{about:?}");
        }
    }
}

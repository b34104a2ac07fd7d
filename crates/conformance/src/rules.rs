//! The rules. Each is named after its label and its promise, which is all that many of them have to say.
#![allow(missing_docs)]

pub mod cancellation;
pub mod dividing;
pub mod errors;
pub mod fences;
pub mod leading;
pub mod loss;
pub mod meeting;
pub mod modelled;
pub mod ownership;
pub mod permits;
pub mod remembering;
pub mod renewal;
pub mod repeating;
pub mod sharing;
pub mod time;
pub mod together;
pub mod waiting;

/// One test for each rule, on fresh sites of one constructor. For use in a `tests/` file of this crate, where the
/// helper executable is known.
#[macro_export]
macro_rules! conformance_suite {
    ($site:path) => {
        $crate::conformance_suite! { @rules $site;
            time:
                t1_a_deadline_counts_from_before_the_request
                t1_belief_lies_within_the_stores_lease
                t1_a_late_reply_is_not_a_grant
                t1_an_unknown_answer_never_moves_the_deadline
                t1_a_handed_over_grant_counts_from_its_confirmation
                t2_expiry_is_judged_by_the_stores_clock
                t2_time_asleep_counts
                t3_zero_waiting_time_tries_once
                t3_a_waiting_limit_ends_in_busy
                t3_without_a_limit_it_waits_as_long_as_it_takes
                t3_the_waiting_time_bounds_a_store_that_is_down
                t3_the_waiting_time_bounds_a_store_that_is_silent
                t3_a_ttl_is_neither_zero_nor_truncated;
            ownership:
                o1_every_grant_has_an_owner_value_of_its_own
                o1_tasks_of_one_client_exclude_each_other
                o2_a_stale_release_changes_nothing
                o2_a_stale_renewal_changes_nothing
                o2_a_renewal_never_creates
                o2_a_repeated_claim_answers_as_the_first
                o3_a_release_says_what_it_found
                o3_a_release_after_expiry_says_so
                o3_a_cancelled_release_can_be_repeated
                o3_a_release_without_an_answer_is_unknown
                o4_a_lock_is_not_reentrant_unless_asked;
            loss:
                l1_the_holder_is_told_at_its_deadline
                l1_a_paused_holder_finds_out_at_its_first_look
                l1_a_deleted_record_is_a_loss
                l1_a_forced_lock_is_lost_to_its_holder
                l1_closing_gives_back_and_tells
                l2_work_is_cancelled_on_loss
                l2_an_outage_is_not_yet_loss
                l3_a_lost_grant_is_not_renewed_and_its_record_goes
                l3_the_name_can_be_taken_again_by_the_same_client
                l4_a_deletion_is_heard_without_asking
                l4_a_record_made_permanent_is_found;
            renewal:
                r1_a_lease_outlives_its_ttl
                r1_ten_thousand_leases_are_kept
                r1_one_bad_lease_disturbs_no_other
                r1_the_time_held_can_be_bounded
                r2_a_dropped_guard_is_freed
                r2_a_panicking_task_does_not_keep_its_lock
                r2_a_guard_dropped_with_its_runtime_is_freed;
            waiting:
                w1_a_release_before_the_wait_is_not_missed
                w1_a_cut_message_connection_costs_little
                w1_a_waiter_wakes_when_the_holder_dies
                w1_a_dead_waiter_is_passed_over
                w1_a_waiter_that_forgot_its_turn_is_passed_over
                w2_one_release_wakes_one_waiter
                w2_waiters_share_one_connection
                w2_a_crowd_is_served
                w3_first_come_first_served
                w3_first_come_first_served_across_processes
                w3_in_a_crowd_nobody_is_passed;
            cancellation:
                c1_dropped_acquires_leave_nothing
                c1_a_cancelled_waiter_leaves_the_queue
                c1_a_dropped_claim_poisons_nothing
                c1_a_waiting_limit_leaves_no_waiter;
            errors:
                c2_busy_is_not_an_error_and_a_second_try_works
                c2_unavailable_is_never_busy
                c2_an_error_tells_what_it_is_about
                c2_every_verb_survives_forgotten_scripts
                c2_every_verb_survives_a_restart
                c3_names_never_collide
                c3_bad_names_are_refused
                c3_namespaces_are_apart
                c4_a_foreign_value_is_reported_at_once
                c4_missing_rights_are_reported_at_once;
            fences:
                f1_fences_rise_and_stay_for_the_lease
                f1_fences_rise_in_the_order_of_holding
                f1_fences_rise_across_processes_and_kills
                f1_a_store_without_fences_refuses_correctness
                f1_no_update_is_lost_when_the_resource_checks
                f2_the_fence_comes_with_the_grant
                f3_readers_never_advance_a_fence
                f4_a_fence_never_goes_back
                f4_an_unreadable_fence_is_not_started_again;
            sharing:
                readers_hold_together_and_a_writer_alone
                w3_later_readers_do_not_pass_a_writer_that_waits
                w2_all_readers_that_wait_next_come_in_together
                w1_a_dead_reader_goes
                l1_a_paused_reader_finds_out_at_its_first_look
                a_writer_becomes_a_reader_without_a_gap
                a_downgraded_lease_is_renewed_and_given_back
                an_owner_that_reads_is_refused_as_writer
                never_both_and_writers_get_their_turn;
            permits:
                the_count_never_exceeds_the_limit
                w1_a_dead_holders_permit_comes_back
                l1_a_paused_holder_of_a_permit_finds_out_at_its_first_look
                w3_one_that_waits_for_two_is_not_passed
                a_differing_limit_is_refused
                a_name_is_a_lock_or_a_semaphore
                the_limit_is_changed_on_purpose_only
                the_number_of_permits_makes_sense
                f3_each_slots_fences_rise;
            modelled:
                readers_and_writers_go_as_in_the_model
                permits_go_as_in_the_model;
            together:
                opposite_orders_do_not_deadlock
                all_or_nothing
                c1_a_cancelled_request_leaves_nothing
                the_first_loss_is_the_loss_of_all
                senseless_lists_are_refused;
            remembering:
                no_change_of_a_cell_is_lost
                a_repeated_change_answers_as_the_first
                c2_a_change_that_was_made_and_overwritten_is_no_conflict
                no_version_of_a_cell_comes_twice
                t2_a_cell_expires_by_the_stores_clock
                w1_a_change_of_a_cell_is_told
                a_cell_holds_as_much_as_it_says;
            leading:
                everybody_hears_who_leads
                a_resigned_leadership_passes_at_once
                l1_a_deposed_leader_says_nothing_more
                l1_a_paused_leader_finds_out_at_its_first_look
                the_word_of_a_dead_leader_ends
                who_closes_its_locks_takes_its_word_back
                the_highest_priority_that_waits_leads_next
                f1_terms_rise;
            dividing:
                members_see_who_comes_and_goes
                a_paused_member_is_gone_until_it_wakes
                who_closes_its_locks_leaves_the_group
                groups_are_listed_with_their_members
                each_shard_has_one_owner;
            meeting:
                a_latch_opens_when_all_have_arrived
                nobody_passes_a_barrier_alone
                c1_who_leaves_a_barrier_is_not_counted
                t2_work_is_due_once_in_a_period
                a_turn_that_is_given_back_is_due_again;
            repeating:
                a_result_is_kept_and_told_to_all_who_repeat
                who_comes_meanwhile_is_told_who_is_at_it_or_waits
                a_failure_and_a_dropped_run_leave_the_key_free
                a_result_that_is_too_long_is_noted_and_its_work_not_repeated
                t2_a_key_is_new_when_its_time_is_over
                each_key_is_done_once_by_processes_of_which_some_are_killed;
        }
    };
    (@rules $site:path; $($module:ident: $($rule:ident)+;)+) => {$($(
        #[test]
        fn $rule() {
            let holder = env!("CARGO_BIN_EXE_fencepost-holder");
            $crate::prove($site(), holder, |site| Box::pin($crate::rules::$module::$rule(site)));
        }
    )+)+

        #[test]
        fn every_rule_is_in_the_list() {
            $crate::rules::assert_complete(&[$($(concat!(stringify!($module), "::", stringify!($rule)),)+)+]);
        }
    };
}

/// A rule that is written and not listed would never run.
///
/// # Panics
/// When one is missing in `listed`.
pub fn assert_complete(listed: &[&str]) {
    for (module, source) in SOURCES {
        for (rule, _) in rules_in(source) {
            let rule = format!("{module}::{rule}");
            assert!(listed.contains(&rule.as_str()), "{rule} is missing in `conformance_suite!`");
        }
    }
}

/// Whether the test that runs on this thread is of a rule that may stop the server: sites that share one server, because
/// starting one is dear, make one of its own for it.
pub fn runs_one_that_stops_the_server() -> bool {
    let thread = std::thread::current();
    let running = thread.name().and_then(|test| test.rsplit("::").next()).unwrap_or_default();
    let rules = SOURCES.iter().flat_map(|(_, source)| rules_in(source));
    rules.into_iter().any(|(rule, text)| rule == running && text.contains("site.server()"))
}

const SOURCES: &[(&str, &str)] = &[
    ("cancellation", include_str!("rules/cancellation.rs")),
    ("dividing", include_str!("rules/dividing.rs")),
    ("errors", include_str!("rules/errors.rs")),
    ("fences", include_str!("rules/fences.rs")),
    ("leading", include_str!("rules/leading.rs")),
    ("loss", include_str!("rules/loss.rs")),
    ("meeting", include_str!("rules/meeting.rs")),
    ("modelled", include_str!("rules/modelled.rs")),
    ("ownership", include_str!("rules/ownership.rs")),
    ("permits", include_str!("rules/permits.rs")),
    ("remembering", include_str!("rules/remembering.rs")),
    ("renewal", include_str!("rules/renewal.rs")),
    ("repeating", include_str!("rules/repeating.rs")),
    ("sharing", include_str!("rules/sharing.rs")),
    ("time", include_str!("rules/time.rs")),
    ("together", include_str!("rules/together.rs")),
    ("waiting", include_str!("rules/waiting.rs")),
];

/// Each rule's name and text.
fn rules_in(source: &str) -> impl Iterator<Item = (&str, &str)> {
    source.split("\npub async fn ").skip(1).map(|text| (text.split('(').next().unwrap_or_default(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_stops_the_server_is_known() {
        let stops = |name: &str| {
            let thread = std::thread::Builder::new().name(format!("store::{name}"));
            thread.spawn(runs_one_that_stops_the_server).expect("a thread").join().expect("no panic")
        };
        assert!(stops("c2_unavailable_is_never_busy") && stops("f4_a_fence_never_goes_back"));
        assert!(!stops("c3_names_never_collide") && !stops("no_rule"));
    }
}

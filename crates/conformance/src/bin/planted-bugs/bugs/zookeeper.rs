//! What locks in ZooKeeper could get wrong, and what others have got wrong there.

use super::{Bug, Test, suite};

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "zookeeper: an old session's node is believed",
        rule: "O2",
        file: "crates/zookeeper/src/taking.rs",
        find: "Ok(stat) if stat.session == session.id && stat.created < ours.1.created => {",
        replace: "Ok(stat) if stat.created < ours.1.created => {",
        test: store("queue::a_node_of_another_session_is_not_believed"),
    },
    Bug {
        name: "zookeeper: a claim begun twice stands twice in the queue",
        rule: "C1",
        file: "crates/zookeeper/src/taking.rs",
        find: "filter(|c| c.owner.as_ref() == Some(claim.owner()) && c.name != made)",
        replace: "filter(|_| false)",
        test: store("queue::a_node_whose_creation_was_never_answered_keeps_its_place"),
    },
    Bug {
        name: "zookeeper: after the wait nobody looks again",
        rule: "W1",
        file: "crates/zookeeper/src/waiting.rs",
        find: "Ok(Ahead::Changed) => {}",
        replace: "Ok(Ahead::Changed) => return self.grant(claim, session),",
        test: store("queue::a_waiter_that_leaves_wakes_only_the_one_behind_it"),
    },
    Bug {
        name: "zookeeper: a waiter behind one that left before its turn takes it for the holder",
        rule: "W1",
        file: "crates/zookeeper/src/waiting.rs",
        find: "if !gone || !self.places.was_first(lock, &before) {",
        replace: "if !gone {",
        test: store("queue::a_waiter_that_leaves_wakes_only_the_one_behind_it"),
    },
    Bug {
        name: "zookeeper: a waiter that is called does not look for its own node",
        rule: "W1",
        file: "crates/zookeeper/src/waiting.rs",
        find: "Err(failure) if failure.is(Code::NO_NODE) => Ok(Ahead::LostPlace),",
        replace: "Err(failure) if failure.is(Code::NO_NODE) => Ok(Ahead::Nobody),",
        test: store("queue::a_waiter_whose_own_node_is_gone_does_not_believe_in_its_turn"),
    },
    Bug {
        name: "zookeeper: the deadline counts from the answer",
        rule: "T1",
        file: "crates/zookeeper/src/session.rs",
        find: "State { proven: greeted.sent, connection: 0, over: None }",
        replace: "State { proven: Sent::at(now), connection: 0, over: None }",
        test: suite("zookeeper::t1_a_deadline_counts_from_before_the_request"),
    },
    Bug {
        name: "zookeeper: a heartbeat proves itself",
        rule: "T1",
        file: "crates/zookeeper/src/heartbeat.rs",
        find: "let proven = std::mem::replace(&mut self.candidate, sent);",
        replace: "self.candidate = sent;\n        let proven = sent;",
        test: Test {
            package: "fencepost-zookeeper",
            target: &["--lib"],
            name: "heartbeat::tests::t1_a_heartbeat_proves_the_one_before",
        },
    },
    Bug {
        name: "zookeeper: the order is that of the numbers, whatever happened to them",
        rule: "W3",
        file: "crates/zookeeper/src/queue.rs",
        find: "        if numbers_tell {",
        replace: "        if numbers_tell || counted != 0 {",
        test: store("numbers::w3_the_order_outlives_31_bits_of_numbers"),
    },
    Bug {
        name: "zookeeper: a release removes whoever is first",
        rule: "O2",
        file: "crates/zookeeper/src/queue.rs",
        find: "partition(|contender| contender.owner.as_ref() == Some(owner));",
        replace: "partition(|contender| contender.owner.as_ref() == Some(owner) || !path.is_empty());",
        test: suite("zookeeper::o2_a_stale_release_changes_nothing"),
    },
    Bug {
        name: "zookeeper: the holder does not watch its own node",
        rule: "L4",
        file: "crates/zookeeper/src/sentry.rs",
        find: "if watched_on != connection && wait_until(since.after(WATCH_AFTER)) {",
        replace: "if watched_on != connection && wait_until(since.after(WATCH_AFTER * 10_000)) {",
        test: suite("zookeeper::l4_a_deletion_is_heard_without_asking"),
    },
    Bug {
        name: "zookeeper: nobody is told of a session's end",
        rule: "L1",
        file: "crates/zookeeper/src/sentry.rs",
        find: "self.report(owner, LossReason::SessionExpired);",
        replace: "",
        test: store("sessions::l1_one_session_lost_is_every_lock_on_it_lost"),
    },
    Bug {
        name: "zookeeper: a grant that nobody renews lives as long as its session",
        rule: "R2",
        file: "crates/zookeeper/src/sentry.rs",
        find: "if wait_until(told.moment().after(place.session.timeout)) {",
        replace: "if wait_until(Moment::END) {",
        test: store("sessions::c1_what_nobody_awaits_or_renews_goes"),
    },
    Bug {
        name: "zookeeper: a node without a session is waited for",
        rule: "C4",
        file: "crates/zookeeper/src/waiting.rs",
        find: "Ok(found) if !found.stat.is_ephemeral() => return Err(outlives_everybody(&before)),",
        replace: "",
        test: store("queue::c4_a_node_without_a_session_is_reported_wherever_it_stands"),
    },
];

const fn store(name: &'static str) -> Test {
    Test { package: "fencepost-zookeeper", target: &["--test", "store"], name }
}

//! What locks in PostgreSQL could get wrong, and what others have got wrong there.

use super::{Bug, Test, suite};

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "postgres: a renewal asks for the name only",
        rule: "O2",
        file: "crates/postgres/src/sql/verbs.sql",
        find: "k.name = a_names[i] AND k.owner = a_owners[i]\n        FOR NO KEY UPDATE SKIP LOCKED;",
        replace: "k.name = a_names[i]\n        FOR NO KEY UPDATE SKIP LOCKED;",
        test: suite("postgres::o2_a_stale_renewal_changes_nothing"),
    },
    Bug {
        name: "postgres: a renewal waits for a row that is locked",
        rule: "R1",
        file: "crates/postgres/src/sql/verbs.sql",
        find: "FOR NO KEY UPDATE SKIP LOCKED;",
        replace: "FOR NO KEY UPDATE;",
        test: store("rows::r1_a_row_that_somebody_else_has_locked_stops_no_other_renewal"),
    },
    Bug {
        name: "postgres: expiry is judged by now()",
        rule: "T2",
        file: "crates/postgres/src/sql/claim.sql",
        find: "IF l.owner IS NULL OR l.expires_at <= clock_timestamp() THEN",
        replace: "IF l.owner IS NULL OR l.expires_at <= now() THEN",
        test: store("rows::t2_expiry_is_judged_after_the_wait_for_the_row"),
    },
    Bug {
        name: "postgres: a busy try writes",
        rule: "W2",
        file: "crates/postgres/src/sql/claim.sql",
        find: "IF a_patience IN ('once', 'try') AND l.owner <> a_owner",
        replace: "IF false AND l.owner <> a_owner",
        test: store("rows::a_busy_try_writes_nothing"),
    },
    Bug {
        name: "postgres: a row that is deleted takes its fence with it",
        rule: "F4",
        file: "crates/postgres/src/sql/epoch.sql",
        find: "UPDATE fencepost.state SET floor = OLD.fence WHERE floor < OLD.fence;",
        replace: "",
        test: suite("postgres::f4_a_fence_never_goes_back"),
    },
    Bug {
        name: "postgres: an unreadable fence starts again",
        rule: "F4",
        file: "crates/postgres/src/sql/claim.sql",
        find: "AND k.readers = 0 AND k.fence >= 0 AND",
        replace: "AND k.readers = 0 AND",
        test: suite("postgres::f4_an_unreadable_fence_is_not_started_again"),
    },
    Bug {
        name: "postgres: a hand-over needs no confirmation",
        rule: "T1",
        file: "crates/postgres/src/sql/queue.sql",
        find: "least(c.ttl, 1000)",
        replace: "c.ttl",
        test: suite("postgres::w1_a_waiter_that_forgot_its_turn_is_passed_over"),
    },
    Bug {
        name: "postgres: a release frees another owner's lock",
        rule: "O2",
        file: "crates/postgres/src/sql/verbs.sql",
        find: "    IF l.owner = a_owner THEN\n        PERFORM fencepost.pass_on(l);",
        replace: "    IF l.owner IS NOT NULL THEN\n        PERFORM fencepost.pass_on(l);",
        test: suite("postgres::o2_a_stale_release_changes_nothing"),
    },
    Bug {
        name: "postgres: a waiter queues before anybody listens",
        rule: "W3",
        file: "crates/postgres/src/store.rs",
        find: "self.room.hearing().await.map_err(|failure| failure.error(Operation::Claim, Some(claim.name())))?;",
        replace: "",
        test: suite("postgres::w3_first_come_first_served_across_processes"),
    },
    Bug {
        name: "postgres: a promotion does not raise the epoch",
        rule: "F1",
        file: "crates/postgres/src/sql/epoch.sql",
        find: "epoch = greatest(s.epoch, (s.base + now_timeline) << 40);",
        replace: "epoch = s.epoch;",
        test: store("failover::f1_fences_rise_over_a_failover_that_lost_grants"),
    },
    Bug {
        name: "postgres: a dump that is restored elsewhere goes on counting",
        rule: "F1",
        file: "crates/postgres/src/sql/epoch.sql",
        find: "IF s.system <> now_system THEN",
        replace: "IF false THEN",
        test: store("failover::f1_fences_rise_over_a_dump_and_restore"),
    },
    Bug {
        name: "postgres: a commit that its standby did not confirm is believed",
        rule: "T1",
        file: "crates/postgres/src/session.rs",
        find: "if self.doubts.load(Relaxed) == doubts { Ok(rows) } else { Err(Failure::unconfirmed()) }",
        replace: "let _ = doubts; Ok(rows)",
        test: store("failover::t1_a_commit_that_its_standby_did_not_confirm_is_no_grant"),
    },
];

const fn store(name: &'static str) -> Test {
    Test { package: "fencepost-postgres", target: &["--test", "store"], name }
}

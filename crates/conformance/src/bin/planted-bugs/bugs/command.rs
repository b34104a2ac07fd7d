//! What the command has got wrong, or could: each ends in a command without a lock, or a lock that nobody can end.

use super::{Bug, Test, core};

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "command: it outlives its guardian and fencepost",
        rule: "L2",
        file: "crates/cli/src/guardian.rs",
        find: "    fork::end_with_this_process(&mut command);\n",
        replace: "",
        test: command("loss::kill_9_of_the_guardian_and_of_fencepost_at_once_ends_the_command"),
    },
    Bug {
        name: "command: it starts under a lease that has ended",
        rule: "L1",
        file: "crates/cli/src/guardian.rs",
        find: "if lost || !plan.may_start(BootClock.now()) {",
        replace: "if false && (lost || !plan.may_start(BootClock.now())) {",
        test: command("redis::a_lease_that_ended_meanwhile_starts_nothing"),
    },
    Bug {
        name: "command: a nested call looks at another store",
        rule: "C4",
        file: "crates/cli/src/guardian.rs",
        find: "command.env(\"FENCEPOST_STORE\", &job.store)",
        replace: "command.env_remove(\"FENCEPOST_STORE\")",
        test: command("environment::a_fencepost_inside_the_command_uses_the_same_store_and_namespace"),
    },
    Bug {
        name: "command: its environment holds the store's password",
        rule: "C2",
        file: "crates/core/src/url.rs",
        find: "Ok(url) if !url.holds_secret() => text.to_owned(),",
        replace: "Ok(_) => text.to_owned(),\n            #[cfg(any())]",
        test: core("url::tests::what_is_passed_on_is_the_same_store_or_none_and_never_a_secret"),
    },
    Bug {
        name: "command: a grant that nobody was told of stays held",
        rule: "C1",
        file: "crates/cli/src/main.rs",
        find: "if write(text)? { Ok(()) } else { Err(Ending::internal(\"nobody reads stdout\")) }",
        replace: "write(text).map(drop)",
        test: command("scripts::a_grant_that_could_not_be_told_is_given_back"),
    },
    Bug {
        name: "command: a guardian's last words are lost",
        rule: "C2",
        file: "crates/cli/src/wire.rs",
        find: "Err(Errno::CONNRESET) => receive(),",
        replace: "Err(Errno::CONNRESET) => Err(Errno::CONNRESET),",
        test: Test {
            package: "fencepost-cli",
            target: &["--bin", "fencepost"],
            name: "wire::tests::last_words_arrive_from_who_did_not_listen_any_more",
        },
    },
    Bug {
        name: "command: the guardian holds one of several locks only",
        rule: "L2",
        file: "crates/cli/src/held.rs",
        find: "self.leases().iter().filter_map(Lease::descriptor).collect()",
        replace: "self.leases().iter().take(1).filter_map(Lease::descriptor).collect()",
        test: command("together::case_39_kill_9_lets_none_of_several_locks_go_while_the_command_runs"),
    },
    Bug {
        name: "command: several locks of which one is busy stay behind",
        rule: "C1",
        file: "crates/cli/src/run.rs",
        find: "locks.close().await;\n                Ending::busy(",
        replace: "Ending::busy(",
        test: command("redis::several_locks_of_which_one_is_busy_leave_none_behind"),
    },
    Bug {
        name: "command: a run that failed is due again on the next host",
        rule: "O2",
        file: "crates/cli/src/run.rs",
        find: "End::Code(_) | End::Stopped | End::Broken => self.run.retry_failed,",
        replace: "End::Code(_) | End::Stopped | End::Broken => true,",
        test: command("periods::a_failed_command_counts_unless_it_is_to_be_tried_again"),
    },
];

const fn command(name: &'static str) -> Test {
    Test { package: "fencepost-cli", target: &["--test", "command"], name }
}

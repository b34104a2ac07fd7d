//! What is done without a lock, or beside one, and could be done twice or lost.

use super::{Bug, Test, suite};

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "once: whoever waited for the lock does the work again",
        rule: "once",
        file: "crates/fencepost/src/once.rs",
        find: "let done = found.value.take();",
        replace: "let done = found.value.take().filter(|_| false);",
        test: suite("file::each_key_is_done_once_by_processes_of_which_some_are_killed"),
    },
    Bug {
        name: "once: the payload is not compared while the work is done",
        rule: "once",
        file: "crates/fencepost/src/once.rs",
        find: "(Some(_), theirs, Some(_)) if theirs != self.fingerprint.as_ref() => Refusal::OtherPayload,",
        replace: "",
        test: suite("memory::who_comes_meanwhile_is_told_who_is_at_it_or_waits"),
    },
    Bug {
        name: "once: work whose result is too long is done again",
        rule: "once",
        file: "crates/fencepost/src/once.rs",
        find: "match self.write(Outcome::NotKept).await {",
        replace: "match Ok::<bool, Error>(true) {",
        test: suite("memory::a_result_that_is_too_long_is_noted_and_its_work_not_repeated"),
    },
    Bug {
        name: "once: a command that was interrupted counts as run",
        rule: "once",
        file: "crates/cli/src/once.rs",
        find: "End::Code(code) if !by_our_signal && (",
        replace: "End::Code(code) if (",
        test: Test {
            package: "fencepost-cli",
            target: &["--test", "command"],
            name: "repeats::a_run_that_was_killed_or_interrupted_is_done_again",
        },
    },
];

//! What is done without a lock, or beside one, and could be done twice or lost.

use super::{Bug, Test, suite};

const fn patterns(name: &'static str) -> Test {
    Test { package: "fencepost-patterns", target: &["--test", "patterns"], name }
}

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
    Bug {
        name: "fenced: a file lets an older fence through",
        rule: "F1",
        file: "crates/patterns/src/fenced/record.rs",
        find: "            Some(seen) if seen > fence => return Err(Refused::Stale { seen }),\n",
        replace: "",
        test: patterns("fenced::f1_a_file_refuses_what_is_late_and_loses_nothing"),
    },
    Bug {
        name: "fenced: comparison and write of a file are two steps",
        rule: "F1",
        file: "crates/patterns/src/fenced/directory.rs",
        find: "    let done = work()?;\n    drop(record);\n",
        replace: "    drop(record);\n    let done = work()?;\n",
        test: patterns("fenced::f1_nobody_advances_between_the_comparison_and_the_write"),
    },
    Bug {
        name: "fenced: Redis compares fences as numbers of 53 bits",
        rule: "F1",
        file: "crates/patterns/src/scripts/fenced_call.lua",
        find: "    if #a ~= #b then return #a < #b end\n    return a < b\n",
        replace: "    return tonumber(a) < tonumber(b)\n",
        test: patterns("fenced::f1_a_redis_key_refuses_what_is_late_and_loses_nothing"),
    },
    Bug {
        name: "fenced: an object is read before its fence is advanced",
        rule: "F1",
        file: "crates/patterns/src/fenced/objects.rs",
        find: "Some(seen) if seen == fence && body.is_none() => return Ok(before),",
        replace: "_ if body.is_none() => return Ok(before),",
        test: patterns("fenced::f1_an_object_refuses_what_is_late_and_loses_nothing"),
    },
    Bug {
        name: "fenced: the layer lets a resource go before the request is handled",
        rule: "F1",
        file: "crates/patterns/src/fenced/http.rs",
        find: "            let answer = inner.call(Request::from_parts(head, body)).await;\n            drop(admitted);",
        replace: "            drop(admitted);\n            let answer = inner.call(Request::from_parts(head, body)).await;",
        test: patterns("fenced_http::f1_no_newer_token_is_seen_while_a_request_is_at_work"),
    },
];

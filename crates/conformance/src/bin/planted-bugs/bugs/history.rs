//! What the checker of histories could overlook. What it overlooks, every scenario of the laboratory would.

use super::{Bug, Test};

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "the checker lets a store grant before an earlier grant ends",
        rule: "O1",
        file: "crates/history/src/check/overlaps.rs",
        find: "before.add(place, hold, |new, old| end(&holds[new]) > end(&holds[old]));",
        replace: "before.add(place, hold, |_, _| true);",
        test: check("brute_force::the_sweeps_find_what_the_definitions_say"),
    },
    Bug {
        name: "the checker counts a lease from its answer",
        rule: "T1",
        file: "crates/history/src/holds.rs",
        find: "let promised = later(reply.from, reply.ttl);\n        self.holds.push(Hold {",
        replace: "let promised = later(reply.at, reply.ttl);\n        self.holds.push(Hold {",
        test: check("brute_force::the_sweeps_find_what_the_definitions_say"),
    },
    Bug {
        name: "the checker bears an early expiry as an early release",
        rule: "T1",
        file: "crates/history/src/holds.rs",
        find: "self.sure_until.min(self.promised_until.saturating_sub(tolerance))",
        replace: "self.sure_until.saturating_sub(tolerance)",
        test: check("examples::a_grant_just_before_the_release_is_a_double_grant_whatever_the_tolerance"),
    },
    Bug {
        name: "the checker compares fences with the last grant alone",
        rule: "F1",
        file: "crates/history/src/check/fences.rs",
        find: "if holds[before].fence > highest.and_then(|highest| holds[highest].fence) {",
        replace: "if true {",
        test: check("brute_force::the_sweeps_find_what_the_definitions_say"),
    },
    Bug {
        name: "for the checker a refused operation was at the resource",
        rule: "F1",
        file: "crates/history/src/check/stale.rs",
        find: "            false => (Kind::RightfulRefused, newest),",
        replace: "            false => {\n                been.insert(at_resource, place);\n                (Kind::RightfulRefused, newest)\n            }",
        test: check("brute_force::the_sweeps_find_what_the_definitions_say"),
    },
    Bug {
        name: "the checker takes a write on an old version for good",
        rule: "F1",
        file: "crates/history/src/check/effects.rs",
        find: "seen.version.filter(|(newest, _)| *newest != basis)",
        replace: "seen.version.filter(|(newest, _)| *newest < basis)",
        test: check("mutations::a_good_history_is_clean_and_each_mutation_is_flagged"),
    },
];

const fn check(name: &'static str) -> Test {
    Test { package: "fencepost-history", target: &["--test", "check"], name }
}

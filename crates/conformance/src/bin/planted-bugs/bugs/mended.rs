//! Faults that Fencepost itself has had, each found by reading or by an accident and mended since.

use super::{Bug, Test};

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "a clean-up gives up with the TTL, before the place in the queue has gone",
        rule: "C1",
        file: "crates/fencepost/src/cleaner.rs",
        find: "let patience = claim.ttl.get().max(PLACES_LAST);",
        replace: "let _ = PLACES_LAST;\n        let patience = claim.ttl.get();",
        test: Test {
            package: "fencepost",
            target: &["--test", "client"],
            name: "cleaning::c1_a_place_in_the_queue_is_given_back_although_the_store_was_away_for_longer_than_the_ttl",
        },
    },
    Bug {
        name: "redis: a long foreign value is searched in quadratic time",
        rule: "C4",
        file: "crates/redis/src/scripts/record.lua",
        find: "value:sub(1, 82):find(SHAPE) ~= nil",
        replace: "value:find('^1[-q]%x+%d+{') ~= nil",
        test: redis("faults::c4_a_long_foreign_value_that_looks_like_ours_is_refused_without_holding_the_server_up"),
    },
    Bug {
        name: "redis: who queued before messages were forbidden waits for one",
        rule: "W1",
        file: "crates/redis/src/room/ears.rs",
        find: "room.ring_all(News::AskAgain);\n                poll(&room).await;",
        replace: "poll(&room).await;",
        test: redis("rights::w1_waiters_who_queued_before_messages_were_forbidden_get_their_turn"),
    },
];

/// A test of the Redis store's own.
const fn redis(name: &'static str) -> Test {
    Test { package: "fencepost-redis", target: &["--test", "store"], name }
}

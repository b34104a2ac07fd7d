//! What a store could get wrong that lets several hold beside each other: Redis's scripts.

use super::{Bug, suite};

const HOLDERS: &str = "crates/redis/src/scripts/holders.lua";
const CLAIM: &str = "crates/redis/src/scripts/claim.lua";

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "redis: a reader comes in beside a writer that waits",
        rule: "beside W3",
        file: CLAIM,
        find: "if not blocked and fits(want, lock) then",
        replace: "if fits(want, lock) then",
        test: suite("redis::w3_later_readers_do_not_pass_a_writer_that_waits"),
    },
    Bug {
        name: "redis: a dead reader stays",
        rule: "beside W1",
        file: HOLDERS,
        find: "  if lock.left <= 0 then expel_lapsed(lock) end",
        replace: "",
        test: suite("redis::w1_a_dead_reader_goes"),
    },
    Bug {
        name: "redis: one permit too many",
        rule: "beside permits",
        file: HOLDERS,
        find: "lock.taken + want.count <= lock.limit",
        replace: "lock.taken < lock.limit",
        test: suite("redis::the_count_never_exceeds_the_limit"),
    },
    Bug {
        name: "redis: a slot is given out twice",
        rule: "beside permits",
        file: HOLDERS,
        find: "local at = taken:find('0', from, true) or #taken + 1",
        replace: "local at = from",
        test: suite("redis::permits_go_as_in_the_model"),
    },
    Bug {
        name: "redis: a semaphore and a lock share a name",
        rule: "beside kinds",
        file: HOLDERS,
        find: "  if used and used ~= (want.kind == 'p' and want.of or 0) then return used end",
        replace: "",
        test: suite("redis::a_name_is_a_lock_or_a_semaphore"),
    },
    Bug {
        name: "redis: permits of a dead holder do not come back",
        rule: "beside W1",
        file: HOLDERS,
        find: "    taken = taken:sub(1, slot) .. '0' .. taken:sub(slot + 2)\n    lock.taken = lock.taken - 1",
        replace: "    taken = taken:sub(1, slot) .. '0' .. taken:sub(slot + 2)",
        test: suite("redis::w1_a_dead_holders_permit_comes_back"),
    },
    Bug {
        name: "redis: one for whom there is no room is passed",
        rule: "beside W3",
        file: HOLDERS,
        find: "        return nil, true",
        replace: "        skipped = skipped + 1",
        test: suite("redis::w3_one_that_waits_for_two_is_not_passed"),
    },
    Bug {
        name: "redis: a downgrade lets nobody in",
        rule: "beside W2",
        file: "crates/redis/src/scripts/downgrade.lua",
        find: "serve((admit(nil, owner, want_of('r'), ttl, ttl, lock.since, lock.json)))",
        replace: "admit(nil, owner, want_of('r'), ttl, ttl, lock.since, lock.json)",
        test: suite("redis::a_writer_becomes_a_reader_without_a_gap"),
    },
    Bug {
        name: "redis: several locks are taken although one is held",
        rule: "beside several",
        file: "crates/redis/src/scripts/claim_several.lua",
        find: "    if blocked or not fits(want, lock) then",
        replace: "    if false then",
        test: suite("redis::all_or_nothing"),
    },
    Bug {
        name: "redis: a reader's renewal does not move its end",
        rule: "beside R1",
        file: "crates/redis/src/scripts/renew.lua",
        find: "redis.call('HSET', key, owner, ending(record, now + ttl))",
        replace: "redis.call('HSET', key, owner, record)",
        test: suite("redis::a_downgraded_lease_is_renewed_and_given_back"),
    },
];

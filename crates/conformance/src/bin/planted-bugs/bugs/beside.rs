//! What a store could get wrong that lets several hold beside each other: Redis's scripts, and the seats of a directory.

use super::{Bug, Test, suite};

const HOLDERS: &str = "crates/redis/src/scripts/holders.lua";
const CLAIM: &str = "crates/redis/src/scripts/claim.lua";
const SEATS: &str = "crates/local/src/beside.rs";

const fn local(name: &'static str) -> Test {
    Test { package: "fencepost-local", target: &["--test", "store"], name }
}

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
        test: suite("redis::the_count_never_exceeds_the_limit"),
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
        name: "redis: a downgrade passes the lock on in between",
        rule: "beside downgrade",
        file: "crates/redis/src/scripts/downgrade.lua",
        find: "serve((admit(nil, owner",
        replace: "pass_on(nil)\nserve((admit(nil, owner",
        test: suite("redis::readers_and_writers_go_as_in_the_model"),
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
    Bug {
        name: "directory: a writer does not look at the seats",
        rule: "beside kinds",
        file: "crates/local/src/lockfile.rs",
        find: "if last.seats != Seats::None\n                    && let Some(holder)",
        replace: "if false\n                    && let Some(holder)",
        test: suite("file::never_both_and_writers_get_their_turn"),
    },
    Bug {
        name: "directory: a reader advances the fence",
        rule: "beside F3",
        file: "crates/local/src/lockfile.rs",
        find: "if taker.seats != Seats::Readers || last.boot != directory.boot {",
        replace: "if true {",
        test: suite("file::f3_readers_never_advance_a_fence"),
    },
    Bug {
        name: "directory: readers pass those who wait",
        rule: "beside W3",
        file: SEATS,
        find: "comes == Comes::New && lock.look",
        replace: "false && lock.look",
        test: suite("file::w3_later_readers_do_not_pass_a_writer_that_waits"),
    },
    Bug {
        name: "directory: seats are taken without a turn",
        rule: "beside permits",
        file: "crates/local/src/seats.rs",
        find: "                Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(Problem::Again(Again::GateTaken(path))),",
        replace: "                Err(Errno::WOULDBLOCK | Errno::INTR) => {}",
        test: suite("file::the_count_never_exceeds_the_limit"),
    },
    Bug {
        name: "directory: one permit too many",
        rule: "beside permits",
        file: SEATS,
        find: "if taken.len() + count as usize > limit as usize {",
        replace: "if taken.len() >= limit as usize {",
        test: suite("file::the_count_never_exceeds_the_limit"),
    },
    Bug {
        name: "directory: a differing limit is let pass",
        rule: "beside permits",
        file: SEATS,
        find: "(Mode::Permits { of, .. }, Some(Use::Semaphore { of: limit })) if of != *limit => {",
        replace: "(Mode::Permits { of, .. }, Some(Use::Semaphore { of: limit })) if of > *limit + 1000 => {",
        test: suite("file::a_differing_limit_is_refused"),
    },
    Bug {
        name: "directory: a lock and a semaphore share a name",
        rule: "beside kinds",
        file: SEATS,
        find: "            return Err(Problem::Refused(Refusal::LockInUse));\n        }\n        Ok(Busy",
        replace: "        }\n        Ok(Busy",
        test: suite("file::a_name_is_a_lock_or_a_semaphore"),
    },
    Bug {
        name: "directory: a downgrade lets the lock go first",
        rule: "beside downgrade",
        file: SEATS,
        find: "        let at = lock.identity(&place.file)?;\n        let since = ",
        replace: "        lock.unlock();\n        std::thread::sleep(std::time::Duration::from_millis(30));\n        \
                  let at = lock.identity(&place.file)?;\n        let since = ",
        test: local("beside::nobody_comes_between_a_writer_and_the_reader_that_it_becomes"),
    },
    Bug {
        name: "directory: nobody watches the seats",
        rule: "beside L4",
        file: "crates/local/src/loss.rs",
        find: "        if let Some(watch) = watch {\n            state.seat_watches",
        replace: "        if let Some(watch) = watch.filter(|_| false) {\n            state.seat_watches",
        test: local("beside::l4_whoever_loses_its_seat_is_told_at_once"),
    },
    Bug {
        name: "directory: a seat counts after its lock's file was removed",
        rule: "beside L1",
        file: "crates/local/src/seats.rs",
        find: "            Look::Sits(sitting) if sitting.of_file == (at.inode, at.born) => {\n                if",
        replace: "            Look::Sits(sitting) => {\n                if",
        test: local("beside::who_still_sits_at_a_removed_file_is_in_nobodys_way"),
    },
];

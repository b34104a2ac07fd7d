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
        find: "room.ring_all(News::AskAgain);\n                poll(room).await;",
        replace: "poll(room).await;",
        test: redis("rights::w1_waiters_who_queued_before_messages_were_forbidden_get_their_turn"),
    },
    Bug {
        name: "file: a refused break leaves its announcement in the file",
        rule: "O2",
        file: "crates/local/src/lockfile.rs",
        find: "if !matches!(taken, Ok(true)) {",
        replace: "if false {",
        test: local(&["--lib"], "lockfile::tests::a_refused_break_leaves_no_mark"),
    },
    Bug {
        name: "file: a copy in a file of the same number counts on",
        rule: "F4",
        file: "crates/local/src/lockfile.rs",
        find: "if self.identity(path)? == identity {",
        replace: "if self.identity(path)?.inode == identity.inode {",
        test: local(&["--lib"], "lockfile::tests::f4_a_copy_in_a_file_of_the_same_number_is_told_by_its_birth"),
    },
    Bug {
        name: "file: a remover removes whatever file is there now",
        rule: "O2",
        file: "crates/local/src/lockfile.rs",
        find: "if inode_at(&place.file)? != Some(inode) {",
        replace: "if false && inode_at(&place.file)? != Some(inode) {",
        test: local(&["--lib"], "lockfile::tests::two_removers_at_once_take_the_lock_from_one_holder_only"),
    },
    Bug {
        name: "file: a ceiling is believed before it is on the disk",
        rule: "F1",
        file: "crates/local/src/floor.rs",
        find: "if end > next.ceiling {\n            return Err(Problem::Again(Again::CeilingReached));",
        replace: "if end > next.ceiling && end > self.counters()?.slots.into_iter().flatten().fold(0, u64::max) {\n            \
                  return Err(Problem::Again(Again::CeilingReached));",
        test: local(
            &["--lib"],
            "floor::tests::f4_a_ceiling_whose_writer_was_killed_before_it_was_on_the_disk_is_not_believed",
        ),
    },
    Bug {
        name: "file: both copies of the ceiling are written at once",
        rule: "F4",
        file: "crates/local/src/floor.rs",
        find: "        self.write(&slot_bytes(ceiling), at)?;\n",
        replace: "        for at in SLOTS {\n            self.write(&slot_bytes(ceiling), at)?;\n        }\n",
        test: local(&["--lib"], "floor::tests::f4_a_machine_that_fails_in_each_raising_never_takes_a_range_back"),
    },
    Bug {
        name: "file: who waits behind another trusts the event",
        rule: "W1",
        file: "crates/local/src/turn.rs",
        find: "clock::sleep(&BootClock, BACKSTOP_BEHIND)",
        replace: "clock::sleep(&BootClock, 100 * BACKSTOP_BEHIND)",
        test: local(STORE, "waiting::w1_a_waiter_behind_another_finds_out_although_no_event_tells_it"),
    },
    Bug {
        name: "file: a holder that cannot be told by an event is not told",
        rule: "L4",
        file: "crates/local/src/loss.rs",
        find: "due.look_now_and_then().await;",
        replace: "let _ = due.look_now_and_then();",
        test: local(STORE, "surroundings::l4_w1_holders_are_told_and_waiters_woken_where_there_are_no_file_events"),
    },
    Bug {
        name: "file: a dead waiter's ticket that must not be removed is an error",
        rule: "W1",
        file: "crates/local/src/queue.rs",
        find: "Ok(()) | Err(Errno::NOENT | Errno::PERM | Errno::ACCESS) => {}",
        replace: "Ok(()) | Err(Errno::NOENT) => {}",
        test: local(STORE, "users::w1_a_dead_waiter_of_another_user_blocks_nobody"),
    },
    Bug {
        name: "file: a file that lay open is trusted to be in its place",
        rule: "O2",
        file: "crates/local/src/lockfile.rs",
        find: "if let Some(identity) = self.identity.get() {\n            let seen",
        replace: "if let Some(identity) = self.identity.get().filter(|_| false) {\n            let seen",
        test: local(STORE, "idle::a_file_that_was_moved_while_it_lay_open_is_nobodys_lock"),
    },
    Bug {
        name: "file: a release keeps the file open that somebody waits for",
        rule: "W1",
        file: "crates/local/src/release.rs",
        find: "if !shared_out && !seen.may_have_waiters() {",
        replace: "if !shared_out {",
        test: local(STORE, "idle::w1_no_waiter_is_missed_by_a_release_that_keeps_its_file_open"),
    },
];

const STORE: &[&str] = &["--test", "store"];

/// A test of the directory store's own.
const fn local(target: &'static [&'static str], name: &'static str) -> Test {
    Test { package: "fencepost-local", target, name }
}

/// A test of the Redis store's own.
const fn redis(name: &'static str) -> Test {
    Test { package: "fencepost-redis", target: STORE, name }
}

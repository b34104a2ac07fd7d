//! The bugs: each is one that a lock library has had, or that the rules were written against.

/// A bug, and the test that must find it.
pub(crate) struct Bug {
    pub(crate) name: &'static str,
    pub(crate) rule: &'static str,
    pub(crate) file: &'static str,
    /// Stands exactly once in the file.
    pub(crate) find: &'static str,
    pub(crate) replace: &'static str,
    pub(crate) test: Test,
}

/// One test, as `cargo test` finds it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: &'static str,
    pub(crate) target: &'static [&'static str],
    pub(crate) name: &'static str,
}

const fn suite(name: &'static str) -> Test {
    Test { package: "fencepost-conformance", target: &["--test", "suite"], name }
}

const fn core(name: &'static str) -> Test {
    Test { package: "fencepost-core", target: &["--lib"], name }
}

pub(crate) const BUGS: &[Bug] = &[
    // The lease machine and the clock.
    Bug {
        name: "a reply after its own deadline is believed",
        rule: "T1",
        file: "crates/core/src/machine.rs",
        find: "if machine.deadline.is_some_and(|deadline| now >= deadline) {",
        replace: "if false {",
        test: core("machine::tests::t1_a_late_reply_is_not_a_grant"),
    },
    Bug {
        name: "the drift allowance is forgotten",
        rule: "T1",
        file: "crates/core/src/machine.rs",
        find: "ttl.saturating_sub(drift_allowance(ttl))",
        replace: "ttl",
        test: core("machine::tests::t1_belief_lies_inside_the_stores_lease"),
    },
    Bug {
        name: "a renewal is sent after the loss",
        rule: "L3",
        file: "crates/core/src/machine.rs",
        find: "            return Action::Nothing; // L3",
        replace: "            // L3",
        test: core("machine::tests::l3_nothing_is_renewed_after_a_loss_and_the_loss_is_told_once"),
    },
    Bug {
        name: "the clock stands still while the machine sleeps",
        rule: "T2",
        file: "crates/core/src/clock.rs",
        find: "rustix::time::ClockId::Boottime",
        replace: "rustix::time::ClockId::Monotonic",
        test: Test {
            package: "fencepost-core",
            target: &["--test", "boot_clock"],
            name: "t2_the_clock_and_its_timers_count_time_asleep",
        },
    },
    Bug {
        name: "a fraction of a millisecond of the TTL is cut off",
        rule: "T3",
        file: "crates/core/src/limits.rs",
        find: "ttl.as_nanos().div_ceil(1_000_000)",
        replace: "ttl.as_nanos() / 1_000_000",
        test: core("limits::tests::t3_a_ttl_is_never_zero_and_never_truncated"),
    },
    Bug {
        name: "an answer of unknown outcome moves the deadline",
        rule: "T1",
        file: "crates/core/src/machine.rs",
        find: "None => self.retry_soon(now, jitter),",
        replace: "None => self.extend(Sent::at(now), self.granted_ttl.unwrap_or_default(), jitter),",
        test: suite("redis::t1_an_unknown_answer_never_moves_the_deadline"),
    },
    // The client.
    Bug {
        name: "a guard that was dropped is renewed for ever",
        rule: "R2",
        file: "crates/fencepost/src/lease.rs",
        find: "impl<P> Drop for Lease<P> {\n    fn drop(&mut self) {\n        if self.giving_back != GivingBack::Done {",
        replace: "impl<P> Drop for Lease<P> {\n    fn drop(&mut self) {\n        if false {",
        test: suite("memory::r2_a_dropped_guard_is_freed"),
    },
    Bug {
        name: "a cancelled waiter stays in the queue",
        rule: "C1",
        file: "crates/fencepost/src/request.rs",
        find: "if let Some(trace) = self.note(|progress| progress.trace) {",
        replace: "if let Some(trace) = self.note(|progress| progress.trace).filter(|_| false) {",
        test: suite("memory::c1_a_cancelled_waiter_leaves_the_queue"),
    },
    Bug {
        name: "a store that is down is called busy",
        rule: "C2",
        file: "crates/fencepost/src/request.rs",
        find: "Some(Err(error)) => Err(error),",
        replace: "Some(Err(_)) => Ok(Attempt::Busy(Busy::default())),",
        test: suite("redis::c2_unavailable_is_never_busy"),
    },
    // The memory store.
    Bug {
        name: "memory: a release takes the lock from whoever holds it",
        rule: "O2",
        file: "crates/core/src/memory/ledger.rs",
        find: "if self.holds.contains_key(&holding.owner) {\n            self.drop_hold(now, &holding.owner);",
        replace: "if self.holders_of(holding.name()).next().is_some() {\n            self.evict(now, holding.name());",
        test: suite("memory::o2_a_stale_release_changes_nothing"),
    },
    Bug {
        name: "memory: a hand-over needs no confirmation",
        rule: "T1",
        file: "crates/core/src/memory/ledger.rs",
        find: "self.grant(queued.party, now.after(CONFIRM_WITHIN));",
        replace: "self.grant(queued.party, now.after(CONFIRM_WITHIN * 1000));",
        test: suite("memory::w1_a_waiter_that_forgot_its_turn_is_passed_over"),
    },
    // The directory store.
    Bug {
        name: "file: the fence is not raised",
        rule: "F1",
        file: "crates/local/src/lockfile.rs",
        find: "Some(fence) => (fence, last.range_end),",
        replace: "Some(_) => (last.fence, last.range_end),",
        test: suite("file::f1_fences_rise_and_stay_for_the_lease"),
    },
    Bug {
        name: "file: an unreadable counter starts again",
        rule: "F4",
        file: "crates/local/src/record.rs",
        find: "let last = last.ok_or_else(|| corrupt(path, \"has a counter whose checksum is wrong, or is cut short\"))?;",
        replace: "let Some(last) = last else { return Ok(Content::New) };",
        test: suite("file::f4_an_unreadable_fence_is_not_started_again"),
    },
    Bug {
        name: "file: the fence goes back after a break",
        rule: "F4",
        file: "crates/local/src/floor.rs",
        find: "next_range(&bytes[NEXT as usize..][..NEXT_BYTES], &self.floor.boot).unwrap_or(ceiling)",
        replace: "0",
        test: suite("file::f4_a_fence_never_goes_back"),
    },
    Bug {
        name: "file: a release says it gave back what had been taken away",
        rule: "O2",
        file: "crates/local/src/store.rs",
        find: "let still_ours = !held.lost && held.lock.is_in_place(&held.file)?;",
        replace: "let still_ours = true;",
        test: suite("file::o2_a_stale_release_changes_nothing"),
    },
    Bug {
        name: "file: a release frees the lock of another owner",
        rule: "O2",
        file: "crates/local/src/store.rs",
        find: "            && lock.recorded(&place.file)?.as_ref().is_some_and(ours)\n            \
               && lock.take_away(&self.directory, &place, |holder| holder.is_some_and(ours))?",
        replace: "            && lock.take_away(&self.directory, &place, |_| true)?",
        test: suite("file::o3_a_release_says_what_it_found"),
    },
    // Redis.
    Bug {
        name: "redis: the deadline counts from the reply",
        rule: "T1",
        file: "crates/redis/src/store.rs",
        find: "return Ok(Claimed::Granted(self.granted(claim, counted_from)));",
        replace: "let _ = counted_from;\n            \
                  return Ok(Claimed::Granted(self.granted(claim, Sent::now(&*self.clock))));",
        test: suite("redis::t1_a_deadline_counts_from_before_the_request"),
    },
    Bug {
        name: "redis: the TTL is cut to whole seconds",
        rule: "T3",
        file: "crates/redis/src/store.rs",
        find: ".arg(\"PX\").arg(claim.ttl.millis())",
        replace: ".arg(\"PX\").arg(claim.ttl.get().as_secs() * 1000)",
        test: suite("redis::t3_a_ttl_is_neither_zero_nor_truncated"),
    },
    Bug {
        name: "redis: a release deletes whatever is there",
        rule: "O2",
        file: "crates/redis/src/scripts/release_unqueued.lua",
        find: "string.find(value, ARGV[1], 1, true) == 1",
        replace: "value:sub(1, 2) == '1-'",
        test: suite("redis::o2_a_stale_release_changes_nothing"),
    },
    Bug {
        name: "redis: a release passes on another owner's lock",
        rule: "O2",
        file: "crates/redis/src/scripts/release.lua",
        find: "if lock and lock.owner == owner then",
        replace: "if lock and lock.held then",
        test: suite("redis::o3_a_release_says_what_it_found"),
    },
    Bug {
        name: "redis: a renewal creates",
        rule: "O2",
        file: "crates/redis/src/scripts/renew.lua",
        find: "if not value then return 'deleted' end",
        replace: "if not value then redis.call('SET', key, 'x', 'PX', ttl) return 'renewed' end",
        test: suite("redis::o2_a_renewal_never_creates"),
    },
    Bug {
        name: "redis: a hand-over needs no confirmation",
        rule: "T1",
        file: "crates/redis/src/scripts/queue.lua",
        find: "math.min(PROVISIONAL_MS, waiter.ttl)",
        replace: "waiter.ttl",
        test: suite("redis::w1_a_waiter_that_forgot_its_turn_is_passed_over"),
    },
    Bug {
        name: "redis: a waiter queues before anybody listens",
        rule: "W1",
        file: "crates/redis/src/store.rs",
        find: "self.room.hearing().await.map_err(|f| f.error(Operation::Claim, Some(claim.name())))?",
        replace: "Hearing::Messages",
        test: suite("redis::w1_a_release_before_the_wait_is_not_missed"),
    },
];

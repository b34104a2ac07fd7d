//! What the store over an etcd cluster could get wrong.

use super::{Bug, Test, suite};

const fn store(name: &'static str) -> Test {
    Test { package: "fencepost-etcd", target: &["--test", "store"], name }
}

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "etcd: a deadline counts from the receipt of the answer",
        rule: "T1",
        file: "crates/etcd/src/session.rs",
        find: "state: Mutex::new(State { answered: sent,",
        replace: "state: Mutex::new(State { answered: Sent::now(&*self.clock),",
        test: suite("etcd::t1_a_deadline_counts_from_before_the_request"),
    },
    Bug {
        name: "etcd: the revision of the answer is the fence",
        rule: "F1",
        file: "crates/etcd/src/queue.rs",
        find: "self.ledger.is_first(name, created);\n                Ok(Standing::First { own, seen })",
        replace: "Ok(Standing::First { own: KeyValue { create_revision: seen, ..own }, seen })",
        test: suite("etcd::f2_the_fence_comes_with_the_grant"),
    },
    Bug {
        name: "etcd: a release removes whatever claim is the first",
        rule: "O2",
        file: "crates/etcd/src/store.rs",
        find: "Some(leaving) => self.queue.sessions.delete(&leaving).await.map_err(failed)?,",
        replace: "Some(_) => match self.queue.first(name).await.map_err(failed)? {
                Some(first) => self.queue.remove(&first).await.map_err(failed)?,
                None => false,
            },",
        test: suite("etcd::o2_a_stale_release_changes_nothing"),
    },
    Bug {
        name: "etcd: a holder does not watch its own key",
        rule: "L4",
        file: "crates/etcd/src/ears.rs",
        find: "self.watch(id, Watch { key, from: seen + 1, listener: Listener::Holder(owner), number: None });",
        replace: "let _ = (key, seen);",
        test: suite("etcd::l4_a_deletion_is_heard_without_asking"),
    },
    Bug {
        name: "etcd: a renewal believes the keep-alive and does not look for the key",
        rule: "O2",
        file: "crates/etcd/src/renewal.rs",
        find: "let Some(key) = key else { return Ok(Renewal::Lost(queue.who_has_it_now(claim.name()).await?)) };",
        replace: "let lease = session.id;
    let key = key.unwrap_or(KeyValue { lease, ..Default::default() });",
        test: suite("etcd::o2_a_stale_renewal_changes_nothing"),
    },
    Bug {
        name: "etcd: a grant that nobody renews lives as long as its session",
        rule: "T3",
        file: "crates/etcd/src/ledger.rs",
        find: "Stage::Held { until, .. } => until.after(limits.not_renewed),",
        replace: "Stage::Held { .. } => continue,",
        test: suite("etcd::t3_a_ttl_is_neither_zero_nor_truncated"),
    },
    Bug {
        name: "etcd: a waiter that is called and does not come blocks the queue",
        rule: "W1",
        file: "crates/etcd/src/ledger.rs",
        find: "Stage::Wanted { unattended: Some(since) } => since.after(limits.unattended),",
        replace: "Stage::Wanted { unattended: Some(_) } => continue,",
        test: suite("etcd::w1_a_waiter_that_forgot_its_turn_is_passed_over"),
    },
    Bug {
        name: "etcd: a grant that was handed over counts from an older keep-alive",
        rule: "T1",
        file: "crates/etcd/src/store.rs",
        find: "        let (counted_from, ttl) = session.granted();\n        // An old",
        replace: "        let (counted_from, ttl) = session.granted();\n        let counted_from = fencepost_core::clock::Sent::at(fencepost_core::clock::Moment::from_nanos(\n            counted_from.moment().as_nanos().saturating_sub(2_000_000_000),\n        ));\n        // An old",
        test: suite("etcd::t1_a_handed_over_grant_counts_from_its_confirmation"),
    },
    Bug {
        name: "etcd: a waiter that is called does not look for its own claim",
        rule: "W1",
        file: "crates/etcd/src/queue.rs",
        find: "(None, _) => Ok(Standing::Gone),",
        replace: "(None, _) => {
                let lease = self.ledger.session(owner).map_or(0, |session| session.id);
                let own = KeyValue { key: key.to_vec(), create_revision: created, lease, ..Default::default() };
                Ok(Standing::First { own, seen })
            }",
        test: store("queue::w1_a_waiter_whose_own_claim_is_gone_does_not_believe_in_its_turn"),
    },
    Bug {
        name: "etcd: a claim on another session's lease is believed",
        rule: "O2",
        file: "crates/etcd/src/store.rs",
        find: "if own.lease != session.id || !self",
        replace: "if !self",
        test: store("queue::w1_a_claim_on_another_lease_is_not_believed"),
    },
    Bug {
        name: "etcd: a claim of unknown outcome is given back without raising the barrier",
        rule: "C1",
        file: "crates/etcd/src/session.rs",
        find: "if leaving.unclear && !session.is_lost() {",
        replace: "if false {",
        test: store("faults::a_claim_that_is_carried_out_late_has_no_effect"),
    },
    Bug {
        name: "etcd: a key whose removal may come late is used again",
        rule: "C1",
        file: "crates/etcd/src/ledger.rs",
        find: "if entry.unclear || entry.unclear_removal {",
        replace: "if entry.unclear {",
        test: store("faults::c1_a_removal_that_is_carried_out_late_takes_no_later_claim"),
    },
    Bug {
        name: "etcd: a waiter behind one that left before its turn takes it for the holder",
        rule: "W1",
        file: "crates/etcd/src/ledger.rs",
        find: "self.lock().seats.first(name) == created",
        replace: "self.lock().seats.first(name) <= created",
        test: store("queue::w1_a_waiter_that_leaves_before_its_turn_hands_nothing_over"),
    },
    Bug {
        name: "etcd: a stray key below a lock's prefix blocks it",
        rule: "C3",
        file: "crates/etcd/src/queue.rs",
        find: "all.kvs.into_iter().filter(|kv| self.keys.is_claim(&prefix, &kv.key)) {",
        replace: "all.kvs {",
        test: store("queue::strays_neither_block_nor_count"),
    },
    Bug {
        name: "etcd: a write to a holder's key is not noticed",
        rule: "L4",
        file: "crates/etcd/src/ears.rs",
        find: "if !ours {",
        replace: "if false {",
        test: store("holding::l4_a_holder_hears_of_a_write_to_its_key"),
    },
    Bug {
        name: "etcd: a holder whose watch was compacted away is told nothing",
        rule: "L4",
        file: "crates/etcd/src/ears.rs",
        find: "Listener::Holder(_) => self.read_soon(id),",
        replace: "Listener::Holder(_) => {}",
        test: store("holding::l4_a_deletion_is_heard_after_a_broken_stream_and_a_compaction"),
    },
    Bug {
        name: "etcd: a release that is never confirmed leaves the lock held for as long as the client lives",
        rule: "O3",
        file: "crates/etcd/src/sweep.rs",
        find: "        sessions.lose(&leaving.session);\n        sessions.revoke(&leaving.session).await;",
        replace: "",
        test: store("holding::a_release_that_is_never_confirmed_ends_the_session_and_tells_all_its_holders"),
    },
];

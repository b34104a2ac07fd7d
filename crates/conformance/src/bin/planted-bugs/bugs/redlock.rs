//! What a lock by majority of Redis servers could get wrong.

use super::{Bug, Test, core, suite};

const fn store(name: &'static str) -> Test {
    Test { package: "fencepost-redis", target: &["--test", "store"], name }
}

const fn sim(name: &'static str) -> Test {
    Test { package: "fencepost-sim", target: &["--test", "majority"], name }
}

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "redlock: half of the servers are a quorum",
        rule: "O2",
        file: "crates/core/src/quorum.rs",
        find: "self.nodes / 2 + 1",
        replace: "self.nodes.div_ceil(2)",
        test: core("quorum::tests::any_two_quorums_share_a_store"),
    },
    Bug {
        name: "redlock: a quorum is one server too small",
        rule: "O2",
        file: "crates/core/src/quorum.rs",
        find: "self.nodes / 2 + 1",
        replace: "self.nodes / 2",
        test: sim("within_the_assumptions_no_two_believe_and_no_write_is_late"),
    },
    Bug {
        name: "redlock: a round forgets the drift",
        rule: "T1",
        file: "crates/core/src/quorum/round.rs",
        find: "elapsed + self.quorum.drift.allowance(ttl) < ttl",
        replace: "elapsed < ttl",
        test: core("quorum::tests::t1_a_quorum_after_the_grant_is_over_is_no_grant"),
    },
    Bug {
        name: "redlock: silence counts as yes",
        rule: "C2",
        file: "crates/core/src/quorum/round.rs",
        find: "self.votes.iter().filter(|vote| matches!(vote, Some(Vote::For { .. }))).count()",
        replace: "self.votes.iter().filter(|vote| matches!(vote, Some(Vote::For { .. } | Vote::Unknown))).count()",
        test: core("quorum::tests::silence_is_neither_yes_nor_no"),
    },
    Bug {
        name: "redlock: a late yes to a lost round is kept",
        rule: "C1",
        file: "crates/core/src/quorum/round.rs",
        find: "Some(Verdict::Lost(_)) if vote != Vote::Against => return Action::GiveBack,",
        replace: "Some(Verdict::Lost(_)) if false => return Action::GiveBack,",
        test: core("quorum::tests::a_round_is_settled_as_soon_as_a_quorum_is_impossible"),
    },
    Bug {
        name: "redlock: a deadline counts from the quorum's answer",
        rule: "T1",
        file: "crates/redis/src/redlock/taking.rs",
        find: "Verdict::Won { ttl } => Ok(Claimed::Granted(self.granted(claim, round, sent, ttl))),",
        replace: "Verdict::Won { ttl } => Ok(Claimed::Granted(self.granted(claim, round, Sent::now(&*self.clock), ttl))),",
        test: suite("redlock::t1_a_deadline_counts_from_before_the_request"),
    },
    Bug {
        name: "redlock: a lost round is given back once, and a slow server keeps it",
        rule: "C1",
        file: "crates/redis/src/redlock/taking.rs",
        find: "if !confirmed || *trace == Trace::Unclear {",
        replace: "if false {",
        test: store("redlock::c1_a_lost_round_leaves_nothing_on_servers_that_were_slow"),
    },
    Bug {
        name: "redlock: a server that restarted is counted at once",
        rule: "T1",
        file: "crates/redis/src/redlock/node.rs",
        find: "Self::Since(probation) => probation.is_over(now, longest),",
        replace: "Self::Since(_) => now.since(now) <= longest,",
        test: store("redlock::missing::t1_a_server_that_restarted_is_not_counted_for_one_ttl"),
    },
    Bug {
        name: "redlock: a late give-back undoes a later round",
        rule: "O2",
        file: "crates/redis/src/scripts/quorum_retract.lua",
        find: "and lock.since > tonumber(ARGV[2]) then return 0 end",
        replace: "and false then return 0 end",
        test: store("redlock::o2_a_late_give_back_of_a_lost_round_changes_nothing_of_a_later_one"),
    },
    Bug {
        name: "redlock: two names of one server have two votes",
        rule: "C4",
        file: "crates/redis/src/redlock/opening.rs",
        find: "members.iter().find(|member| member.run_id == run_id)",
        replace: "members.iter().find(|_| false)",
        test: store("redlock::c4_a_server_twice_a_replica_a_node_of_a_cluster_and_a_wrong_password_are_refused"),
    },
    Bug {
        name: "redlock: a record that is gone counts as renewed",
        rule: "L1",
        file: "crates/redis/src/redlock/keeping.rs",
        find: "\"taken\" | \"deleted\" => Vote::Against,",
        replace: "\"taken\" | \"deleted\" => Vote::For { ttl: ttl.get() },",
        test: store("redlock::missing::l1_a_record_that_is_gone_from_a_minority_is_no_loss"),
    },
    Bug {
        name: "redlock: all claims of one moment are sent at once",
        rule: "W2",
        file: "crates/redis/src/redlock/crowd.rs",
        find: "const CLAIMS: usize = 32;",
        replace: "const CLAIMS: usize = 100_000;",
        test: store("redlock::waiting::w2_who_stands_in_line_meets_no_limit"),
    },
    Bug {
        name: "redlock: the closing of the store is bridged like an outage",
        rule: "C4",
        file: "crates/redis/src/redlock/waiting.rs",
        find: "(!passes || now.since(since) >= BRIDGED)",
        replace: "(now.since(since) >= BRIDGED && (passes || !passes))",
        test: store("redlock::waiting::closing_reaches_a_waiter_in_whatever_moment"),
    },
    Bug {
        name: "redlock: a record is put back that no quorum has",
        rule: "O2",
        file: "crates/redis/src/redlock/keeping.rs",
        find: "won[*place] && missing(place)",
        replace: "(won[*place] || true) && missing(place)",
        test: store("redlock::missing::l1_a_record_that_is_gone_from_a_minority_is_no_loss"),
    },
    Bug {
        name: "redlock: a record is put back in the moment in which it was given back",
        rule: "O2",
        file: "crates/redis/src/redlock/mending.rs",
        find: "is_none_or(|under_way| under_way.given_back)",
        replace: "is_none_or(|under_way| under_way.given_back && false)",
        test: store("redlock::missing::o2_a_release_in_the_moment_of_a_renewal_leaves_nothing_that_is_put_back"),
    },
    Bug {
        name: "redlock: a record that was put back counts at once",
        rule: "T1",
        file: "crates/redis/src/redlock/keeping.rs",
        find: "let vote = lease.vote(word, counts, claim.ttl);",
        replace: "let vote = lease.vote(word, counts || true, claim.ttl);",
        test: store("redlock::missing::t1_a_record_that_was_put_back_counts_only_when_the_server_may_be_counted"),
    },
    Bug {
        name: "redlock: a renewal counts what a late give-back still takes away",
        rule: "O2",
        file: "crates/redis/src/scripts/quorum_renew.lua",
        find: "tonumber(value:sub(68, 81)) < round",
        replace: "false",
        test: store("redlock::o2_what_a_renewal_counts_is_not_taken_away_by_a_late_give_back"),
    },
    Bug {
        name: "sim: a renewal counts what a late give-back still takes away",
        rule: "O2",
        file: "crates/sim/src/server.rs",
        find: "record.round = record.round.max(round);",
        replace: "let _ = round;",
        test: sim("what_a_renewal_counts_is_not_taken_away_by_a_late_give_back"),
    },
    Bug {
        name: "redlock: a waiter queues in the order of arrival, on each server another",
        rule: "W3",
        file: "crates/redis/src/scripts/queue.lua",
        find: "ticket or redis.call('HINCRBY', WAITERS, '+', 1)",
        replace: "math.random(1000000)",
        test: suite("redlock::w3_first_come_first_served"),
    },
];

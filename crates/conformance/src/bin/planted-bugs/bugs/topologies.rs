//! What following a master could get wrong: sentinels, replicas, a cluster.

use super::{Bug, Test};

const fn redis(name: &'static str) -> Test {
    Test { package: "fencepost-redis", target: &["--test", "store"], name }
}

pub(crate) const BUGS: &[Bug] = &[
    Bug {
        name: "sentinel: a server that is named is believed to be a master",
        rule: "C4",
        file: "crates/redis/src/sentinel.rs",
        find: "if role.as_deref() != Some(\"master\") {",
        replace: "if false {",
        test: redis("sentinel::who_is_named_must_be_a_master_by_its_own_word"),
    },
    Bug {
        name: "sentinel: the first who answers is believed",
        rule: "C4",
        file: "crates/redis/src/sentinel/word.rs",
        find: "named.sort_by_key(|(word, count)| std::cmp::Reverse((word.epoch, word.switching, *count)));",
        replace: "named.sort_by_key(|(word, _)| word.epoch);",
        test: redis("sentinel::a_sentinel_of_the_minority_is_not_believed"),
    },
    Bug {
        name: "sentinel: an announced failover is not followed",
        rule: "L2",
        file: "crates/redis/src/connection.rs",
        find: "        if !here {\n            self.lock().connection = None;",
        replace: "        if false {\n            self.lock().connection = None;",
        test: redis("sentinel::a_planned_failover_is_followed_at_once"),
    },
    Bug {
        name: "sentinel: what the new master never had is believed until its turn",
        rule: "L4",
        file: "crates/redis/src/room/ears.rs",
        find: "if std::mem::replace(&mut heard_before, true) {",
        replace: "if std::mem::replace(&mut heard_before, false) {",
        test: redis("sentinel::l4_a_grant_that_the_new_master_never_saw_is_in_doubt_at_once"),
    },
    Bug {
        name: "replicas: WAIT is sent on another connection",
        rule: "T1",
        file: "crates/redis/src/replicas.rs",
        find: "let mut answers: Vec<Value> = all.query_async(&mut connection).await.map_err(Trouble::Answered)?;",
        replace: "let mut answers: Vec<Value> = all.query_async(&mut connection).await.map_err(Trouble::Answered)?;\n        \
                  let mut another = server.connect(&self.settings).await.map_err(Trouble::Unsent)?;\n        \
                  let mut wait = redis::cmd(\"WAIT\");\n        \
                  wait.arg(self.wanted.count).arg(self.wanted.within.as_millis() as u64);\n        \
                  answers.pop();\n        \
                  answers.push(wait.query_async(&mut another).await.map_err(Trouble::Answered)?);",
        test: redis("sentinel::a_grant_that_too_few_replicas_have_is_undone"),
    },
    Bug {
        name: "replicas: a grant that too few have is kept",
        rule: "T1",
        file: "crates/redis/src/store.rs",
        find: "let short = match Box::pin(self.give_back(&claim.holding)).await {",
        replace: "let short = match Ok::<_, Error>(Release::Released) {",
        test: redis("sentinel::a_grant_that_too_few_replicas_have_is_undone"),
    },
    Bug {
        name: "replicas: a renewal counts that too few have",
        rule: "T1",
        file: "crates/redis/src/answer.rs",
        find: "renewal(claim, name, &answer, counted_from, short.as_ref())",
        replace: "renewal(claim, name, &answer, counted_from, short.as_ref().filter(|_| false))",
        test: redis("sentinel::a_grant_that_too_few_replicas_have_is_undone"),
    },
    Bug {
        name: "cluster: the slot is that of the whole key",
        rule: "C3",
        file: "crates/redis/src/cluster/slots.rs",
        find: "tag.filter(|tag| !tag.is_empty()).unwrap_or(key)",
        replace: "tag.filter(|_| false).unwrap_or(key)",
        test: Test {
            package: "fencepost-redis",
            target: &["--lib"],
            name: "cluster::slots::tests::a_key_has_the_slot_of_its_tag",
        },
    },
    Bug {
        name: "cluster: a node that is about to get the slot is asked without ASKING",
        rule: "C2",
        file: "crates/redis/src/cluster.rs",
        find: "link.exchange(request, care, asking == Asking::Yes)",
        replace: "link.exchange(request, care, asking == Asking::No && false)",
        test: redis("cluster::a_slot_moves_while_its_lock_is_held_and_waited_for"),
    },
    Bug {
        name: "cluster: what must wait until a slot has moved fails",
        rule: "C2",
        file: "crates/redis/src/cluster/redirection.rs",
        find: "            (redis::ErrorKind::Server(TryAgain | ClusterDown), _) => Self::Wait,",
        replace: "            (redis::ErrorKind::Server(TryAgain | ClusterDown), _) => Self::None,",
        test: redis("cluster::what_cannot_be_done_while_a_slot_moves_is_done_right_after"),
    },
    Bug {
        name: "cluster: a dead master is asked for ever",
        rule: "L2",
        file: "crates/redis/src/cluster.rs",
        find: "                    let learned = self.learn(None).await;",
        replace: "                    let learned = Err::<(), _>(Failure::closed());",
        test: redis("cluster::a_crash_disturbs_no_other_lock_and_a_missing_record_is_a_loss"),
    },
    Bug {
        name: "cluster: a subscription that went with its slot is missed by nobody",
        rule: "W1",
        file: "crates/redis/src/cluster/shards.rs",
        find: "if self.state().channels.get(&channel) == Some(&number) {",
        replace: "if false {",
        test: redis("cluster::w1_a_waiter_hears_its_turn_where_its_slot_went"),
    },
    Bug {
        name: "cluster: a replaced master raises no doubt",
        rule: "L4",
        file: "crates/redis/src/cluster/map.rs",
        find: "if state.map.masters.iter().any(gone) {",
        replace: "if state.map.masters.iter().any(gone) && false {",
        test: redis("cluster::l4_a_replaced_master_puts_every_grant_in_doubt"),
    },
    Bug {
        name: "newer commands: a record that has changed is left as it is",
        rule: "O2",
        file: "crates/redis/src/keeping.rs",
        find: "Ok(_) | Err(_) => {} // somebody waits",
        replace: "Ok(_) | Err(_) => return Ok(Release::AlreadyExpired), // somebody waits",
        test: redis("scriptless::what_newer_commands_do_not_settle_is_left_to_the_script"),
    },
    Bug {
        name: "cluster: what a pipeline could not do is told as a failure",
        rule: "R1",
        file: "crates/redis/src/cluster/batch.rs",
        find: "Some(value) if !matches!(value, Value::ServerError(_)) =>",
        replace: "Some(value) =>",
        test: redis("cluster::locks_of_all_masters_are_listed_broken_and_renewed_in_pipelines"),
    },
];

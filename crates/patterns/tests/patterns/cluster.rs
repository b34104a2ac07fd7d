//! The same on a real Redis Cluster: what belongs together lies in one slot, and what does not is refused before it is sent.

use fencepost_patterns::{
    atomic::{
        Refusal,
        redis::{Amounts, Scripted, Shadow, Values, Watching},
    },
    update::{Edit, Update},
};
use fencepost_servers::{ClusterSet, RedisServer, Reply};
use redis::aio::MultiplexedConnection;

use crate::fenced::connection;

/// The master that has this key, and a connection to it.
async fn master<'a>(cluster: &'a ClusterSet, key: &str) -> (&'a RedisServer, MultiplexedConnection) {
    let master = cluster.master_of(cluster.slot_of(key));
    (master, connection(&master.url()).await)
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_what_has_one_hash_tag_changes_together_and_other_keys_are_refused_unsent() {
    let cluster = ClusterSet::start();
    let (server, mut redis) = master(&cluster, "{bank}:alice").await;
    let client = redis::Client::open(server.url()).unwrap();
    let mut watching = Watching::open(&client).await.unwrap().in_a_cluster();
    let both = ["{bank}:alice", "{bank}:bob"];
    let filled = Edit::Write(vec![Some(b"100".to_vec()), Some(b"100".to_vec())]);
    let written = Scripted::on(&mut redis).in_a_cluster().update(&both, |_| filled.clone()).await.unwrap();
    assert!(matches!(written, Update::Written { conflicts: 0, .. }), "{written:?}");
    let swap = |old: Values| Edit::Write(vec![old[1].clone(), old[0].clone()]);
    assert!(matches!(watching.update(&both, swap).await.unwrap(), Update::Written { conflicts: 0, .. }));
    let moved = Amounts::on(&mut redis).in_a_cluster().transfer(both[0], both[1], 30).await.unwrap();
    assert_eq!(moved, Ok((70, 130)));

    // Some slot of another master, of which the server would say so after it was sent.
    let far = (0..).map(|number| format!("far-{number}"));
    let far = far.into_iter().find(|key| cluster.slot_of(key) != cluster.slot_of("{bank}:alice")).unwrap();
    let apart = [both[0], far.as_str()];
    let sent = Scripted::on(&mut redis).update(&apart, |_| panic!("it was read")).await.unwrap_err();
    assert_eq!(sent.code(), Some("CROSSSLOT"), "{sent}");
    let before = commands(server);
    let unsent = [
        Scripted::on(&mut redis).in_a_cluster().update(&apart, |_| panic!("it was read")).await.unwrap(),
        watching.update(&apart, |_| panic!("it was read")).await.unwrap(),
    ];
    for refused in unsent {
        let Update::Refused(refusal @ Refusal::OtherSlot { .. }) = refused else { panic!("{refused:?}") };
        assert!(refusal.to_string().contains("give both the same hash tag"), "{refusal}");
    }
    let refused = Amounts::on(&mut redis).in_a_cluster().transfer(apart[0], apart[1], 1).await.unwrap();
    assert!(matches!(refused, Err(Refusal::OtherSlot { .. })));
    assert_eq!(commands(server), before, "nothing was sent");
    assert_eq!(Amounts::on(&mut redis).take(both[0], 70).await.unwrap(), Ok(0), "nothing was changed");
}

/// What clients have sent so far that reads or writes keys.
fn commands(server: &RedisServer) -> Vec<String> {
    let Reply::Text(text) = server.command(&["INFO", "commandstats"]) else { panic!("no statistics") };
    let lines = text.lines().filter(|line| ["mget", "watch", "eval"].iter().any(|word| line.contains(word)));
    lines.map(|line| line.split(",usec").next().unwrap_or_default().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cluster_a_shadow_lies_beside_its_key_and_takes_its_place() {
    let cluster = ClusterSet::start();
    for key in ["prices", "{shop}:prices", "pri{shop}ces"] {
        let (server, mut redis) = master(&cluster, key).await;
        redis::cmd("HSET").arg(key).arg("apples").arg(1).query_async::<i64>(&mut redis).await.unwrap();
        let shadow = Shadow::of(key).unwrap();
        assert_eq!(cluster.slot_of(shadow.key()), cluster.slot_of(key), "{}", shadow.key());
        for part in ["apples", "pears"] {
            shadow
                .write(&mut redis, |pipeline, key| {
                    pipeline.hset(key, part, 2);
                })
                .await
                .unwrap();
            assert_eq!(server.command(&["HGET", key, "apples"]), Reply::Text("1".into()), "readers see the old one");
        }
        assert!(shadow.publish(&mut redis).await.unwrap());
        assert_eq!(server.command(&["HGET", key, "apples"]), Reply::Text("2".into()));
        assert_eq!(server.command(&["HLEN", key]), Reply::Number(2));
        assert_eq!(server.command(&["EXISTS", shadow.key()]), Reply::Number(0));
        assert_eq!(server.command(&["TTL", key]), Reply::Number(-1));
    }
    assert!(Shadow::of("a}b").unwrap_err().to_string().contains("give it a hash tag"));
}

//! The commands of newer servers, **against a stand-in and not against such servers**, which were not to be had: a relay
//! that answers `DELEX … IFEQ`, `SET … IFEQ` and `DELIFEQ` as their documentation says, by a script on a real but older
//! server behind it, and passes on everything else.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use fencepost_core::{
    claim::{LossReason, Release, Renewal},
    store::Store,
};
use fencepost_servers::RedisServer;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf},
};

use super::{Administered, SOON, claim, open, queue, release, take, within};

const TTL: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq)]
enum Newer {
    Redis84,
    Valkey9,
}

/// What was asked for, by the first word and whether it compares.
type Asked = Arc<Mutex<BTreeMap<String, u32>>>;

struct StandIn {
    server: RedisServer,
    url: String,
    asked: Asked,
}

impl StandIn {
    async fn start(newer: Newer) -> Self {
        let server = RedisServer::start();
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let (behind, asked) = (server.address(), Asked::default());
        let counted = asked.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (from_server, mut to_server) = TcpStream::connect(behind).await.unwrap().into_split();
                let (from_client, mut to_client) = client.into_split();
                let counted = counted.clone();
                tokio::spawn(async move {
                    let mut requests = BufReader::new(from_client);
                    while let Some(words) = request(&mut requests).await {
                        let words = translated(newer, words, &counted);
                        to_server.write_all(&packed(&words)).await.unwrap();
                    }
                });
                let mut from_server = BufReader::new(from_server);
                tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
            }
        });
        Self { server, url, asked }
    }

    fn asked(&self, what: &str) -> u32 {
        self.asked.lock().unwrap().get(what).copied().unwrap_or(0)
    }
}

async fn request(requests: &mut BufReader<OwnedReadHalf>) -> Option<Vec<Vec<u8>>> {
    async fn number(requests: &mut BufReader<OwnedReadHalf>) -> Option<usize> {
        let mut line = String::new();
        requests.read_line(&mut line).await.ok()?;
        line.get(1..)?.trim().parse().ok()
    }
    let count = number(requests).await?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut word = vec![0; number(requests).await? + 2];
        requests.read_exact(&mut word).await.ok()?;
        word.truncate(word.len() - 2);
        words.push(word);
    }
    Some(words)
}

fn packed(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

fn translated(newer: Newer, words: Vec<Vec<u8>>, asked: &Asked) -> Vec<Vec<u8>> {
    let text = |word: &Vec<u8>| String::from_utf8_lossy(word).to_uppercase();
    let compares = words.get(3).is_some_and(|word| text(word) == "IFEQ");
    let what = if compares { format!("{} IFEQ", text(&words[0])) } else { text(&words[0]) };
    *asked.lock().unwrap().entry(what.clone()).or_default() += 1;
    let script = |script: &str, key: &[u8], arguments: &[Vec<u8>]| {
        let head = [b"EVAL".to_vec(), script.into(), b"1".to_vec(), key.to_vec()];
        [&head[..], arguments].concat()
    };
    let delete = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
    let set = "if redis.call('GET', KEYS[1]) ~= ARGV[2] then return false end \
               return redis.call('SET', KEYS[1], ARGV[1], ARGV[3], ARGV[4])";
    match (newer, &*what, &words[..]) {
        (Newer::Redis84, "DELEX", [_, key, _, value]) => script(delete, key, std::slice::from_ref(value)),
        (Newer::Valkey9, "DELIFEQ", [_, key, value]) => script(delete, key, std::slice::from_ref(value)),
        (_, "SET IFEQ", [_, key, value, _, old, px, ttl]) => {
            script(set, key, &[value.clone(), old.clone(), px.clone(), ttl.clone()])
        }
        _ => words,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn newer_commands_are_used_where_a_probe_finds_them() {
    for (newer, removal) in [(Newer::Redis84, "DELEX"), (Newer::Valkey9, "DELIFEQ")] {
        let stand_in = StandIn::start(newer).await;
        let store = open(&stand_in.url).await.unwrap();
        let before = stand_in.asked(removal);
        let mine = take(&store, "x", TTL).await;
        let answer = store.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
        assert!(matches!(answer, Renewal::Renewed { .. }));
        assert_eq!(release(&store, &mine).await, Release::Released);
        assert_eq!((stand_in.asked("SET IFEQ"), stand_in.asked(removal) - before), (1, 1));
        assert_eq!(stand_in.asked("EVALSHA") + stand_in.asked("EVAL"), 0, "no script was needed");
        assert_eq!(stand_in.server.cli(&["EXISTS", "fencepost:{x}"]), "0");
        assert_eq!(release(&store, &mine).await, Release::AlreadyExpired, "a repeat is safe");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_newer_commands_do_not_settle_is_left_to_the_script() {
    let stand_in = StandIn::start(Newer::Redis84).await;
    let (holder, other) = (open(&stand_in.url).await.unwrap(), open(&stand_in.url).await.unwrap());
    // Somebody waits: the record has changed, and the release must hand it over.
    let mine = take(&holder, "x", TTL).await;
    let wanted = claim("x", TTL);
    let turn = queue(&other, &wanted).await;
    let answer = holder.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
    assert!(matches!(answer, Renewal::Renewed { .. }), "{answer:?}");
    assert_eq!(release(&holder, &mine).await, Release::Released);
    within(SOON, "the turn", turn).await.unwrap().unwrap();
    assert_eq!(release(&other, &wanted).await, Release::Released);
    // It is gone, or another's: nothing is changed, and never created.
    let mine = take(&holder, "x", TTL).await;
    stand_in.server.cli(&["DEL", "fencepost:{x}"]);
    let answer = holder.renew(std::slice::from_ref(&mine)).await.pop().unwrap().unwrap();
    assert_eq!(answer, Renewal::Lost(LossReason::Deleted));
    let mine = take(&holder, "x", TTL).await;
    stand_in.server.cli(&["DEL", "fencepost:{x}"]);
    let theirs = take(&other, "x", TTL).await;
    assert_eq!(release(&holder, &mine).await, Release::HeldByOther);
    let answer = other.renew(std::slice::from_ref(&theirs)).await.pop().unwrap().unwrap();
    assert!(matches!(answer, Renewal::Renewed { .. }));
}

/// Renewals of many leases stay one script: fewer commands, and a failover to an older server changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn many_leases_are_renewed_by_one_script_all_the_same() {
    let stand_in = StandIn::start(Newer::Redis84).await;
    let store = open(&stand_in.url).await.unwrap();
    let held = [take(&store, "a", TTL).await, take(&store, "b", TTL).await];
    assert!(store.renew(&held).await.into_iter().all(|answer| matches!(answer, Ok(Renewal::Renewed { .. }))));
    assert_eq!(stand_in.asked("SET IFEQ"), 0);
    assert!(stand_in.asked("EVALSHA") >= 1);
}

//! Keys whose effect and result commit together: exactly once, whatever dies.

use std::{path::PathBuf, time::Duration};

use fencepost::cells::MAX_CELL_BYTES;
use fencepost_patterns::requests::{Begun, Requests, TooLong};
use serde::{Deserialize, Serialize};

use crate::{
    database::{Database, client},
    processes::{self, eight_of_which_two_are_killed, lines, note},
};

const KEYS: u64 = 100;
const DAY: Duration = Duration::from_secs(86_400);

/// Does the work of all keys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Job {
    url: String,
    worker: u32,
    log: PathBuf,
}

fn requests() -> Requests {
    Requests::of("requests")
}

impl Job {
    pub(crate) async fn work(self) {
        let mut client = client(&self.url).await;
        for key in 0..KEYS {
            let name = format!("key {key}");
            let result = loop {
                let transaction = client.transaction().await.unwrap();
                match requests().begin(&transaction, &name, Some(b"payload")).await.unwrap() {
                    Begun::Ours(ours) => {
                        let work = "INSERT INTO effects (key, worker) VALUES ($1, $2)";
                        transaction.execute(work, &[&name, &i64::from(self.worker)]).await.unwrap();
                        let result = self.worker.to_string();
                        requests().keep(&transaction, ours, result.as_bytes(), DAY).await.unwrap().unwrap();
                        transaction.commit().await.unwrap();
                        break result;
                    }
                    Begun::Repeated(result) => break String::from_utf8(result).unwrap(),
                    Begun::InProgress => {
                        transaction.rollback().await.unwrap();
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                    Begun::OtherPayload => panic!("{name} has another payload"),
                }
            };
            note(&self.log, &format!("{key} {result}"));
        }
    }
}

fn database() -> Database {
    let server = Database::new();
    server.sql("CREATE TABLE effects (key text NOT NULL, worker bigint NOT NULL)");
    for _ in 0..2 {
        server.sql(&requests().script());
    }
    server
}

#[test]
fn each_key_has_its_effect_exactly_once_and_all_are_told_of_that_one() {
    let server = database();
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let url = server.url();
    let job = |worker| processes::Job::Requests(Job { url: url.clone(), worker, log: log.clone() });
    eight_of_which_two_are_killed(job, 40, || lines(&log).len());
    let effects = server.sql("SELECT split_part(key, ' ', 2), worker FROM effects ORDER BY 1");
    assert_eq!(effects.len() as u64, KEYS, "one effect for each key");
    let effects: Vec<_> =
        effects.iter().map(|row| format!("{} {}", row[0].as_ref().unwrap(), row[1].as_ref().unwrap())).collect();
    for told in lines(&log) {
        assert!(effects.contains(&told), "told {told:?}, which is no effect");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_tells_whether_it_is_new_done_at_work_or_anothers() {
    let server = database();
    let (mut a, mut b) = (client(&server.url()).await, client(&server.url()).await);
    let first = a.transaction().await.unwrap();
    let Begun::Ours(ours) = requests().begin(&first, "x", Some(b"100")).await.unwrap() else { panic!("it is new") };
    let second = b.transaction().await.unwrap();
    assert!(matches!(requests().begin(&second, "x", Some(b"100")).await.unwrap(), Begun::InProgress));
    assert!(matches!(requests().begin(&second, "y", None).await.unwrap(), Begun::Ours(_)), "another key");
    let long = vec![0; MAX_CELL_BYTES + 1];
    let Begun::Ours(other) = requests().begin(&second, "z", None).await.unwrap() else { panic!("it is new") };
    assert_eq!(requests().keep(&second, other, &long, DAY).await.unwrap(), Err(TooLong { bytes: long.len() }));
    requests().keep(&first, ours, b"receipt", DAY).await.unwrap().unwrap();
    first.commit().await.unwrap();
    let told = requests().begin(&second, "x", Some(b"100")).await.unwrap();
    assert!(matches!(&told, Begun::Repeated(result) if result == b"receipt"), "{told:?}");
    assert!(matches!(requests().begin(&second, "x", Some(b"200")).await.unwrap(), Begun::OtherPayload));
    assert!(matches!(requests().begin(&second, "x", None).await.unwrap(), Begun::Repeated(_)));
    second.rollback().await.unwrap();

    // Rolled back, or over: new.
    let third = a.transaction().await.unwrap();
    let Begun::Ours(ours) = requests().begin(&third, "brief", None).await.unwrap() else { panic!("it is new") };
    requests().keep(&third, ours, b"", Duration::from_millis(1)).await.unwrap().unwrap();
    third.commit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    let fourth = a.transaction().await.unwrap();
    let Begun::Ours(again) = requests().begin(&fourth, "brief", None).await.unwrap() else {
        panic!("its time is over")
    };
    requests().keep(&fourth, again, b"again", Duration::from_millis(1)).await.unwrap().unwrap();
    fourth.commit().await.unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(requests().clean(&a).await.unwrap(), 1);
}

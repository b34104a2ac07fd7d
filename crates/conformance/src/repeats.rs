//! Work that is to be done once for each key, by processes of which some are killed, and a log of what was done.

use std::{collections::HashMap, fs::OpenOptions, io::Write, path::Path, time::Duration};

use fencepost::{Error, Locks, Ran, Refusal};

/// Short, so that a key whose worker was killed comes free while the test still runs.
const TTL: Duration = Duration::from_secs(2);

/// Does the work of each key unless it was done, and writes to the log what it did and what it was told: `began`,
/// `ended` and `told`, each with the key and the worker, the last with the result.
///
/// # Errors
/// The store's.
///
/// # Panics
/// When a key is refused.
pub async fn work(locks: &Locks, keys: u64, log: &Path) -> Result<(), Error> {
    let locks = locks.clone().for_efficiency();
    let worker = std::process::id();
    for key in 0..keys {
        let done = async {
            write(log, &format!("began {key} {worker}"));
            tokio::time::sleep(Duration::from_millis(3 + key % 5)).await;
            write(log, &format!("ended {key} {worker}"));
            Ok::<_, Error>(format!("{worker}-{key}"))
        };
        let once = locks.once(format!("key {key}")).fingerprint(key.to_string()).ttl(TTL).wait(Duration::from_secs(60));
        let result = match once.run(done).await? {
            Ran::Now(result) => result,
            Ran::Repeated(kept) => kept.value,
            other => panic!("{other:?}"),
        };
        write(log, &format!("told {key} {worker} {result}"));
    }
    Ok(())
}

/// Reads the log of all workers together: each key was done to its end at least once, never by two at the same time, again
/// only where its worker was `killed`, and everybody was told the same result.
///
/// # Panics
/// When it was otherwise.
pub fn assert_once(log: &Path, keys: u64, killed: &[u32]) {
    let text = std::fs::read_to_string(log).expect("a log");
    let mut at_work: HashMap<u64, u32> = HashMap::new();
    let mut ended: HashMap<u64, u32> = HashMap::new();
    let mut results: HashMap<u64, &str> = HashMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (key, worker) = (words[1].parse().expect("a key"), words[2].parse().expect("a worker"));
        match words[0] {
            "began" => {
                if let Some(before) = at_work.insert(key, worker).or(ended.get(&key).copied()) {
                    assert!(killed.contains(&before), "{worker} began key {key}, which {before} had begun");
                }
            }
            "ended" => {
                assert_eq!(at_work.remove(&key), Some(worker), "key {key}");
                ended.insert(key, worker);
            }
            "told" => {
                let first = results.entry(key).or_insert(words[3]);
                assert_eq!(*first, words[3], "two results of key {key}");
                assert!(ended.contains_key(&key), "the result of key {key} was told before its end");
            }
            other => panic!("{other} in a log"),
        }
    }
    assert_eq!((ended.len(), results.len()), (keys as usize, keys as usize));
}

/// Whether the refusal is for another payload.
pub fn is_other_payload<T, E>(ran: &Ran<T, E>) -> bool {
    matches!(ran, Ran::Refused(refusal @ Refusal::OtherPayload) if refusal.status() == 422)
}

fn write(log: &Path, line: &str) {
    let mut log = OpenOptions::new().append(true).open(log).expect("a log");
    log.write_all(format!("{line}\n").as_bytes()).expect("a log"); // one call, which appends in one piece
}

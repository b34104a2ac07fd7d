//! ZooKeeper counts the children of a node in 31 bits. What stands in a queue when they run out is served in its order.

use std::{fs, path::Path};

use super::*;

/// Where a snapshot has a node's counter of children's changes: behind its path, its data, the number of its ACL, two
/// transactions, two times and its version.
fn counter_of(snapshot: &[u8], path: &str) -> usize {
    let record = [&(path.len() as i32).to_be_bytes()[..], path.as_bytes()].concat();
    let at = snapshot.windows(record.len()).position(|window| window == record).expect("the node is in the snapshot");
    let data = at + record.len();
    let length = i32::from_be_bytes(snapshot[data..data + 4].try_into().unwrap()).max(0) as usize;
    data + 4 + length + 8 + 4 * 8 + 4
}

/// The checksum that stands before the last string of a snapshot.
fn seal(snapshot: &mut [u8]) {
    let (mut a, mut b) = (1_u64, 0_u64);
    let at = snapshot.len() - 13;
    for byte in &snapshot[..at] {
        a = (a + u64::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    snapshot[at..at + 8].copy_from_slice(&(b << 16 | a).to_be_bytes());
}

/// Has the server believe that the lock's container saw as many changes, as after years of use.
fn age(server: &ZooKeeperServer, path: &str, changes: i32) {
    server.kill();
    server.launch(); // which writes a snapshot
    server.kill();
    let newest = snapshots(&server.directory().join("version-2")).pop().expect("a snapshot");
    let mut snapshot = fs::read(&newest).unwrap();
    let at = counter_of(&snapshot, path);
    snapshot[at..at + 4].copy_from_slice(&changes.to_be_bytes());
    seal(&mut snapshot);
    fs::write(&newest, snapshot).unwrap();
    server.launch();
}

fn snapshots(directory: &Path) -> Vec<std::path::PathBuf> {
    let number = |path: &std::path::PathBuf| {
        i64::from_str_radix(path.extension().unwrap_or_default().to_str().unwrap(), 16).unwrap_or(-1)
    };
    let files = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> =
        files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("snapshot")).collect();
    found.sort_by_key(number);
    found
}

#[tokio::test]
async fn w3_the_order_outlives_31_bits_of_numbers() {
    let server = ZooKeeperServer::start_with(&["digest.enabled=false".to_owned()]);
    let admin = server.admin();
    admin.create("/tests", b"").unwrap();
    admin.create("/tests/x", b"").unwrap();
    drop(admin);
    age(&server, "/tests/x", i32::MAX - 3);

    let store = open(&server.url()).await.unwrap();
    let claims: Vec<_> = (0..8).map(|_| claim("x", LONG)).collect();
    granted(&store, &claims[0]).await;
    for waiter in &claims[1..] {
        queued(&store, waiter).await;
    }
    let numbers: Vec<_> = server.admin().children("/tests/x").iter().map(|node| node[43..].to_owned()).collect();
    let largest = numbers.iter().filter(|number| **number == i32::MAX.to_string()).count();
    assert!(largest > 1 || numbers.iter().any(|number| number.starts_with('-')), "the numbers ran out: {numbers:?}");

    let mut last = None;
    for (place, turn) in claims.iter().enumerate() {
        let listed = store.inspect(Some(&name("x"))).await.unwrap();
        assert_eq!(listed[0].holders[0].owner.as_ref(), Some(turn.owner()), "number {place} is next");
        let grant = within(SOON, "the turn comes", store.turn(turn)).await.unwrap();
        assert!(grant.fence > last);
        last = grant.fence;
        for later in &claims[place + 1..] {
            let early = tokio::time::timeout(ms(20), store.turn(later)).await;
            assert!(early.is_err(), "number {place} holds: {early:?}");
        }
        store.release(&turn.holding).await.unwrap();
    }
}

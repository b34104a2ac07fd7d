//! A server that is put back to an earlier state, as from a backup.

use std::path::Path;

use super::*;

/// What the documentation says of it: fences come again, so the counter must be made to pass the old one first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_restored_snapshot_rewinds_fences_until_the_counter_has_passed_them() {
    let server = ZooKeeperServer::start();
    let backup = tempfile::tempdir().unwrap();
    let data = server.directory().join("version-2");
    fence(&server).await;
    server.kill();
    copy(&data, backup.path());
    server.launch();
    let mut newest = 0;
    for _ in 0..10 {
        newest = fence(&server).await;
    }
    server.kill();
    std::fs::remove_dir_all(&data).unwrap();
    std::fs::create_dir(&data).unwrap();
    copy(backup.path(), &data);
    server.launch();
    let rewound = fence(&server).await;
    assert!(rewound <= newest, "{rewound} after {newest}: the documentation can be relaxed");
    let admin = server.admin();
    while last_transaction(&server) < newest {
        admin.create("/raise", b"").unwrap();
        admin.delete("/raise").unwrap();
    }
    assert!(fence(&server).await > newest);
}

/// The fence of a grant by a client of its own.
async fn fence(server: &ZooKeeperServer) -> u64 {
    let store = open(&server.url()).await.unwrap();
    let mine = claim("x", LONG);
    let fence = granted(&store, &mine).await.fence.unwrap().get();
    store.release(&mine.holding).await.unwrap();
    store.close().await;
    fence
}

/// As the server's `srvr` tells it.
fn last_transaction(server: &ZooKeeperServer) -> u64 {
    let told = server.command("srvr").unwrap();
    let last = told.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).unwrap();
    u64::from_str_radix(last.trim(), 16).unwrap()
}

fn copy(from: &Path, to: &Path) {
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap().path();
        std::fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
    }
}

//! Data in the ensemble that the lock lives in, written only while the lock is held.
//!
//! ```text
//! cargo run -p fencepost-zookeeper --example guarded_zookeeper -- zookeeper://127.0.0.1:2181
//! ```
//!
//! The check goes along with the write in one transaction, and the ensemble decides. With a client library of your own it
//! is `check` on [`ZooKeeperGuard::path`] with any version; here `kazoo` (the package `python3-kazoo`) does it, so that the
//! example needs no other client.

use std::{error::Error, process::Command};

use fencepost::{Acquired, Locks};
use fencepost_zookeeper::ZooKeeperGuard;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "zookeeper://127.0.0.1:2181".to_owned());
    for line in story(&url).await? {
        println!("{line}");
    }
    Ok(())
}

/// Writes while the lock is held, and after it was given back.
pub async fn story(url: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let servers = url.trim_start_matches("zookeeper://");
    let locks = Locks::open(url).await?.fenced()?;
    let Acquired(mut lease) = locks.lock("stock/4711").acquire().await? else { return Err("busy".into()) };
    let guard: ZooKeeperGuard = lease.guard().ok_or("the lease is lost")?;

    let mut told = vec![format!("while it is held: {}", written(servers, &guard, "17")?)];
    lease.release().await?;
    // A writer that was paused in between, and does not know yet.
    told.push(format!("after it was given back: {}", written(servers, &guard, "3")?));
    told.push(format!("and once more: {:?}", lease.guard::<ZooKeeperGuard>()));
    Ok(told)
}

const TRANSACTION: &str = r#"
import sys
from kazoo.client import KazooClient
client = KazooClient(hosts=sys.argv[1])
client.start()
client.ensure_path("/stock-4711")
transaction = client.transaction()
transaction.check(sys.argv[2], -1)
transaction.set_data("/stock-4711", sys.argv[3].encode())
failed = any(isinstance(result, Exception) for result in transaction.commit())
print("refused" if failed else "written")
"#;

/// Whether the ensemble took the write.
fn written(servers: &str, guard: &ZooKeeperGuard, value: &str) -> Result<bool, Box<dyn Error>> {
    // Debian's package is for Debian's Python, which need not be the first on the path.
    let knows_kazoo = |python: &&str| {
        Command::new(python).args(["-c", "import kazoo"]).output().is_ok_and(|tried| tried.status.success())
    };
    let python = ["python3", "/usr/bin/python3"].into_iter().find(knows_kazoo).ok_or("no Python here knows kazoo")?;
    let output = Command::new(python).args(["-c", TRANSACTION, servers, guard.path(), value]).output()?;
    match String::from_utf8(output.stdout)?.trim() {
        "written" => Ok(true),
        "refused" => Ok(false),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

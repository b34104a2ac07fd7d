//! Data in the ensemble that the lock lives in, written only while the lock is held.
//!
//! ```text
//! cargo run -p fencepost-zookeeper --example guarded -- zookeeper://127.0.0.1:2181
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
    let servers = url.trim_start_matches("zookeeper://").to_owned();
    let locks = Locks::open(&url).await?.fenced()?;
    let Acquired(mut lease) = locks.lock("stock/4711").acquire().await? else { return Err("busy".into()) };
    let guard: ZooKeeperGuard = lease.guard().ok_or("the lease is lost")?;

    println!("while it is held: {}", written(&servers, &guard, "17")?);
    lease.release().await?;
    // A writer that was paused in between, and does not know yet.
    println!("after it was given back: {}", written(&servers, &guard, "3")?);
    println!("and once more: {:?}", lease.guard::<ZooKeeperGuard>());
    Ok(())
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
    let output = Command::new("python3").args(["-c", TRANSACTION, servers, guard.path(), value]).output()?;
    match String::from_utf8(output.stdout)?.trim() {
        "written" => Ok(true),
        "refused" => Ok(false),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
    }
}

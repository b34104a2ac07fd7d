//! Data in the cluster that the lock lives in, written only while the lock is held.
//!
//! ```text
//! cargo run -p fencepost-etcd --example guarded_etcd -- etcd://127.0.0.1:2379
//! ```
//!
//! The comparison goes along with the write in one transaction, and the cluster decides. With a client library of your
//! own it is one comparison on the create revision of [`EtcdGuard::key`]; here `etcdctl` does it, so that the example
//! needs no other client.

use std::{
    error::Error,
    io::Write,
    process::{Command, Stdio},
};

use fencepost::{Acquired, Locks};
use fencepost_etcd::EtcdGuard;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "etcd://127.0.0.1:2379".to_owned());
    for line in story(&url).await? {
        println!("{line}");
    }
    Ok(())
}

/// Writes while the lock is held, and after it was given back.
pub async fn story(url: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let members = url.trim_start_matches("etcd://");
    let locks = Locks::open(url).await?.fenced()?;
    let Acquired(mut lease) = locks.lock("stock/4711").acquire().await? else { return Err("busy".into()) };
    let guard: EtcdGuard = lease.guard().ok_or("the lease is lost")?;

    let mut told = vec![format!("while it is held: {}", written(members, &guard, "17")?)];
    lease.release().await?;
    // A writer that was paused in between, and does not know yet.
    told.push(format!("after it was given back: {}", written(members, &guard, "3")?));
    told.push(format!("and once more: {:?}", lease.guard::<EtcdGuard>()));
    Ok(told)
}

/// Whether the cluster took the write.
fn written(members: &str, guard: &EtcdGuard, value: &str) -> Result<bool, Box<dyn Error>> {
    let mut etcdctl = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .args(["--endpoints", members, "txn"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let transaction = format!("{guard}\n\nput app/stock/4711 {value}\n\n\n");
    etcdctl.stdin.take().ok_or("a pipe")?.write_all(transaction.as_bytes())?;
    let output = etcdctl.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?.starts_with("SUCCESS"))
}

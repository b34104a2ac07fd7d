//! A holder is paused, the lock passes on, and it writes late: to a file that checks fences, and to one that does not.
//!
//! `cargo run -p fencepost-patterns --example late`

use std::time::Duration;

use fencepost::{Acquired, Correctness, Lease, LockName, Locks};
use fencepost_patterns::fenced::{FencedFile, Refused};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let locks = Locks::open(&format!("file:{}/locks", directory.path().display())).await?.fenced()?;
    let checked = FencedFile::at(directory.path().join("checked"));
    let unchecked = directory.path().join("unchecked");

    let paused = take(&locks).await?;
    checked.advance(paused.fence())?;
    checked.replace(paused.fence(), b"100 left")?;
    std::fs::write(&unchecked, "100 left")?;
    println!("fence {}: reads \"100 left\" and is paused", paused.fence());

    locks.store().force(&LockName::new("stock")?, None).await?; // its lease ends
    let next = take(&locks).await?;
    checked.advance(next.fence())?;
    checked.replace(next.fence(), b"99 left")?;
    std::fs::write(&unchecked, "99 left")?;
    println!("fence {}: sells one, \"99 left\"", next.fence());

    println!("fence {}: wakes, sells one of 100, and writes \"99 left\" over it", paused.fence());
    std::fs::write(&unchecked, "99 left")?;
    println!("  the file without a check: {:?}, and two were sold", std::fs::read_to_string(&unchecked)?);
    match checked.replace(paused.fence(), b"99 left") {
        Err(refused @ Refused::Stale { .. }) => println!("  the file with a check: {refused}"),
        other => return Err(format!("it should have been refused: {other:?}").into()),
    }
    Ok(())
}

async fn take(locks: &Locks<Correctness>) -> Result<Lease<Correctness>, Box<dyn std::error::Error>> {
    match locks.lock("stock").wait(Duration::from_secs(5)).acquire().await? {
        Acquired(lease) => Ok(lease),
        other => Err(format!("{other:?}").into()),
    }
}

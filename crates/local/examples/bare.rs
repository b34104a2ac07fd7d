//! What taking and giving back costs next to the bare system calls, in the same run:
//! `cargo run --release -p fencepost-local --example bare -- DIRECTORY`.
//!
//! The floor is what a program without the library would do: open, flock, write a counter, close.

use std::{path::Path, sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimant, Claimed, Holding, Patience},
    clock::{BootClock, Clock},
    limits::Ttl,
    name::{LockName, Namespace},
    owner::Owner,
    store::Store,
};
use fencepost_local::{DirectoryConfig, DirectoryStore};
use rustix::fs::{FlockOperation, Mode, OFlags};

const ROUNDS: usize = 20_000;
const TURNS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = std::env::args().nth(1).ok_or("name a directory to work in")?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let config = DirectoryConfig::new(&directory);
    let store = DirectoryStore::open(config, &Namespace::default(), BootClock::shared())?;
    let bare = Path::new(&directory).join("bare.lock");
    let claimant = Arc::new(Claimant::here());
    let name = LockName::new("bare")?;
    // Turn by turn, so that both see the same machine; the best of each is compared.
    let (mut floor, mut ours) = (Duration::MAX, Duration::MAX);
    for _ in 0..TURNS {
        floor = floor.min(timed(|| (0..ROUNDS).try_for_each(|round| bare_calls(&bare, round)))?);
        ours = ours.min(timed(|| {
            runtime.block_on(async {
                for _ in 0..ROUNDS {
                    take_and_give_back(&store, &name, &claimant).await?;
                }
                Ok(())
            })
        })?);
    }
    let each = |all: Duration| all.as_nanos() as f64 / ROUNDS as f64 / 1000.0;
    println!("bare {:.2} us, store {:.2} us, ratio {:.2}", each(floor), each(ours), each(ours) / each(floor));
    Ok(())
}

fn timed(
    work: impl FnOnce() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<Duration, Box<dyn std::error::Error>> {
    let begun = BootClock.now();
    work()?;
    Ok(BootClock.now().since(begun))
}

fn bare_calls(path: &Path, round: usize) -> Result<(), Box<dyn std::error::Error>> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    rustix::io::pwrite(&file, &round.to_le_bytes(), 0)?;
    Ok(())
}

async fn take_and_give_back(
    store: &DirectoryStore,
    name: &LockName,
    claimant: &Arc<Claimant>,
) -> Result<(), Box<dyn std::error::Error>> {
    let holding = Holding::exclusive(name.clone(), Owner::random()?);
    let claim = Claim { holding, ttl: Ttl::DEFAULT, claimant: Arc::clone(claimant) };
    match store.claim(&claim, Patience::Once).await? {
        Claimed::Granted(_) => store.release(&claim.holding).await?,
        other => return Err(format!("{other:?}").into()),
    };
    Ok(())
}

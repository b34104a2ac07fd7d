//! Scenes that several stories have in common.

use std::time::Duration;

use crate::{
    agent::Came,
    player::Player,
    scenario::Stop,
    stage::{Stage, THINKS, TTL, pause},
    stand::ServerFault,
};

/// Takes the lock and reads. Answers the grant.
pub(super) async fn takes_and_reads(player: &mut Player, ttl: Duration) -> Result<String, Stop> {
    let grant = player.acquire(ttl).await?;
    player.read(&grant).await?.expect(Came::Yes).await?;
    Ok(grant)
}

/// Takes the lock, reads, thinks, writes, and lets it be seen. Answers the grant, which is still held.
pub(super) async fn takes_and_works(player: &mut Player) -> Result<String, Stop> {
    let grant = takes_and_reads(player, TTL).await?;
    pause(THINKS).await;
    player.write(&grant).await?.expect(Came::Yes).await?;
    pause(THINKS).await;
    Ok(grant)
}

/// Tries to get the lock for so long, and does the work if it has it, whatever the resource says to that.
pub(super) async fn tries_and_works(player: &mut Player, patience: Duration) -> Result<(), Stop> {
    let (grant, tries) = player.begin_to_acquire(TTL, Some(patience), true).await?;
    if tries.came().await?.0 == Came::Yes {
        player.read(&grant).await?.came().await?;
        pause(THINKS).await;
        player.write(&grant).await?.came().await?;
    }
    Ok(())
}

/// Writes and gives back, whatever comes of it.
pub(super) async fn finishes(player: &mut Player, grant: &str) -> Result<(), Stop> {
    player.write(grant).await?.came().await?;
    // Whether a first release took effect may be unknown; a repeat is safe (O3).
    if player.release(grant).await?.came().await?.0 == Came::Failed {
        player.release(grant).await?.came().await?;
    }
    Ok(())
}

/// One that was stopped runs on, looks at its lease first, and writes if it still believes.
pub(super) async fn wakes_and_looks(player: &mut Player, grant: &str) -> Result<(), Stop> {
    let look = player.check(grant).await?;
    player.wake()?;
    if look.came().await?.0 == Came::Yes {
        player.write(grant).await?.came().await?;
    }
    Ok(())
}

/// A holds; B tries to get the lock for longer than a TTL, and gets it when A has given it back. Should B have it earlier, that is
/// in the history.
pub(super) async fn gives_back_in_the_end(a: &mut Player, old: &str, b: &mut Player) -> Result<(), Stop> {
    let (mut new, tries) = b.begin_to_acquire(TTL, Some(TTL), true).await?;
    let mut came = tries.came().await?.0;
    // Who asked a server that does not answer knows better by now where to ask.
    if came == Came::Failed {
        let again = b.begin_to_acquire(TTL, Some(TTL), true).await?;
        new = again.0;
        came = again.1.came().await?.0;
    }
    let taken = came == Came::Yes;
    if taken {
        b.read(&new).await?.expect(Came::Yes).await?;
    }
    finishes(a, old).await?;
    if !taken {
        b.acquire(TTL).await?;
    }
    Ok(())
}

/// A holds through `fault`; B tries to get the lock and gets it when A has given it back. Should B have it earlier, that
/// is in the history.
pub(super) async fn holds_through(stage: &Stage, fault: ServerFault, ttl: Duration) -> Result<(), Stop> {
    let (mut a, mut b) = (stage.player("a").await?, stage.player("b").await?);
    let old = takes_and_reads(&mut a, ttl).await?;
    stage.inflict(fault).await?;
    gives_back_in_the_end(&mut a, &old, &mut b).await
}

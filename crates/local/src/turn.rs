//! Waiting for one's turn: behind another waiter, then at the head of the queue.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Grant, Mode},
    clock::{self, BootClock, Sent},
    error::{Error, ErrorKind, Operation},
    owner::Owner,
};

use crate::{
    STORE,
    beside::{Comes, Seated, Tried},
    encode::Place,
    held::Keeps,
    lockfile::{self, LockFile},
    problem::Outcome,
    queue,
    store::{Shared, refuse_beside_permits},
    watch::FileWatch,
};

/// After how long the head of the queue looks without having been told (W1). Files tell of every way in which a lock comes
/// free but one: its holder unlocks while a forked child, which never runs another program, has the descriptor.
const BACKSTOP: Duration = Duration::from_secs(1);

/// The same for those behind. Whoever looks at a dead waiter's ticket holds it for that moment; should two look at once
/// and the first be killed before it removed the ticket, no event tells the second.
const BACKSTOP_BEHIND: Duration = Duration::from_secs(5);

/// The event of a close comes shortly *before* the kernel frees the lock, so a try that fails is repeated after these
/// pauses.
const SOON: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(50),
    Duration::from_micros(200),
    Duration::from_millis(1),
    Duration::from_millis(5),
];

/// Waits until `claim`, which has a ticket, is granted. Cancel safe: the ticket stays until it is given back.
pub(crate) async fn turn(shared: &Arc<Shared>, claim: &Claim) -> Result<Grant, Error> {
    let place = shared.place(claim.name());
    let mut closed = shared.closed.subscribe();
    tokio::select! {
        biased;
        _ = closed.wait_for(|closed| *closed) => {}
        answer = wait(shared, claim, &place) => {
            match answer.map_err(|problem| problem.into_error(Operation::Wait, Some(claim.name())))? {
                Some(grant) => return Ok(grant),
                None => shared.refuse_when_closed(Operation::Wait, claim.name())?,
            }
        }
    }
    let error = Error::new(ErrorKind::Closed, Operation::Wait, "the place in the queue was given back");
    Err(error.not_applied().on_lock(claim.name()).in_store(STORE))
}

/// `None` when the claim has no place in the queue any more.
async fn wait(shared: &Arc<Shared>, claim: &Claim, place: &Place) -> Outcome<Option<Grant>> {
    let mut watched = None;
    while let Some(number) = shared.ticket_number(claim.owner()) {
        let ahead = if was_served(place, watched.take())? { None } else { queue::before(place, number)? };
        match ahead {
            None => {
                if let Some(grant) = at_head(shared, claim, place).await? {
                    return Ok(Some(grant));
                }
            }
            Some(ahead) => {
                let watch = FileWatch::new(&ahead.ticket);
                watched = ahead.owner;
                if queue::lives(&ahead.ticket)? {
                    tokio::select! {
                        () = watch.event() => {}
                        () = clock::sleep(&BootClock, BACKSTOP_BEHIND) => {}
                    }
                }
            }
        }
    }
    Ok(shared.granted(claim.owner()))
}

/// Whether the last who was granted the lock is `waiter`: then nobody is left who came before him.
fn was_served(place: &Place, waiter: Option<Owner>) -> Outcome<bool> {
    let Some(waiter) = waiter else { return Ok(false) };
    let Some(lock) = LockFile::open_to_read(&place.file)? else { return Ok(false) };
    Ok(lock.recorded(&place.file)?.is_some_and(|holder| holder.owner == Some(waiter)))
}

/// Tries, and tries again whenever something happens to the lock's file, which stays open meanwhile: closing it would
/// be such an event. `None` when the file was replaced or the place in the queue given back.
async fn at_head(shared: &Arc<Shared>, claim: &Claim, place: &Place) -> Outcome<Option<Grant>> {
    let claimant = shared.claimant_json(&claim.claimant);
    let alone = claim.holding.wants()[0].mode == Mode::Exclusive;
    let lock = LockFile::open(&shared.directory, place)?;
    let watch = FileWatch::new(&place.file);
    // Of those who hold it beside each other, where there are any.
    let mut seats: Option<FileWatch> = None;
    let mut tries = &SOON[..1];
    loop {
        for pause in tries {
            if !pause.is_zero() {
                clock::sleep(&BootClock, *pause).await;
            }
            // Given back while we slept: a grant now would be nobody's.
            if shared.ticket_number(claim.owner()).is_none() {
                return Ok(None);
            }
            if !alone {
                let turn = shared.turn_at_gate(place).await;
                let tried = shared.persist(|| shared.sit(claim, place, Comes::FromTheQueue)).await?;
                drop(turn);
                match tried {
                    Tried::Busy(_) => continue,
                    Tried::Seated(Seated { seat, inode, grant, removals }) => {
                        let keeps = Keeps::Beside(seat);
                        return Ok(shared.hold_from_queue(claim, place, keeps, inode, grant, removals));
                    }
                }
            }
            let tried = shared.persist(|| {
                let (removals, sent) = (shared.removals(), Sent::now(&*shared.clock));
                let tried = lock.try_take(&shared.directory, place, shared.taker(claim, &claimant))?;
                Ok((tried, removals, sent))
            });
            match tried.await? {
                (lockfile::Tried::Held, ..) => {}
                (lockfile::Tried::Seated(holder), ..) => refuse_beside_permits(holder.mode)?,
                (lockfile::Tried::Stale, ..) => return Ok(None),
                (lockfile::Tried::Taken { fence, inode, .. }, removals, sent) => {
                    let grant = Grant::new(sent, None, Some(fence));
                    return Ok(shared.hold_from_queue(claim, place, Keeps::Alone(lock), inode, grant, removals));
                }
            }
        }
        // Watched first and looked at again then: a seat that was given up in between makes no event (W1).
        if seats.is_none() && place.seats().exists() {
            seats = Some(FileWatch::of_seats(&place.seats()));
            tries = &SOON[..1];
            continue;
        }
        let seat_given_up = async {
            match &seats {
                Some(seats) => seats.event().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = watch.event() => tries = &SOON,
            () = seat_given_up => tries = &SOON,
            () = clock::sleep(&BootClock, BACKSTOP) => tries = &SOON[..1],
        }
        // The directory may have gone with the last who sat there, and come again with others.
        seats = None;
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use fencepost_core::{
        claim::{Claimant, Claimed, Holding, Patience},
        limits::Ttl,
        name::{LockName, Namespace},
        store::Store,
    };

    use crate::{DirectoryConfig, DirectoryStore, watch};

    use super::*;

    #[tokio::test]
    async fn c1_a_dropped_wait_leaves_no_watch() {
        let directory = tempfile::tempdir().unwrap();
        let config = DirectoryConfig::new(directory.path());
        let store = DirectoryStore::open(config, &Namespace::default(), BootClock::shared()).unwrap();
        let claim = || Claim {
            holding: Holding::exclusive(LockName::new("x").unwrap(), Owner::random().unwrap()),
            ttl: Ttl::DEFAULT,
            claimant: Arc::new(Claimant::here()),
        };
        let held = claim();
        store.claim(&held, Patience::Once).await.unwrap();
        for _ in 0..20 {
            let waiter = claim();
            assert!(matches!(store.claim(&waiter, Patience::Queue).await.unwrap(), Claimed::Queued(_)));
            tokio::select! {
                biased;
                answer = store.turn(&waiter) => panic!("{answer:?}"),
                () = tokio::task::yield_now() => {}
            }
        }
        store.close().await;
        assert_eq!(watch::listening(), 0);
    }
}

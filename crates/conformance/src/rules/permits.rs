//! Semaphores: how many permits there are, who gets them next, and which slots they are.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

use fencepost::{Attempt, Efficiency, ErrorKind, Lease, hold::Counted};
use fencepost_core::{
    claim::{Claim, Claimed, Mode, Patience, Release},
    clock::{BootClock, sleep},
};
use tokio::task::JoinSet;

use crate::{
    holder::Holder,
    site::{DoesNotApply, Site, Verdict},
    steps::{
        LONG, SHORT, SOON, claim, claim_as, granted, issues_fences, locks, ms, name, nothing_left, queued, store,
        within,
    },
};

fn counts(site: &dyn Site) -> Verdict {
    site.capabilities().permits.then_some(()).ok_or(DoesNotApply("the store has no permits"))
}

fn permits(count: u32, of: u32) -> Arc<Claim> {
    claim_as("s", LONG, Mode::Permits { count, of })
}

/// More were let in than there are permits. Source: redisson 2045.
pub async fn the_count_never_exceeds_the_limit(site: &dyn Site) -> Verdict {
    counts(site)?;
    let (inside, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let slots = Arc::new(Mutex::new(HashMap::<u32, u32>::new()));
    let mut crowd = JoinSet::new();
    for task in 0..12_u32 {
        let (locks, inside, most, slots) = (locks(site).await, inside.clone(), most.clone(), slots.clone());
        crowd.spawn(async move {
            for turn in 0..8 {
                let count = 1 + (task + turn) % 2;
                let mut lease = held(locks.semaphore("s", 3).permits(count).ttl(LONG).acquire().await);
                assert_eq!(lease.slots().len(), count as usize);
                let now = inside.fetch_add(count, Ordering::SeqCst) + count;
                most.fetch_max(now, Ordering::SeqCst);
                enter(&slots, lease.slots(), task);
                tokio::time::sleep(ms(1)).await;
                leave(&slots, lease.slots());
                inside.fetch_sub(count, Ordering::SeqCst);
                lease.release().await.expect("a release");
            }
        });
    }
    within(LONG, "everybody is served", crowd.join_all()).await;
    assert_eq!(most.load(Ordering::SeqCst), 3, "all permits were used, and no more");
    nothing_left(site, SOON).await;
    return Ok(());

    fn enter(slots: &Mutex<HashMap<u32, u32>>, taken: &[u32], task: u32) {
        let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in taken {
            assert!(*slot < 3, "slot {slot} of 3");
            assert_eq!(slots.insert(*slot, task), None, "slot {slot} has two holders");
        }
    }

    fn leave(slots: &Mutex<HashMap<u32, u32>>, taken: &[u32]) {
        let mut slots = slots.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in taken {
            slots.remove(slot);
        }
    }
}

/// Source: redisson 2045, 4462.
pub async fn w1_a_dead_holders_permit_comes_back(site: &dyn Site) -> Verdict {
    counts(site)?;
    site.apart()?;
    let (mut dead, locks) = (Holder::start(site).await, locks(site).await);
    dead.acquire_as("s", SHORT, Mode::Permits { count: 2, of: 3 }).await;
    let semaphore = locks.semaphore("s", 3);
    let mut one = held(semaphore.permits(1).ttl(LONG).acquire().await);
    let busy = semaphore.permits(1).wait(ms(0)).acquire().await.expect("an answer");
    assert!(matches!(busy, Attempt::Busy(_)));
    dead.kill();
    let waited = within(SHORT + SOON, "the permits come back", semaphore.permits(2).ttl(LONG).acquire()).await;
    let mut two = held(waited);
    let busy = semaphore.permits(1).wait(ms(0)).acquire().await.expect("an answer");
    assert!(matches!(busy, Attempt::Busy(_)), "and not more than there were");
    one.release().await.expect("a release");
    two.release().await.expect("a release");
    Ok(())
}

/// Where grants expire, its permits go on to the next; where they do not, they stay.
pub async fn l1_a_paused_holder_of_a_permit_finds_out_at_its_first_look(site: &dyn Site) -> Verdict {
    counts(site)?;
    site.apart()?;
    let (mut paused, locks) = (Holder::start(site).await, locks(site).await);
    paused.acquire_as("s", SHORT, Mode::Permits { count: 2, of: 3 }).await;
    paused.pause();
    let semaphore = locks.semaphore("s", 3);
    if site.capabilities().expires {
        let three = within(SHORT + SOON, "the permits come back", semaphore.permits(3).ttl(LONG).acquire()).await;
        held(three).check().expect("they are ours now");
        assert_eq!(paused.look_after_resuming("s").await, Some("Expired".to_owned()));
        assert_eq!(paused.lost("s").await, "Expired");
    } else {
        sleep(&BootClock, SHORT).await;
        let busy = semaphore.permits(2).wait(ms(0)).acquire().await.expect("an answer");
        assert!(matches!(busy, Attempt::Busy(_)), "a stopped process still has them");
        assert_eq!(paused.look_after_resuming("s").await, None);
    }
    Ok(())
}

pub async fn w3_one_that_waits_for_two_is_not_passed(site: &dyn Site) -> Verdict {
    counts(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let holders = [permits(1, 3), permits(1, 3), permits(1, 3)];
    for holder in &holders {
        granted(&a, holder).await;
    }
    let (two, one) = (permits(2, 3), permits(1, 3));
    queued(&b, &two).await;
    queued(&a, &one).await;
    a.release(&holders[0].holding).await.expect("a release");
    assert!(
        matches!(a.claim(&permits(1, 3), Patience::Once).await, Ok(Claimed::Busy(_))),
        "one is free, for the first"
    );
    a.release(&holders[1].holding).await.expect("a release");
    let grant = within(SOON, "two are free", b.turn(&two)).await.expect("a grant");
    assert_eq!(grant.slots.len(), 2);
    a.release(&holders[2].holding).await.expect("a release");
    within(SOON, "then the next", a.turn(&one)).await.expect("a grant");
    Ok(())
}

/// Source: redisson 4678; DistributedLock leaves it undefined.
pub async fn a_differing_limit_is_refused(site: &dyn Site) -> Verdict {
    counts(site)?;
    let store = store(site).await;
    let holder = permits(1, 3);
    granted(&store, &holder).await;
    for patience in [Patience::Once, Patience::Queue] {
        let refused = store.claim(&permits(1, 4), patience).await.expect_err("another limit");
        assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
        assert!(refused.advice().is_some());
    }
    granted(&store, &permits(2, 3)).await;
    Ok(())
}

pub async fn a_name_is_a_lock_or_a_semaphore(site: &dyn Site) -> Verdict {
    counts(site)?;
    let store = store(site).await;
    let (semaphore, lock) = (permits(1, 3), claim("x", LONG));
    granted(&store, &semaphore).await;
    granted(&store, &lock).await;
    let refused = store.claim(&claim("s", LONG), Patience::Queue).await.expect_err("it is a semaphore");
    assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
    let refused = store.claim(&claim_as("x", LONG, Mode::Permits { count: 1, of: 3 }), Patience::Queue).await;
    assert_eq!(refused.expect_err("it is a lock").kind(), ErrorKind::Mismatch);
    assert_eq!(store.release(&semaphore.holding).await.expect("a release"), Release::Released);
    granted(&store, &claim("s", LONG)).await;
    Ok(())
}

pub async fn the_limit_is_changed_on_purpose_only(site: &dyn Site) -> Verdict {
    counts(site)?;
    let store = store(site).await;
    let holders = [permits(1, 2), permits(1, 2)];
    assert_eq!(store.resize(&name("s"), 5).await.expect("an answer"), None, "nobody uses it");
    for holder in &holders {
        granted(&store, holder).await;
    }
    assert_eq!(store.resize(&name("s"), 1).await.expect("an answer"), Some(2));
    store.release(&holders[0].holding).await.expect("a release");
    assert!(matches!(store.claim(&permits(1, 1), Patience::Once).await, Ok(Claimed::Busy(_))), "one of one is held");
    assert_eq!(store.resize(&name("s"), 3).await.expect("an answer"), Some(1));
    granted(&store, &permits(2, 3)).await;
    let refused = store.resize(&name("s"), 0).await.expect_err("no semaphore");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    Ok(())
}

pub async fn the_number_of_permits_makes_sense(site: &dyn Site) -> Verdict {
    counts(site)?;
    let semaphore = locks(site).await.semaphore("s", 3);
    for count in [0, 4, u32::MAX] {
        let refused = semaphore.permits(count).acquire().await.expect_err("not to be had");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn f3_each_slots_fences_rise(site: &dyn Site) -> Verdict {
    counts(site)?;
    issues_fences(site)?;
    let store = store(site).await;
    let mut seen = HashMap::new();
    for round in 0..12_u32 {
        let claim = permits(1 + round % 3, 3);
        let grant = granted(&store, &claim).await;
        for slot in grant.slots.iter() {
            let before = seen.insert(*slot, grant.fence);
            assert!(before.is_none_or(|before| before < grant.fence), "slot {slot}: {before:?}, {:?}", grant.fence);
        }
        store.release(&claim.holding).await.expect("a release");
    }
    assert_eq!(seen.len(), 3);
    Ok(())
}

fn held(outcome: Result<Attempt<Lease<Efficiency, Counted>>, fencepost::Error>) -> Lease<Efficiency, Counted> {
    outcome.expect("an answer").acquired().expect("it must be granted")
}

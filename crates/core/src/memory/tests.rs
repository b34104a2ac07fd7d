use super::*;
use crate::{
    cells::{Change, Changed, Expected},
    claim::{Claimant, Mode, Want},
    clock::ManualClock,
    limits::Ttl,
};

const TTL: Duration = Duration::from_secs(10);

fn claim_of(wants: Vec<Want>) -> Claim {
    let holding = Holding::several(wants, Owner::random().unwrap()).unwrap();
    Claim { holding, ttl: Ttl::new(TTL).unwrap(), claimant: Arc::new(Claimant::here()) }
}

fn want(name: &str, mode: Mode) -> Want {
    Want { name: LockName::new(name).unwrap(), mode }
}

fn exclusive(name: &str) -> Claim {
    claim_of(vec![want(name, Mode::Exclusive)])
}

fn shared(name: &str) -> Claim {
    claim_of(vec![want(name, Mode::Shared)])
}

fn space() -> (ManualClock, MemorySpace) {
    let clock = ManualClock::new();
    (clock.clone(), MemorySpace::with_clock(Arc::new(clock)))
}

async fn granted(store: &MemoryStore, claim: &Claim) -> Grant {
    match store.claim(claim, Patience::Once).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn queued(store: &MemoryStore, claim: &Claim) {
    assert!(matches!(store.claim(claim, Patience::Queue).await.unwrap(), Claimed::Queued(_)));
}

#[tokio::test]
async fn t2_expiry_is_judged_by_the_clock_of_the_space() {
    let (clock, space) = space();
    let (a, b) = (space.client(), space.client());
    let (mine, next) = (exclusive("x"), exclusive("x"));
    granted(&a, &mine).await;
    clock.advance(TTL - Duration::from_nanos(1));
    assert!(matches!(b.claim(&next, Patience::Once).await.unwrap(), Claimed::Busy(_)));
    clock.advance(Duration::from_nanos(1));
    granted(&b, &next).await;
    assert_eq!(a.release(&mine.holding).await.unwrap(), Release::HeldByOther);
    assert_eq!(
        a.renew(&[Arc::new(mine)]).await.pop().unwrap().unwrap(),
        Renewal::Lost(LossReason::TakenOver),
        "a renewal of what another holds must say so"
    );
}

#[tokio::test]
async fn o2_a_renewal_creates_nothing() {
    let (clock, space) = space();
    let store = space.client();
    let claim = Arc::new(exclusive("x"));
    granted(&store, &claim).await;
    clock.advance(TTL);
    let answer = store.renew(std::slice::from_ref(&claim)).await.pop().unwrap().unwrap();
    assert_eq!((answer, space.records()), (Renewal::Lost(LossReason::Expired), 0));
}

#[tokio::test]
async fn w1_an_offer_that_nobody_confirms_passes_to_the_next() {
    let (clock, space) = space();
    let store = space.client();
    let (holder, dead, live) = (exclusive("x"), exclusive("x"), exclusive("x"));
    granted(&store, &holder).await;
    queued(&store, &dead).await;
    queued(&store, &live).await;
    assert_eq!(store.release(&holder.holding).await.unwrap(), Release::Released);
    let mut turn = store.turn(&live);
    assert!(std::future::poll_fn(|context| std::task::Poll::Ready(turn.as_mut().poll(context).is_pending())).await);
    clock.advance(CONFIRM_WITHIN);
    assert_eq!(turn.await.unwrap().fence.map(Fence::get), Some(3));
    assert_eq!(store.turn(&dead).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn w2_readers_share_and_a_writer_keeps_its_place() {
    let (_, space) = space();
    let store = space.client();
    let (first, second, writer, late) = (shared("x"), shared("x"), exclusive("x"), shared("x"));
    assert_eq!(granted(&store, &first).await.fence, None, "readers never advance a fence (F3)");
    granted(&store, &second).await;
    queued(&store, &writer).await;
    queued(&store, &late).await;
    store.release(&first.holding).await.unwrap();
    store.release(&second.holding).await.unwrap();
    assert_eq!(store.turn(&writer).await.unwrap().fence.map(Fence::get), Some(1));
    store.release(&writer.holding).await.unwrap();
    assert_eq!(store.turn(&late).await.unwrap().fence.map(Fence::get), Some(1));
}

#[tokio::test]
async fn several_locks_are_claimed_all_or_nothing() {
    let (_, space) = space();
    let store = space.client();
    let a = exclusive("a");
    let both = claim_of(vec![want("b", Mode::Exclusive), want("a", Mode::Exclusive)]);
    let b = exclusive("b");
    granted(&store, &a).await;
    assert!(matches!(store.claim(&both, Patience::Once).await.unwrap(), Claimed::Busy(_)));
    granted(&store, &b).await;
    queued(&store, &both).await;
    store.release(&b.holding).await.unwrap();
    store.release(&a.holding).await.unwrap();
    store.turn(&both).await.unwrap();
    assert_eq!(store.inspect(None).await.unwrap().len(), 2);
}

#[tokio::test]
async fn f4_a_fence_survives_release_force_and_deletion() {
    let (_, space) = space();
    let store = space.client();
    let (reporter, mut losses) = LossReporter::channel();
    store.report_losses(reporter);
    let name = LockName::new("x").unwrap();
    for round in 0..3 {
        let claim = exclusive("x");
        assert_eq!(granted(&store, &claim).await.fence.map(Fence::get), Some(round + 1));
        match round {
            0 => assert_eq!(store.release(&claim.holding).await.unwrap(), Release::Released),
            1 => assert!(matches!(store.force(&name, Fence::new(2)).await.unwrap(), Forced::Broken(Some(_)))),
            _ => space.delete(&name),
        }
        if round > 0 {
            assert_eq!(losses.recv().await, Some((*claim.owner(), LossReason::Deleted)));
        }
    }
    assert_eq!(store.force(&name, None).await.unwrap(), Forced::NotHeld);
    assert_eq!(granted(&store, &exclusive("x")).await.fence.map(Fence::get), Some(4));
}

fn permits(name: &str, count: u32, of: u32) -> Claim {
    claim_of(vec![want(name, Mode::Permits { count, of })])
}

/// DistributedLock leaves differing limits undefined; redisson 4678.
#[tokio::test]
async fn a_name_in_use_has_one_kind_and_one_limit() {
    let (_, space) = space();
    let store = space.client();
    let (lock, semaphore) = (exclusive("lock"), permits("sem", 1, 3));
    granted(&store, &lock).await;
    granted(&store, &semaphore).await;
    for (claim, kind) in [
        (permits("lock", 1, 3), ErrorKind::Mismatch),
        (exclusive("sem"), ErrorKind::Mismatch),
        (shared("sem"), ErrorKind::Mismatch),
        (permits("sem", 1, 4), ErrorKind::Mismatch),
        (permits("sem", 4, 3), ErrorKind::InvalidInput),
        (permits("sem", 0, 3), ErrorKind::InvalidInput),
    ] {
        let refused = store.claim(&claim, Patience::Queue).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
    }
    store.release(&semaphore.holding).await.unwrap();
    granted(&store, &exclusive("sem")).await; // nobody uses it any more
}

#[tokio::test]
async fn w3_a_waiter_for_two_is_served_before_one_behind_it() {
    let (_, space) = space();
    let store = space.client();
    let holders: Vec<_> = (0..3).map(|_| permits("s", 1, 3)).collect();
    for holder in &holders {
        granted(&store, holder).await;
    }
    let (two, one) = (permits("s", 2, 3), permits("s", 1, 3));
    queued(&store, &two).await;
    queued(&store, &one).await;
    store.release(&holders[1].holding).await.unwrap();
    assert!(matches!(store.claim(&one, Patience::Queue).await.unwrap(), Claimed::Queued(_)), "no barging");
    store.release(&holders[0].holding).await.unwrap();
    let grant = store.turn(&two).await.unwrap();
    assert_eq!(&*grant.slots, [0, 1]);
    store.release(&holders[2].holding).await.unwrap();
    let later = store.turn(&one).await.unwrap();
    assert_eq!(&*later.slots, [2]);
    assert!(later.fence > grant.fence);
}

#[tokio::test]
async fn a_limit_that_shrinks_takes_nothing_away() {
    let (_, space) = space();
    let store = space.client();
    assert_eq!(store.resize(&LockName::new("s").unwrap(), 5).await.unwrap(), None, "nobody uses it");
    let holders = [permits("s", 2, 3), permits("s", 1, 3)];
    for holder in &holders {
        granted(&store, holder).await;
    }
    let waiting = permits("s", 2, 3);
    queued(&store, &waiting).await;
    assert_eq!(store.resize(&LockName::new("s").unwrap(), 1).await.unwrap(), Some(3));
    assert!(store.turn(&waiting).await.is_err(), "two of one are not to be had");
    let next = permits("s", 1, 1);
    queued(&store, &next).await;
    store.release(&holders[0].holding).await.unwrap();
    assert!(matches!(store.claim(&next, Patience::Queue).await.unwrap(), Claimed::Queued(_)));
    store.release(&holders[1].holding).await.unwrap();
    assert_eq!(&*store.turn(&next).await.unwrap().slots, [0]);
}

#[tokio::test]
async fn a_writer_becomes_a_reader_without_a_gap() {
    let (_, space) = space();
    let store = space.client();
    let writer = exclusive("x");
    let fence = granted(&store, &writer).await.fence;
    let (reader, next) = (shared("x"), exclusive("x"));
    queued(&store, &reader).await;
    queued(&store, &next).await;
    assert!(matches!(store.downgrade(&writer).await.unwrap(), Renewal::Renewed { .. }));
    assert_eq!(store.turn(&reader).await.unwrap().fence, fence, "a reader carries the last writer's fence (F3)");
    assert!(matches!(store.claim(&next, Patience::Queue).await.unwrap(), Claimed::Queued(_)));
    store.release(&writer.holding).await.unwrap();
    store.release(&reader.holding).await.unwrap();
    assert!(store.turn(&next).await.unwrap().fence > fence);
    assert!(matches!(store.downgrade(&writer).await.unwrap(), Renewal::Lost(LossReason::TakenOver)));
}

#[tokio::test]
async fn a_cell_changes_on_condition_of_its_version() {
    let (clock, space) = space();
    let key = LockName::new("leader").unwrap();
    let change = |expected, value: &[u8]| Change::write(key.clone(), expected, value).unwrap();
    let first = change(Expected::Absent, b"a").expiring(Ttl::new(TTL).unwrap());
    let Changed::Done(version) = space.change(&first).await.unwrap() else { panic!("nothing was there") };
    assert_eq!(space.change(&first).await.unwrap(), Changed::Done(version), "a repeat answers as the first");
    let other = change(Expected::Absent, b"b");
    assert!(matches!(space.change(&other).await.unwrap(), Changed::Conflict(Some(cell)) if cell.by == first.by));
    clock.advance(TTL);
    assert_eq!(space.read(&key).await.unwrap(), None);
    let Changed::Done(later) = space.change(&other).await.unwrap() else { panic!("it has expired") };
    assert!(later > version, "no version comes twice");
    assert!(matches!(space.change(&first).await.unwrap(), Changed::Conflict(_)));
    space.changed(&key, Some(version)).await.unwrap();
    let removal = Change::remove(key.clone(), later).unwrap();
    let (told, removed) = tokio::join!(space.changed(&key, Some(later)), space.change(&removal));
    assert_eq!((told.unwrap(), removed.unwrap()), ((), Changed::Done(later)));
    assert_eq!(space.change(&removal).await.unwrap(), Changed::Conflict(None));
}

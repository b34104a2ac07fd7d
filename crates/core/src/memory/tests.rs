use super::*;
use crate::{
    claim::{Claimant, Want},
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

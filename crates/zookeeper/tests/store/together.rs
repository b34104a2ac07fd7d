//! Readers and permits: what they leave in the ensemble, and what happens when somebody interferes there.

use fencepost_core::{
    claim::{Forced, Mode, Release, Renewal, Want},
    error::ErrorKind,
    fence::Fence,
};

use super::*;

fn wanting(mode: Mode) -> Arc<Claim> {
    let holding = Holding::one(Want { name: name("x"), mode }, Owner::random().unwrap());
    Arc::new(Claim { holding, ttl: Ttl::new(LONG).unwrap(), claimant: Arc::new(Claimant::here()) })
}

fn reader() -> Arc<Claim> {
    wanting(Mode::Shared)
}

fn writer() -> Arc<Claim> {
    wanting(Mode::Exclusive)
}

fn permits(count: u32, of: u32) -> Arc<Claim> {
    wanting(Mode::Permits { count, of })
}

async fn passed(store: &ZooKeeperStore, claim: &Claim) -> Option<Fence> {
    let grant = granted(store, claim).await;
    assert_eq!(store.release(&claim.holding).await.unwrap(), Release::Released);
    grant.fence
}

/// Requests that a server whose figures are nobody else's received for `work`.
async fn requests(server: &ZooKeeperServer, work: impl Future) -> f64 {
    let before = received(server).await;
    work.await;
    received(server).await - before
}

/// Waits until nobody is on the way to its place any more.
async fn settled(server: &ZooKeeperServer) {
    let quiet = async || requests(server, tokio::time::sleep(ms(100))).await <= 1.0;
    eventually(SOON * 2, "everybody has a place", quiet).await;
}

/// As docs/stores/zookeeper.md has it. Readers must not make locks dearer that nobody reads.
#[tokio::test]
async fn what_each_of_them_asks_for() {
    let server = ZooKeeperServer::start();
    let store = open(&server.url()).await.unwrap();
    let ten = async |claim: fn() -> Arc<Claim>| {
        passed(&store, &claim()).await;
        let passes = async {
            for _ in 0..10 {
                passed(&store, &claim()).await;
            }
        };
        requests(&server, passes).await
    };
    // Heartbeats may come between.
    let asked = ten(writer).await;
    assert!((30.0..=38.0).contains(&asked), "a creation, a look, a deletion: {asked}");
    let asked = ten(|| permits(2, 3)).await;
    assert!((50.0..=58.0).contains(&asked), "a look at the slots and the grant besides: {asked}");
    let asked = ten(reader).await;
    assert!((40.0..=48.0).contains(&asked), "a look at the notes besides: {asked}");
    let asked = ten(writer).await;
    assert!((40.0..=48.0).contains(&asked), "where somebody reads, the fence is noted besides: {asked}");
}

/// The first reader of a lock comes after writers of whom nothing is left; from then on every writer leaves its fence.
#[tokio::test]
async fn f3_a_reader_carries_the_last_writers_fence_whatever_became_of_that_one() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let unread = passed(&a, &writer()).await;
    let first = passed(&b, &reader()).await;
    assert!(unread <= first && first == passed(&a, &reader()).await, "{unread:?} {first:?}");
    let gone = granted(&a, &writer()).await.fence;
    a.force(&name("x"), None).await.unwrap();
    assert!(gone > first);
    assert_eq!(passed(&b, &reader()).await, gone, "of one that was broken");
    let (holder, busy) = (writer(), writer());
    let held = granted(&a, &holder).await.fence;
    assert!(matches!(b.claim(&busy, Patience::Once).await, Ok(Claimed::Busy(_))));
    a.release(&holder.holding).await.unwrap();
    assert_eq!(passed(&b, &reader()).await, held, "and not of one that never held");
}

/// A writer that had come before the first reader does not know of the mark.
#[tokio::test]
async fn f3_a_reader_that_waited_has_seen_the_writers_fence() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (holder, next, waiting) = (writer(), writer(), [reader(), reader()]);
    granted(&a, &holder).await;
    queued(&b, &next).await;
    queued(&a, &waiting[0]).await;
    queued(&b, &waiting[1]).await;
    let turns = async { tokio::join!(a.turn(&waiting[0]), b.turn(&waiting[1])) };
    let second = async {
        a.release(&holder.holding).await.unwrap();
        let fence = b.turn(&next).await.unwrap().fence;
        b.release(&next.holding).await.unwrap();
        fence
    };
    let ((one, two), second) = within(SOON, "all get their turns", async { tokio::join!(turns, second) }).await;
    assert_eq!([one.unwrap().fence, two.unwrap().fence], [second; 2]);
    assert_eq!(passed(&a, &reader()).await, second, "and leaves it for those who come later");
    assert_eq!(b.inspect(None).await.unwrap()[0].holders[0].fence, second, "as listings show");
}

/// The one right before it leaves first, and another who came earlier still reads.
#[tokio::test]
async fn w3_a_writer_waits_for_every_reader_before_it() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (before, first, second, behind) = (writer(), reader(), reader(), writer());
    granted(&b, &before).await;
    queued(&b, &first).await;
    queued(&a, &second).await;
    queued(&a, &behind).await;
    b.release(&before.holding).await.unwrap();
    for (store, reader) in [(&b, &first), (&a, &second)] {
        within(SOON, "both come in", store.turn(reader)).await.unwrap();
    }
    let turn = a.turn(&behind);
    tokio::pin!(turn);
    let too_early = async {
        a.release(&second.holding).await.unwrap();
        tokio::time::sleep(ms(200)).await;
    };
    tokio::select! {
        biased;
        granted = &mut turn => panic!("the first reader still reads: {granted:?}"),
        () = too_early => {}
    }
    b.release(&first.holding).await.unwrap();
    within(SOON, "all of them are gone", turn).await.unwrap();
}

/// The container goes a minute after the last claim, and what was noted there with it.
#[tokio::test]
async fn f3_what_is_forgotten_with_the_container_never_goes_back() {
    let place = Place::new();
    let store = place.store().await;
    passed(&store, &reader()).await;
    let before = passed(&store, &writer()).await;
    place.admin.delete_all(&place.lock("x"));
    let forgotten = passed(&store, &reader()).await;
    assert!(forgotten > before);
    assert!(passed(&store, &writer()).await > forgotten);
}

/// What a later version makes of a lock can mean anything, so that it must not be passed over.
#[tokio::test]
async fn c4_a_claim_of_a_kind_that_is_not_known_is_refused() {
    let place = Place::new();
    let store = place.store().await;
    passed(&store, &writer()).await;
    place.admin.create_ephemeral(&format!("{}/{}-y7-0000000000", place.lock("x"), "a".repeat(40)), b"{}").unwrap();
    for claim in [writer(), reader(), permits(1, 2)] {
        let refused = store.claim(&claim, Patience::Queue).await.expect_err("what is it?");
        assert_eq!(refused.kind(), ErrorKind::ForeignValue, "{refused}");
        assert!(refused.to_string().contains("-y7-") && refused.advice().is_some(), "it names the node: {refused}");
    }
    assert_eq!(place.nodes("x").len(), 1, "and nothing stays behind: {:?}", place.nodes("x"));
}

#[tokio::test]
async fn what_a_mutex_of_curator_does_not_know_is_refused() {
    let place = Place::new();
    let store = open(&format!("{}?recipe=curator", place.url())).await.unwrap();
    assert!(!store.capabilities().shared && !store.capabilities().permits);
    for claim in [reader(), permits(1, 2)] {
        let refused = store.claim(&claim, Patience::Once).await.expect_err("there is no such node");
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    }
}

/// Everything of a broken semaphore goes, and whoever waits comes in.
#[tokio::test]
async fn l4_all_permits_of_a_broken_semaphore_come_back() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let mut told = losses(&a);
    let (holders, waiter) = ([permits(1, 3), permits(2, 3)], permits(3, 3));
    for holder in &holders {
        granted(&a, holder).await;
    }
    queued(&b, &waiter).await;
    assert!(matches!(b.force(&name("x"), None).await.unwrap(), Forced::Broken(Some(_))));
    for _ in &holders {
        let (owner, _) = within(SOON, "both are told", told.recv()).await.unwrap();
        assert!(holders.iter().any(|holder| *holder.owner() == owner));
    }
    assert_eq!(*within(SOON, "three are free", b.turn(&waiter)).await.unwrap().slots, [0, 1, 2]);
    assert!(matches!(&a.renew(&holders[..1]).await[0], Ok(Renewal::Lost(_))));
}

/// A node in the queue that was deleted by hand takes no permit with it: that one must not stay taken for ever.
#[tokio::test]
async fn a_permit_whose_node_in_the_queue_is_gone_comes_back() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let mut told = losses(&a);
    // The holder gives them back before it hears of it, or after that.
    for hears in [false, true] {
        let holder = permits(2, 2);
        granted(&a, &holder).await;
        if hears {
            tokio::time::sleep(ms(100)).await; // it watches its node, and hears at once
        }
        let node = place.nodes("x").into_iter().find(|node| node.contains("-p2of2-")).expect("its node");
        place.admin.delete(&format!("{}/{node}", place.lock("x"))).unwrap();
        if hears {
            within(SOON, "it is told", told.recv()).await.unwrap();
        }
        assert!(matches!(b.claim(&permits(1, 2), Patience::Once).await, Ok(Claimed::Busy(_))), "the slots are taken");
        let waiter = permits(2, 2);
        queued(&b, &waiter).await;
        a.release(&holder.holding).await.unwrap();
        within(SOON, "they come back", b.turn(&waiter)).await.unwrap();
        b.release(&waiter.holding).await.unwrap();
    }
}

/// A slot that was deleted by hand does not keep the others of its claim taken.
#[tokio::test]
async fn permits_come_back_beside_one_that_was_deleted() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (holder, waiter) = (permits(2, 2), permits(2, 2));
    granted(&a, &holder).await;
    place.admin.delete(&format!("{}/slots/0", place.lock("x"))).unwrap();
    queued(&b, &waiter).await;
    assert_eq!(a.release(&holder.holding).await.unwrap(), Release::Released);
    within(SOON, "both are free", b.turn(&waiter)).await.unwrap();
}

/// A release of one wakes the first who waits, and nobody else.
#[tokio::test]
async fn w2_a_permit_that_comes_back_wakes_one() {
    let server = ZooKeeperServer::start();
    let store = Arc::new(open(&server.url()).await.unwrap());
    let holders: Vec<_> = (0..5).map(|_| permits(1, 5)).collect();
    for holder in &holders {
        granted(&store, holder).await;
    }
    let mut turns = tokio::task::JoinSet::new();
    for _ in 0..30 {
        let waiter = permits(1, 5);
        queued(&store, &waiter).await;
        let store = store.clone();
        turns.spawn(async move { store.turn(&waiter).await });
    }
    settled(&server).await;
    let handed = async {
        store.release(&holders[0].holding).await.unwrap();
        within(SOON, "one comes in", turns.join_next()).await.unwrap().unwrap().unwrap();
        tokio::time::sleep(ms(100)).await;
    };
    let asked = requests(&server, handed).await;
    assert!(asked <= 12.0, "a release, a look, a grant, and the next one takes its place: {asked}");
    assert!(turns.try_join_next().is_none());
}

/// Whoever waits hears of a change of the limit, and one who wants more than there are goes out of the others' way.
#[tokio::test]
async fn a_change_of_the_limit_reaches_those_who_wait() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (holder, all, one) = (permits(2, 2), permits(2, 2), permits(1, 2));
    granted(&a, &holder).await;
    queued(&b, &all).await;
    queued(&b, &one).await;
    let turn = async {
        let lost = within(SOON, "two are more than there are", b.turn(&all)).await.expect_err("only one is left");
        assert_eq!(lost.kind(), ErrorKind::Unavailable, "{lost}");
    };
    let resize = async { assert_eq!(a.resize(&name("x"), 1).await.unwrap(), Some(2)) };
    tokio::join!(turn, resize);
    let refused = b.claim(&all, Patience::Queue).await.expect_err("another limit");
    assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
    let x = name("x");
    let (turn, resized) = tokio::join!(within(SOON, "the third", b.turn(&one)), a.resize(&x, 3));
    assert_eq!((&*turn.unwrap().slots, resized.unwrap()), (&[2][..], Some(1)));
    // The change outlives those who were there when it was made.
    a.release(&holder.holding).await.unwrap();
    let next = permits(1, 3);
    granted(&a, &next).await;
    b.release(&one.holding).await.unwrap();
    assert_eq!(a.resize(&name("x"), 3).await.unwrap(), Some(3));
    a.release(&next.holding).await.unwrap();
    assert_eq!(granted(&b, &permits(7, 7)).await.slots.len(), 7, "a semaphore that nobody uses has no limit");
}

/// A limit of former users counts for nobody, also where the first of the present ones leaves while it is looked at.
#[tokio::test]
async fn a_limit_that_nobody_is_left_of_never_comes_back() {
    let place = Place::new();
    let stores = [place.store().await, place.store().await, place.store().await];
    let former = permits(1, 5);
    granted(&stores[0], &former).await;
    assert_eq!(stores[0].resize(&name("x"), 2).await.unwrap(), Some(5));
    stores[0].release(&former.holding).await.unwrap();
    let use_it = async |store: &ZooKeeperStore| {
        for _ in 0..150 {
            passed(store, &permits(1, 5)).await;
        }
    };
    tokio::join!(use_it(&stores[0]), use_it(&stores[1]), use_it(&stores[2]));
}

/// A reader that is refused writes nothing: its mark would take the place of the changed limit.
#[tokio::test]
async fn a_refused_reader_leaves_the_limit_as_it_was_changed() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let holder = permits(1, 5);
    granted(&a, &holder).await;
    assert_eq!(a.resize(&name("x"), 2).await.unwrap(), Some(5));
    for claim in [reader(), writer()] {
        let refused = b.claim(&claim, Patience::Once).await.expect_err("a semaphore");
        assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
        assert!(refused.to_string().contains('2'), "as it is now: {refused}");
    }
    let nodes = place.nodes("x");
    assert_eq!(nodes.iter().filter(|node| node.contains('-')).count(), 1, "and nothing stays behind: {nodes:?}");
    granted(&b, &permits(1, 2)).await;
    assert!(matches!(b.claim(&permits(1, 2), Patience::Once).await, Ok(Claimed::Busy(_))), "two of two");
}

/// The writer that a reader waits for reads already when the reader gets to look at it, and was not known to be the first.
#[tokio::test]
async fn w2_a_reader_does_not_sleep_behind_a_writer_that_reads() {
    let place = Place::new();
    let (a, b) = (place.store().await, place.store().await);
    let (first, second, behind) = (writer(), writer(), reader());
    granted(&a, &first).await;
    queued(&b, &second).await;
    queued(&a, &behind).await;
    a.release(&first.holding).await.unwrap();
    let fence = within(SOON, "its turn", b.turn(&second)).await.unwrap().fence;
    assert!(matches!(b.downgrade(&second).await, Ok(Renewal::Renewed { .. })));
    let reading = within(SOON, "both read", a.turn(&behind)).await.unwrap();
    assert_eq!(reading.fence, fence);
}

/// However fast its users come and go.
#[tokio::test]
async fn c2_the_limit_of_a_busy_semaphore_can_be_changed() {
    let place = Place::new();
    let (a, b, changer) = (place.store().await, place.store().await, place.store().await);
    passed(&changer, &permits(1, 5)).await;
    let come_and_go = async |store: &ZooKeeperStore| {
        loop {
            let claim = permits(1, 5);
            if store.claim(&claim, Patience::Once).await.is_ok() {
                store.release(&claim.holding).await.unwrap();
            }
        }
    };
    let resize = async {
        // `None` in the moment in which nobody uses it.
        while changer.resize(&name("x"), 2).await.unwrap() != Some(5) {}
    };
    tokio::select! {
        () = within(SOON * 2, "changed", resize) => {}
        () = async { tokio::join!(come_and_go(&a), come_and_go(&b), come_and_go(&a), come_and_go(&b)); } => {}
    }
}

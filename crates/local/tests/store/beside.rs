//! Readers and permits: what the kernel keeps of them, and who hears of their end.

use std::fs;

use fencepost_core::{
    claim::{Mode, Renewal, Want},
    error::Operation,
    refusal::Refusal,
};

use super::*;

fn beside(name: &str, mode: Mode) -> Claim {
    let holding = Holding::one(Want { name: LockName::new(name).unwrap(), mode }, Owner::random().unwrap());
    Claim { holding, ..claim(name) }
}

fn reader() -> Claim {
    beside("x", Mode::Shared)
}

fn permits(count: u32, of: u32) -> Claim {
    beside("s", Mode::Permits { count, of })
}

async fn waits(store: &DirectoryStore, claim: &Claim) {
    assert!(matches!(store.claim(claim, Patience::Queue).await.unwrap(), Claimed::Queued(_)));
}

async fn is_busy(store: &DirectoryStore, claim: &Claim) -> bool {
    matches!(store.claim(claim, Patience::Once).await.unwrap(), Claimed::Busy(_))
}

#[tokio::test]
async fn f3_a_reader_carries_the_last_writers_fence_and_leaves_the_counter_as_it_is() {
    let scene = Scene::new();
    let (a, b) = (scene.store(), scene.store());
    let written = fence(&a, "x").await;
    let (one, two) = (reader(), reader());
    for (store, reader) in [(&a, &one), (&b, &two)] {
        assert_eq!(granted(store, reader).await.fence.map(Fence::get), Some(written));
    }
    assert!(is_busy(&a, &claim("x")).await, "a writer that found readers has advanced nothing either");
    for reader in [&one, &two] {
        assert_eq!(a.release(&reader.holding).await.unwrap(), Release::Released, "also one of another handle");
    }
    assert_eq!(fence(&b, "x").await, written + 1);
}

/// As the guardian of `fencepost run` has it: the process that took it is gone, the command still runs.
#[tokio::test]
async fn a_given_descriptor_keeps_the_seat_after_the_store_is_gone() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let (held, two) = (reader(), permits(2, 3));
    granted(&store, &held).await;
    granted(&store, &two).await;
    let descriptors = [&held, &two].map(|claim| store.descriptor(&claim.holding).unwrap().unwrap());
    drop(store);
    let writer = claim("x");
    waits(&other, &writer).await;
    assert!(is_busy(&other, &permits(2, 3)).await);
    let waiter = permits(3, 3);
    waits(&other, &waiter).await;
    drop(descriptors);
    within(other.turn(&writer)).await.unwrap();
    assert_eq!(&*within(other.turn(&waiter)).await.unwrap().slots, [0, 1, 2]);
}

#[tokio::test]
async fn a_release_gives_the_seat_up_although_children_have_the_descriptor() {
    let scene = Scene::new();
    let store = scene.store();
    let held = reader();
    granted(&store, &held).await;
    let descriptor = store.descriptor(&held.holding).unwrap().unwrap();
    let mut child = Command::new("sleep").arg("60").stdin(Stdio::from(descriptor)).spawn().unwrap();
    let writer = claim("x");
    waits(&store, &writer).await;
    let turn = tokio::spawn({
        let (store, writer) = (Arc::clone(&store), writer.clone());
        async move { store.turn(&writer).await }
    });
    clock::sleep(&BootClock, Duration::from_millis(50)).await; // it watches by now
    store.release(&held.holding).await.unwrap();
    within(turn).await.unwrap().unwrap();
    child.kill().ok();
    child.wait().unwrap();
}

/// By the removal of the lock's file, of the seat, of all seats, and by a release from elsewhere.
#[tokio::test]
async fn l4_whoever_loses_its_seat_is_told_at_once() {
    type Removal = fn(&Scene, &Claim);
    let removals: [Removal; 4] = [
        |scene, _| fs::remove_file(scene.file("x.lock")).unwrap(),
        |scene, held| fs::remove_file(scene.file("x.seats").join(held.owner().to_string())).unwrap(),
        |scene, _| fs::remove_dir_all(scene.file("x.seats")).unwrap(),
        |scene, held| {
            let (store, holding) = (scene.store(), held.holding.clone());
            let released = std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                runtime.block_on(async { store.release(&holding).await.unwrap() })
            });
            assert_eq!(released.join().unwrap(), Release::Released);
        },
    ];
    for (number, removal) in removals.into_iter().enumerate() {
        let scene = Scene::new();
        let store = scene.store();
        let (reporter, mut losses) = LossReporter::channel();
        store.report_losses(reporter);
        let (held, after) = (reader(), reader());
        granted(&store, &held).await;
        clock::sleep(&BootClock, Duration::from_millis(100)).await; // a hold that lasts is watched
        removal(&scene, &held);
        assert_eq!(within(losses.recv()).await, Some((*held.owner(), LossReason::Deleted)), "removal {number}");
        assert!(matches!(store.downgrade(&held).await.unwrap(), Renewal::Lost(_)), "removal {number}");
        granted(&store, &after).await;
        assert_ne!(store.release(&held.holding).await.unwrap(), Release::Released, "removal {number}");
        let writer = claim("x");
        assert!(is_busy(&store, &writer).await, "the other reader is still there");
        assert_eq!(store.release(&after.holding).await.unwrap(), Release::Released);
        granted(&store, &writer).await;
    }
}

#[tokio::test]
async fn force_takes_the_lock_from_all_readers_and_fences_go_on() {
    let scene = Scene::new();
    let (store, admin) = (scene.store(), scene.store());
    let (reporter, mut losses) = LossReporter::channel();
    store.report_losses(reporter);
    let written = fence(&store, "x").await;
    let (one, two) = (reader(), reader());
    granted(&store, &one).await;
    granted(&store, &two).await;
    clock::sleep(&BootClock, Duration::from_millis(100)).await;
    let Forced::Broken(Some(holder)) = admin.force(one.name(), None).await.unwrap() else { panic!("broken") };
    assert_eq!(holder.mode, Mode::Shared);
    let lost = [within(losses.recv()).await.unwrap(), within(losses.recv()).await.unwrap()].map(|(owner, _)| owner);
    assert!(lost.contains(one.owner()) && lost.contains(two.owner()), "{lost:?}");
    assert_eq!(admin.force(one.name(), None).await.unwrap(), Forced::NotHeld);
    assert!(fence(&admin, "x").await > written);
    for lost in [&one, &two] {
        assert_eq!(store.release(&lost.holding).await.unwrap(), Release::AlreadyExpired);
    }
}

#[tokio::test]
async fn a_limit_that_grows_lets_the_first_waiter_in_and_one_that_shrinks_refuses_him() {
    let scene = Scene::new();
    let (a, b) = (scene.store(), scene.store());
    let held = permits(2, 2);
    granted(&a, &held).await;
    let (one, three) = (permits(1, 2), permits(2, 2));
    waits(&b, &one).await;
    waits(&b, &three).await;
    let turn = tokio::spawn({
        let (b, one) = (Arc::clone(&b), one.clone());
        async move { b.turn(&one).await }
    });
    assert_eq!(a.resize(held.name(), 3).await.unwrap(), Some(2));
    assert_eq!(&*within(turn).await.unwrap().unwrap().slots, [2]);
    let state = &a.inspect(Some(held.name())).await.unwrap()[0];
    assert!(state.holders.iter().all(|holder| matches!(holder.mode, Mode::Permits { of: 3, .. })), "{state:?}");
    assert_eq!(a.resize(held.name(), 1).await.unwrap(), Some(3));
    let refused = within(b.turn(&three)).await.unwrap_err();
    let said = Refusal::TooMany { count: 2, of: 1 }.error(Operation::Wait, held.name()).to_string();
    assert_eq!((refused.kind(), refused.to_string()), (ErrorKind::InvalidInput, said));
}

/// Seats are for the living: what a killed process leaves is removed by whoever looks next.
#[tokio::test]
async fn a_seat_without_its_owner_is_nobodys() {
    let scene = Scene::new();
    let store = scene.store();
    granted(&store, &reader()).await; // its store goes first
    drop(store);
    let store = scene.store();
    fs::write(scene.file("x.seats").join("ab".repeat(20)), "{").unwrap();
    granted(&store, &claim("x")).await;
    assert_eq!(entries(&scene.file("x.seats")), Vec::<String>::new());
}

/// A writer that is there first would have been let in by any gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_comes_between_a_writer_and_the_reader_that_it_becomes() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let held = claim("x");
    granted(&store, &held).await;
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tries = tokio::spawn({
        let done = Arc::clone(&done);
        async move {
            let mut tries = 0;
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                assert!(is_busy(&other, &claim("x")).await, "a writer beside a reader");
                tries += 1;
                tokio::task::yield_now().await;
            }
            tries
        }
    });
    clock::sleep(&BootClock, Duration::from_millis(20)).await;
    assert!(matches!(store.downgrade(&held).await.unwrap(), Renewal::Renewed { .. }));
    clock::sleep(&BootClock, Duration::from_millis(20)).await;
    done.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(tries.await.unwrap() > 1);
}

/// Its owner is told; until he has given it back, his descriptor shows a live seat.
#[tokio::test]
async fn who_still_sits_at_a_removed_file_is_in_nobodys_way() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let (held, beside, writer) = (permits(3, 3), permits(3, 3), beside("s", Mode::Exclusive));
    granted(&store, &held).await;
    fs::remove_file(scene.file("s.lock")).unwrap();
    assert_eq!(&*granted(&other, &beside).await.slots, [0, 1, 2]);
    other.release(&beside.holding).await.unwrap();
    granted(&other, &writer).await;
}

/// They meet at the gate, and none of them may take it for stuck.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_readers_that_come_at_once_are_all_let_in() {
    let scene = Scene::new();
    let stores = [scene.store(), scene.store()];
    let mut coming = tokio::task::JoinSet::new();
    for number in 0..300 {
        let store = Arc::clone(&stores[number % 2]);
        coming.spawn(async move { granted(&store, &reader()).await });
    }
    assert_eq!(within(coming.join_all()).await.len(), 300);
    assert_eq!(stores[0].inspect(None).await.unwrap()[0].holders.len(), 300);
}

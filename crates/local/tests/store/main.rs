//! The directory store against the promises of the contract, within one process.
#![allow(missing_docs, clippy::unwrap_used)]

mod beside;
mod elsewhere;
mod idle;
mod killed;
mod surroundings;
mod users;
mod waiting;

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use fencepost_core::{
    claim::{Claim, Claimant, Claimed, Forced, Grant, Holding, LossReason, Patience, Release},
    clock::{self, BootClock},
    error::{Error, ErrorKind},
    fence::Fence,
    limits::Ttl,
    name::{LockName, Namespace},
    owner::Owner,
    scheme::Opening,
    store::{LossReporter, Store},
    url::StoreUrl,
};
use fencepost_local::{DirectoryConfig, DirectoryStore, SCHEME};
use tempfile::TempDir;

const SOON: Duration = Duration::from_secs(10);

struct Scene {
    directory: TempDir,
}

impl Scene {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn store(&self) -> Arc<DirectoryStore> {
        open(self.directory.path()).unwrap()
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join("fencepost").join(name)
    }
}

fn open(directory: &Path) -> Result<Arc<DirectoryStore>, Error> {
    let config = DirectoryConfig::new(directory);
    DirectoryStore::open(config, &Namespace::default(), BootClock::shared()).map(Arc::new)
}

fn claim(name: &str) -> Claim {
    let holding = Holding::exclusive(LockName::new(name).unwrap(), Owner::random().unwrap());
    Claim { holding, ttl: Ttl::DEFAULT, claimant: Arc::new(Claimant::here()) }
}

async fn granted(store: &DirectoryStore, claim: &Claim) -> Grant {
    match store.claim(claim, Patience::Once).await.unwrap() {
        Claimed::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn fence(store: &DirectoryStore, name: &str) -> u64 {
    let claim = claim(name);
    let fence = granted(store, &claim).await.fence.unwrap().get();
    assert_eq!(store.release(&claim.holding).await.unwrap(), Release::Released);
    fence
}

async fn queued(store: &DirectoryStore, name: &str) -> Claim {
    let claim = claim(name);
    match store.claim(&claim, Patience::Queue).await.unwrap() {
        Claimed::Queued(_) => claim,
        other => panic!("{other:?}"),
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = clock::sleep(&BootClock, SOON) => panic!("not within {SOON:?}"),
    }
}

async fn refused(store: &DirectoryStore, name: &str) -> Error {
    store.claim(&claim(name), Patience::Once).await.unwrap_err()
}

fn entries(path: &Path) -> Vec<String> {
    fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[tokio::test]
async fn two_handles_exclude_each_other_and_the_holder_is_named() {
    let scene = Scene::new();
    let (a, b) = (scene.store(), scene.store());
    let first = claim("x");
    let grant = granted(&a, &first).await;
    assert_eq!((grant.ttl, grant.fence), (None, Fence::new(1)));
    let Claimed::Busy(busy) = b.claim(&claim("x"), Patience::Once).await.unwrap() else { panic!("granted twice") };
    let holder = busy.holder.unwrap();
    assert_eq!((holder.claimant, holder.fence), (Claimant::here(), grant.fence));
    assert_eq!(granted(&a, &first).await, grant, "a repeated claim answers as the first one did");
    assert_eq!(a.release(&first.holding).await.unwrap(), Release::Released);
    assert_eq!(a.release(&first.holding).await.unwrap(), Release::AlreadyExpired);
    assert_eq!(fence(&b, "x").await, 2);
}

#[tokio::test]
async fn f4_a_removed_file_starts_above_every_fence() {
    let scene = Scene::new();
    let store = scene.store();
    let mut last = 0;
    for round in 0..5 {
        for _ in 0..round {
            let next = fence(&store, "x").await;
            assert!(next > last);
            last = next;
        }
        fs::remove_file(scene.file("x.lock")).ok();
        fence(&store, "other").await;
        let next = fence(&scene.store(), "x").await;
        assert!(next > last);
        last = next;
    }
}

#[tokio::test]
async fn f4_a_damaged_counter_is_refused_and_removing_it_repairs() {
    let scene = Scene::new();
    let store = scene.store();
    let last = fence(&store, "x").await;
    let file = fs::File::options().write(true).open(scene.file("x.lock")).unwrap();
    file.write_all_at(&[0xff], 1024 + 9).unwrap();
    let error = refused(&store, "x").await;
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("remove the file"), "{error}");
    file.set_len(700).unwrap();
    assert_eq!(refused(&store, "x").await.kind(), ErrorKind::Corrupt);
    fs::remove_file(scene.file("x.lock")).unwrap();
    assert!(fence(&store, "x").await > last);
}

#[tokio::test]
async fn f4_a_file_restored_from_a_copy_does_not_take_the_fence_back() {
    let scene = Scene::new();
    let store = scene.store();
    fence(&store, "x").await;
    fs::copy(scene.file("x.lock"), scene.file("backup")).unwrap();
    let last = fence(&store, "x").await;
    fs::rename(scene.file("backup"), scene.file("x.lock")).unwrap();
    let restored = fence(&store, "x").await;
    assert!(restored > last);
    assert_eq!(fence(&store, "x").await, restored + 1);
}

#[tokio::test]
async fn f4_a_missing_floor_is_refused() {
    let scene = Scene::new();
    fence(&scene.store(), "x").await;
    fs::remove_file(scene.file(".floor")).unwrap();
    let error = open(scene.directory.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
}

#[tokio::test]
async fn l4_the_holder_is_told_of_a_removal_and_release_says_so() {
    let scene = Scene::new();
    let store = scene.store();
    let (reporter, mut losses) = LossReporter::channel();
    store.report_losses(reporter);
    // Once before the directory is watched, once after.
    for pause in [0, 100] {
        let held = claim("x");
        let grant = granted(&store, &held).await;
        clock::sleep(&BootClock, Duration::from_millis(pause)).await;
        fs::remove_file(scene.file("x.lock")).unwrap();
        assert_eq!(within(losses.recv()).await, Some((*held.owner(), LossReason::Deleted)));
        let other = claim("x");
        assert!(granted(&store, &other).await.fence > grant.fence);
        assert_eq!(store.release(&held.holding).await.unwrap(), Release::HeldByOther);
        assert_eq!(store.release(&other.holding).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn force_takes_only_the_fence_that_was_named() {
    let scene = Scene::new();
    let (holder, breaker) = (scene.store(), scene.store());
    let name = LockName::new("x").unwrap();
    assert_eq!(breaker.force(&name, None).await.unwrap(), Forced::NotHeld);
    let held = claim("x");
    let grant = granted(&holder, &held).await;
    let other = Fence::new(77);
    assert_eq!(breaker.force(&name, other).await.unwrap(), Forced::OtherFence(grant.fence));
    assert_eq!(granted(&holder, &held).await, grant);
    let waiter = queued(&breaker, "x").await;
    let Forced::Broken(Some(broken)) = breaker.force(&name, grant.fence).await.unwrap() else { panic!("not broken") };
    assert_eq!(broken.fence, grant.fence);
    let next = within(breaker.turn(&waiter)).await.unwrap();
    assert!(next.fence > grant.fence);
    assert_eq!(holder.release(&held.holding).await.unwrap(), Release::HeldByOther);
    breaker.release(&waiter.holding).await.unwrap();
    assert_eq!(breaker.force(&name, None).await.unwrap(), Forced::NotHeld);
}

#[tokio::test]
async fn o1_another_handle_releases_by_the_owner_value() {
    let scene = Scene::new();
    let (holder, other) = (scene.store(), scene.store());
    let held = claim("x");
    granted(&holder, &held).await;
    assert_eq!(other.release(&claim("x").holding).await.unwrap(), Release::HeldByOther);
    assert_eq!(other.release(&held.holding).await.unwrap(), Release::Released);
    assert_eq!(other.release(&held.holding).await.unwrap(), Release::AlreadyExpired);
    granted(&other, &claim("x")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn w3_waiters_are_served_in_the_order_they_came() {
    let scene = Scene::new();
    let stores: Vec<_> = (0..3).map(|_| scene.store()).collect();
    let held = claim("x");
    granted(&stores[0], &held).await;
    let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = Vec::new();
    for number in 0..30 {
        let store = Arc::clone(&stores[number % 3]);
        let waiter = queued(&store, "x").await;
        let sender = sender.clone();
        tasks.push(tokio::spawn(async move {
            let grant = store.turn(&waiter).await.unwrap();
            sender.send((number, grant.fence)).unwrap();
            store.release(&waiter.holding).await.unwrap();
        }));
    }
    let state = stores[1].inspect(None).await.unwrap();
    assert_eq!((state.len(), state[0].holders.len(), state[0].waiters.len()), (1, 1, 30));
    stores[0].release(&held.holding).await.unwrap();
    let mut last = None;
    for number in 0..30 {
        let (served, fence) = within(order.recv()).await.unwrap();
        assert_eq!(served, number);
        assert!(fence > last, "F1");
        last = fence;
    }
    for task in tasks {
        within(task).await.unwrap();
    }
    assert_eq!(stores[1].inspect(None).await.unwrap(), []);
}

#[tokio::test]
async fn w3_a_newcomer_gives_way_to_who_waits() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let waiter = queued(&store, "x").await;
    store.release(&held.holding).await.unwrap();
    let answer = store.claim(&claim("x"), Patience::Once).await.unwrap();
    assert!(matches!(answer, Claimed::Busy(ref busy) if busy.ahead == Some(1)), "{answer:?}");
    within(store.turn(&waiter)).await.unwrap();
    store.release(&waiter.holding).await.unwrap();
    fence(&store, "x").await;
    assert!(!scene.file("x.queue").exists());
}

#[tokio::test]
async fn w1_a_release_before_the_turn_is_not_missed() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let waiter = queued(&store, "x").await;
    store.release(&held.holding).await.unwrap();
    within(store.turn(&waiter)).await.unwrap();
}

#[tokio::test]
async fn w3_a_dead_ticket_is_passed_over() {
    let scene = Scene::new();
    let (store, dying) = (scene.store(), scene.store());
    let held = claim("x");
    granted(&store, &held).await;
    let first = queued(&dying, "x").await;
    let second = queued(&store, "x").await;
    // As a killed process leaves it: the file is there and nobody has it locked.
    let ticket = scene.file("x.queue").join(format!("{:020}", 1));
    let left = fs::read(&ticket).unwrap();
    dying.release(&first.holding).await.unwrap();
    fs::write(&ticket, left).unwrap();
    store.release(&held.holding).await.unwrap();
    within(store.turn(&second)).await.unwrap();
    assert!(!ticket.exists());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_a_thousand_dropped_waiters_leave_no_ticket() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let mut waiters = Vec::new();
    for number in 0..1000 {
        let waiter = queued(&store, "x").await;
        let turning = Arc::clone(&store);
        let turned = waiter.clone();
        let task = tokio::spawn(async move { turning.turn(&turned).await.map(|_| ()) });
        if number % 3 == 0 {
            tokio::task::yield_now().await;
        }
        task.abort();
        waiters.push(waiter);
    }
    for waiter in waiters {
        assert_eq!(store.release(&waiter.holding).await.unwrap(), Release::Released);
    }
    assert!(!scene.file("x.queue").exists());
    store.release(&held.holding).await.unwrap();
    fence(&store, "x").await;
}

#[tokio::test]
async fn a_release_frees_the_lock_although_children_have_the_descriptor() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let mut plain = Command::new("sleep").arg("60").spawn().unwrap();
    let descriptor = store.descriptor(&held.holding).unwrap().unwrap();
    let mut given = Command::new("sleep").arg("60").stdin(Stdio::from(descriptor)).spawn().unwrap();
    let waiter = queued(&store, "x").await;
    store.release(&held.holding).await.unwrap();
    // A release unlocks, whoever else has the descriptor.
    within(store.turn(&waiter)).await.unwrap();
    store.release(&waiter.holding).await.unwrap();
    for child in [&mut plain, &mut given] {
        child.kill().ok();
        child.wait().unwrap();
    }
}

#[tokio::test]
async fn a_given_descriptor_keeps_the_lock_after_the_store_is_gone() {
    let scene = Scene::new();
    let store = scene.store();
    let held = claim("x");
    granted(&store, &held).await;
    let descriptor = store.descriptor(&held.holding).unwrap().unwrap();
    drop(store);
    let other = scene.store();
    assert!(matches!(other.claim(&claim("x"), Patience::Once).await.unwrap(), Claimed::Busy(_)));
    let waiter = queued(&other, "x").await;
    drop(descriptor);
    within(other.turn(&waiter)).await.unwrap();
}

#[tokio::test]
async fn a_dropped_store_leaves_no_lock_and_close_ends_waits() {
    let scene = Scene::new();
    let (store, other) = (scene.store(), scene.store());
    let held = claim("x");
    granted(&store, &held).await;
    let waiter = queued(&other, "x").await;
    let turn = tokio::spawn({
        let (other, waiter) = (Arc::clone(&other), waiter.clone());
        async move { other.turn(&waiter).await }
    });
    tokio::task::yield_now().await;
    other.close().await;
    assert_eq!(within(turn).await.unwrap().unwrap_err().kind(), ErrorKind::Closed);
    assert_eq!(refused(&other, "y").await.kind(), ErrorKind::Closed);
    drop(store);
    fence(&scene.store(), "x").await;
}

#[tokio::test]
async fn c4_what_cannot_be_a_store_is_refused_at_once() {
    let scene = Scene::new();
    let file = scene.directory.path().join("file");
    fs::write(&file, "").unwrap();
    let open = |url: String| {
        let url = StoreUrl::parse(&url).unwrap();
        (SCHEME.open)(Opening { url, namespace: Namespace::default(), clock: BootClock::shared() })
    };
    let error = open(format!("file:{}", file.display())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignValue, "{error}");
    let error = open(format!("file:{}/below", file.display())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ForeignValue, "{error}");
    let error = open("file:relative".to_owned()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let store = scene.store();
    fs::write(scene.file("x.lock"), "x".repeat(5000)).unwrap();
    assert_eq!(refused(&store, "x").await.kind(), ErrorKind::Corrupt);
    fs::create_dir(scene.file("y.lock")).unwrap();
    assert_eq!(refused(&store, "y").await.kind(), ErrorKind::ForeignValue);
    std::os::unix::fs::symlink("/etc/passwd", scene.file("z.lock")).unwrap();
    assert_eq!(refused(&store, "z").await.kind(), ErrorKind::ForeignValue);
}

#[tokio::test]
async fn a_directory_is_private_unless_it_was_made_for_several_users() {
    let scene = Scene::new();
    let below = scene.directory.path().join("a/b");
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    fence(&open(&below).unwrap(), "x").await;
    assert_eq!(mode(below.clone()), 0o700);
    assert_eq!(mode(below.join("fencepost/x.lock")), 0o600);
    let shared = scene.directory.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o2770)).unwrap();
    fence(&open(&shared).unwrap(), "x").await;
    assert_eq!(mode(shared.join("fencepost")), 0o2770);
    assert_eq!(mode(shared.join("fencepost/x.lock")), 0o660);
    assert_eq!(mode(shared.join("fencepost/.floor")), 0o660);
}

#[tokio::test]
async fn c3_long_and_odd_names_are_listed_as_they_are() {
    let scene = Scene::new();
    let store = scene.store();
    let long = "é".repeat(256);
    let mut names = [".", "a/b", "ä ö", "%h", &long];
    let claims: Vec<_> = names.iter().map(|name| claim(name)).collect();
    for claim in &claims {
        granted(&store, claim).await;
    }
    names.sort_unstable();
    let listed = store.inspect(None).await.unwrap();
    assert_eq!(listed.iter().map(|state| state.name.as_str()).collect::<Vec<_>>(), names);
    let only = LockName::new(&long).unwrap();
    assert_eq!(store.inspect(Some(&only)).await.unwrap().len(), 1);
    for claim in &claims {
        store.release(&claim.holding).await.unwrap();
    }
    assert_eq!(store.inspect(None).await.unwrap(), []);
    assert_eq!(entries(&scene.file("")).len(), names.len() + 1, "one file for each lock, and the floor");
}

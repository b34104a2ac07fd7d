use std::time::Duration;

use fencepost::{
    Acquired, Attempt, LockName,
    blocking::Locks,
    claim::{LossReason, Release},
};

#[test]
fn a_lock_is_taken_and_given_back_without_async() {
    let locks = Locks::open("memory:blocking").unwrap().fenced().unwrap();
    let Acquired(mut lease) = locks.acquire(locks.lock("a")).unwrap() else { panic!("free") };
    assert_eq!(lease.lost_within(Duration::from_millis(1)), None);
    assert!(matches!(locks.acquire(locks.lock("a").wait(Duration::ZERO)).unwrap(), Attempt::Busy(_)));
    assert_eq!(lease.release().unwrap(), Release::Released);
    let Acquired(lease) = locks.acquire(locks.lock("a")).unwrap() else { panic!("free again") };
    drop(lease);
    let patient = locks.lock("a").wait(Duration::from_secs(5));
    assert!(matches!(locks.acquire(patient).unwrap(), Acquired(_)), "a dropped lease is given back");
    locks.close();
}

#[test]
fn l1_loss_is_told_to_a_blocked_thread() {
    let locks = Locks::open("memory:blocking-loss").unwrap().fenced().unwrap();
    let Acquired(lease) = locks.acquire(locks.lock("a")).unwrap() else { panic!("free") };
    let store = locks.store().clone();
    let admin = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(store.force(&LockName::new("a").unwrap(), None)).unwrap();
    });
    assert_eq!(lease.lost_within(Duration::from_secs(10)), Some(LossReason::Deleted));
    admin.join().unwrap();
}

use std::time::Duration;

use fencepost::{
    Acquired, Attempt, ErrorKind, LockName, Wait,
    claim::{LossReason, Release},
};

use crate::open;

const TTL: Duration = Duration::from_secs(10);

#[tokio::test]
async fn o4_entries_share_one_lease_and_the_last_gives_it_back() {
    let locks = open("reentrant-share").await;
    let owner = locks.reentrant();
    let Acquired(first) = owner.enter("a", TTL, Wait::Once).await.unwrap() else { panic!("free") };
    let Acquired(second) = owner.enter("a", TTL, Wait::Once).await.unwrap() else { panic!("ours") };
    assert_eq!(first.lease().fence(), second.lease().fence());
    let stranger = locks.reentrant();
    assert!(matches!(stranger.enter("a", TTL, Wait::Once).await.unwrap(), Attempt::Busy(_)), "another owner waits");
    assert_eq!(first.leave().await.unwrap(), None);
    second.lease().check().unwrap();
    assert_eq!(second.leave().await.unwrap(), Some(Release::Released));
    assert!(matches!(stranger.enter("a", TTL, Wait::Once).await.unwrap(), Acquired(_)));
}

// Curator lets the second entry in and counts two.
#[tokio::test]
async fn o4_an_entry_after_the_loss_is_an_error() {
    let locks = open("reentrant-lost").await;
    let owner = locks.reentrant();
    let Acquired(first) = owner.enter("a", TTL, Wait::Once).await.unwrap() else { panic!("free") };
    locks.store().force(&LockName::new("a").unwrap(), None).await.unwrap();
    assert_eq!(first.lease().lost().await, LossReason::Deleted);
    let error = owner.enter("a", TTL, Wait::Once).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost(LossReason::Deleted));
    drop(first);
    assert!(matches!(owner.enter("a", TTL, Wait::Once).await.unwrap(), Acquired(_)), "usable once it was left");
}

#[tokio::test]
async fn o4_two_entries_at_once_make_one_claim() {
    let owner = open("reentrant-race").await.reentrant();
    let (a, b) = tokio::join!(owner.enter("a", TTL, Wait::Forever), owner.enter("a", TTL, Wait::Forever));
    let (Acquired(a), Acquired(b)) = (a.unwrap(), b.unwrap()) else { panic!("both are the same owner") };
    assert_eq!(a.lease().fence(), b.lease().fence());
}

use std::time::Duration;

use fencepost::{Passage, Wait};

use crate::open;

/// The new barrier of the same name counts its rounds anew: by their number it cannot be told from the removed one.
#[tokio::test]
async fn a_barrier_that_was_removed_and_made_again_has_let_its_waiters_go() {
    let locks = open("barrier-again").await;
    let barrier = locks.barrier("start", 3).unwrap();
    let waiting = tokio::spawn({
        let barrier = barrier.clone();
        async move { barrier.wait(Wait::Forever).await }
    });
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
    // On the one thread of this test, the waiter sees nothing of what lies between.
    barrier.remove().await.unwrap();
    assert_eq!(barrier.wait(Wait::Once).await.unwrap(), Passage::TimedOut);
    let let_go = tokio::time::timeout(Duration::from_secs(10), waiting).await;
    assert_eq!(let_go.expect("it waits no longer").unwrap().unwrap(), Passage::Open { last: false });
}

//! Readers and permits: what is PostgreSQL's own about them. Who is let in beside whom is in the conformance suite.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    claim::{Claim, Claimed, Forced, LossReason, Mode, Patience, Renewal},
    error::ErrorKind,
    store::{LossReporter, Store},
};

use super::{SOON, TTL, claim, claim_as, client, eventually, granted, migrated, ms, name, queued, renewed, within};

fn reader(ttl: Duration) -> Arc<Claim> {
    claim_as("x", ttl, Mode::Shared)
}

/// A row that an administrator deletes takes all who hold by it along: a reader that went on would meet the next writer.
#[tokio::test(flavor = "multi_thread")]
async fn l1_a_deleted_row_is_a_loss_to_all_readers() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let (losses, mut told) = LossReporter::channel();
    a.report_losses(losses);
    let readers = [reader(TTL), reader(TTL)];
    for reader in &readers {
        granted(&a, reader).await;
    }
    granted(&b, &claim("y", TTL)).await;
    queued(&a, &claim("y", TTL)).await; // and so it listens
    let listens =
        "SELECT count(*) FROM pg_locks WHERE classid = 'fencepost.locks'::regclass AND mode = 'ExclusiveLock'";
    eventually(SOON, "it listens", async || server.value("postgres", listens) == "1").await;
    server.sql("postgres", "DELETE FROM fencepost.locks");
    let mut lost = Vec::new();
    for _ in &readers {
        lost.push(within(SOON, "every reader hears", told.recv()).await.unwrap());
    }
    for reader in &readers {
        assert!(lost.contains(&(*reader.owner(), LossReason::Deleted)), "{lost:?}");
        assert_eq!(renewed(&a, reader).await.unwrap(), Renewal::Lost(LossReason::Deleted));
    }
    granted(&b, &claim("x", TTL)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_broken_is_lost_to_all_readers_and_the_writer_has_it() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    let readers = [reader(TTL), reader(TTL)];
    for reader in &readers {
        granted(&a, reader).await;
    }
    let writer = claim("x", TTL);
    queued(&b, &writer).await;
    let broken = a.force(&name("x"), None).await.unwrap();
    assert!(matches!(&broken, Forced::Broken(Some(_))), "{broken:?}");
    within(SOON, "the writer has it", b.turn(&writer)).await.unwrap();
    for reader in &readers {
        assert_eq!(renewed(&a, reader).await.unwrap(), Renewal::Lost(LossReason::TakenOver));
    }
}

/// Taken off by somebody, or the clock went back: it lasts one TTL from the next look at it.
#[tokio::test(flavor = "multi_thread")]
async fn t2_a_readers_lease_without_an_end_ends_after_one_ttl() {
    let server = migrated(&[]).await;
    let (a, b) = (client(&server).await, client(&server).await);
    granted(&a, &reader(ms(700))).await;
    server.sql("postgres", "UPDATE fencepost.claims SET expires_at = 'infinity'");
    let writer = claim("x", TTL);
    queued(&b, &writer).await;
    within(SOON, "a dead reader's lock passes on", b.turn(&writer)).await.unwrap();
}

/// Who holds beside others is not looked at each time, but at once when the first of them has ended.
#[tokio::test(flavor = "multi_thread")]
async fn w1_the_first_reader_that_dies_goes_beside_one_that_lasts() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    let permit = |ttl| claim_as("s", ttl, Mode::Permits { count: 1, of: 2 });
    let (lasting, dying, waiter) = (permit(TTL), permit(ms(500)), permit(TTL));
    granted(&store, &lasting).await;
    granted(&store, &dying).await;
    queued(&store, &waiter).await;
    let grant = within(SOON, "the permit of who died", store.turn(&waiter)).await.unwrap();
    assert_eq!(*grant.slots, [1]);
    let readers = "SELECT readers FROM fencepost.locks WHERE name = 's'";
    assert_eq!(server.value("postgres", readers), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_of_many_permits_costs_no_more_than_one_of_few() {
    let server = migrated(&[]).await;
    let store = client(&server).await;
    let permit = |of| claim_as("s", TTL, Mode::Permits { count: 1, of });
    let largest = i32::MAX as u32;
    let first = permit(largest);
    let grant = granted(&store, &first).await;
    assert_eq!((&*grant.slots, grant.fence.unwrap().get()), (&[0][..], 1));
    let more = granted(&store, &permit(largest)).await;
    assert_eq!((&*more.slots, more.fence.unwrap().get()), (&[1][..], 2));
    store.release(&first.holding).await.unwrap();
    assert_eq!(*granted(&store, &permit(largest)).await.slots, [0], "the lowest that is free");
    let too_many = store.claim(&permit(largest + 1), Patience::Once).await.unwrap_err();
    assert_eq!(too_many.kind(), ErrorKind::InvalidInput, "{too_many}");
    // A lock that is free again is what the next one says.
    server.sql("postgres", "DELETE FROM fencepost.claims; UPDATE fencepost.locks SET readers = 0");
    assert!(matches!(store.claim(&claim("s", TTL), Patience::Once).await, Ok(Claimed::Granted(_))));
}

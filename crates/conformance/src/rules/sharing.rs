//! Read-write locks: who may hold beside whom, and who gets in next.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
    time::Duration,
};

use fencepost::{Acquired, Attempt, Efficiency, ErrorKind, Lease, Locks, hold::Hold};
use fencepost_core::{
    claim::{Claim, Claimed, LossReason, Mode, Patience, Release, Renewal},
    clock::{BootClock, sleep},
};
use tokio::task::JoinSet;

use crate::{
    holder::Holder,
    site::{DoesNotApply, Site, Verdict},
    steps::{
        LONG, SHORT, SOON, claim, claim_as, granted, is_busy, locks, ms, name, nothing_left, queued, renewed,
        start_waiting, store, within,
    },
};

fn shares(site: &dyn Site) -> Verdict {
    site.capabilities().shared.then_some(()).ok_or(DoesNotApply("the store has no shared locks"))
}

fn reader() -> Arc<Claim> {
    claim_as("x", LONG, Mode::Shared)
}

pub async fn readers_hold_together_and_a_writer_alone(site: &dyn Site) -> Verdict {
    shares(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (one, two, writer) = (reader(), reader(), claim("x", LONG));
    granted(&a, &one).await;
    granted(&b, &two).await;
    assert!(matches!(a.claim(&writer, Patience::Once).await, Ok(Claimed::Busy(_))));
    let shown = a.inspect(Some(&name("x"))).await.expect("the listing");
    assert_eq!(shown[0].holders.len(), 2, "{shown:?}");
    assert!(shown[0].holders.iter().all(|holder| holder.mode == Mode::Shared), "{shown:?}");
    for (store, reader) in [(&a, &one), (&b, &two)] {
        assert_eq!(store.release(&reader.holding).await.expect("a release"), Release::Released);
    }
    granted(&a, &writer).await;
    assert!(matches!(b.claim(&reader(), Patience::Once).await, Ok(Claimed::Busy(_))));
    Ok(())
}

pub async fn w3_later_readers_do_not_pass_a_writer_that_waits(site: &dyn Site) -> Verdict {
    shares(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (first, writer, late) = (reader(), claim("x", LONG), reader());
    granted(&a, &first).await;
    queued(&b, &writer).await;
    assert!(matches!(a.claim(&reader(), Patience::Once).await, Ok(Claimed::Busy(_))), "the writer was there first");
    queued(&a, &late).await;
    a.release(&first.holding).await.expect("a release");
    within(SOON, "the writer gets its turn", b.turn(&writer)).await.expect("a grant");
    b.release(&writer.holding).await.expect("a release");
    within(SOON, "the reader gets its turn", a.turn(&late)).await.expect("a grant");
    Ok(())
}

pub async fn w2_all_readers_that_wait_next_come_in_together(site: &dyn Site) -> Verdict {
    shares(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (writer, readers, last) = (claim("x", LONG), [reader(), reader(), reader()], claim("x", LONG));
    granted(&a, &writer).await;
    for reader in &readers {
        queued(&b, reader).await;
    }
    queued(&a, &last).await;
    a.release(&writer.holding).await.expect("a release");
    for reader in &readers {
        within(SOON, "a reader comes in beside the others", b.turn(reader)).await.expect("a grant");
    }
    for reader in &readers {
        b.release(&reader.holding).await.expect("a release");
    }
    within(SOON, "then the writer", a.turn(&last)).await.expect("a grant");
    Ok(())
}

/// A reader that is killed keeps no writer out for longer than its lease.
pub async fn w1_a_dead_reader_goes(site: &dyn Site) -> Verdict {
    shares(site)?;
    site.apart()?;
    let (mut dead, locks) = (Holder::start(site).await, locks(site).await);
    dead.acquire_as("x", SHORT, Mode::Shared).await;
    let waiting = start_waiting(&locks, "x", LONG).await;
    dead.kill();
    let attempt = within(SHORT + SOON, "the writer gets in", waiting).await.expect("no panic");
    assert!(matches!(attempt, Ok(Acquired(_))), "{attempt:?}");
    Ok(())
}

/// Where grants expire, a paused reader keeps no writer out for longer; where they do not, it still reads.
pub async fn l1_a_paused_reader_finds_out_at_its_first_look(site: &dyn Site) -> Verdict {
    shares(site)?;
    site.apart()?;
    let (mut paused, locks) = (Holder::start(site).await, locks(site).await);
    paused.acquire_as("x", SHORT, Mode::Shared).await;
    paused.pause();
    if site.capabilities().expires {
        let writer = within(SHORT + SOON, "the writer gets in", locks.lock("x").ttl(LONG).acquire()).await;
        held(writer.expect("an answer")).check().expect("it is ours now");
        assert_eq!(paused.look_after_resuming("x").await, Some("Expired".to_owned()));
        assert_eq!(paused.lost("x").await, "Expired");
    } else {
        sleep(&BootClock, SHORT).await;
        assert!(is_busy(&locks, "x").await, "a stopped process still reads");
        assert_eq!(paused.look_after_resuming("x").await, None);
    }
    Ok(())
}

pub async fn a_writer_becomes_a_reader_without_a_gap(site: &dyn Site) -> Verdict {
    shares(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (writer, waiting, next) = (claim("x", LONG), reader(), claim("x", LONG));
    let fence = granted(&a, &writer).await.fence;
    queued(&b, &waiting).await;
    queued(&b, &next).await;
    for _ in 0..2 {
        let answer = a.downgrade(&writer).await.expect("an answer"); // a repeat answers as the first
        assert!(matches!(answer, Renewal::Renewed { .. }), "{answer:?}");
    }
    let beside = within(SOON, "the reader comes in", b.turn(&waiting)).await.expect("a grant");
    assert_eq!(beside.fence, fence, "a reader carries the last writer's fence");
    if site.capabilities().expires {
        assert!(matches!(renewed(&a, &writer).await, Ok(Renewal::Renewed { .. })), "it is still held");
    }
    assert!(matches!(b.claim(&claim("x", LONG), Patience::Once).await, Ok(Claimed::Busy(_))));
    assert_eq!(a.release(&writer.holding).await.expect("a release"), Release::Released);
    b.release(&waiting.holding).await.expect("a release");
    within(SOON, "then the next writer", b.turn(&next)).await.expect("a grant");
    assert!(matches!(a.downgrade(&writer).await, Ok(Renewal::Lost(LossReason::TakenOver | LossReason::Deleted))));
    Ok(())
}

pub async fn a_downgraded_lease_is_renewed_and_given_back(site: &dyn Site) -> Verdict {
    shares(site)?;
    let locks = locks(site).await;
    let writer = held(locks.lock("x").ttl(SHORT).acquire().await.expect("an answer"));
    let mut reader = writer.downgrade().await.expect("a reader");
    tokio::time::sleep(SHORT * 2).await;
    reader.check().expect("it is renewed");
    assert_eq!(reader.release().await.expect("a release"), Release::Released);
    nothing_left(site, SOON).await;
    Ok(())
}

/// Two readers that both waited to become the writer would wait forever.
pub async fn an_owner_that_reads_is_refused_as_writer(site: &dyn Site) -> Verdict {
    shares(site)?;
    let locks = locks(site).await;
    let (owner, other) = (locks.read_write("x"), locks.read_write("x"));
    let mut reader = held(owner.read().ttl(LONG).acquire().await.expect("an answer"));
    let refused = owner.clone().write().acquire().await.expect_err("it would wait for itself");
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    let busy = other.write().wait(Duration::ZERO).acquire().await.expect("an answer");
    assert!(matches!(busy, Attempt::Busy(_)), "another owner is only busy");
    reader.release().await.expect("a release");
    drop(reader);
    drop(held(owner.write().wait(SOON).acquire().await.expect("an answer")));
    Ok(())
}

/// 995 of 1,000 tries held both at once. Source: distributed-lock-rs.
pub async fn never_both_and_writers_get_their_turn(site: &dyn Site) -> Verdict {
    shares(site)?;
    let inside = Arc::new(AtomicI64::new(0)); // readers count up, a writer holds it at a large negative number
    let writes = Arc::new(AtomicU64::new(0));
    let mut crowd = JoinSet::new();
    for task in 0..16 {
        let (locks, inside, writes) = (locks(site).await, inside.clone(), writes.clone());
        crowd.spawn(async move {
            for turn in 0..12 {
                if (task + turn) % 4 == 0 {
                    write(&locks, &inside).await;
                    writes.fetch_add(1, Ordering::Relaxed);
                } else {
                    read(&locks, &inside).await;
                }
            }
        });
    }
    within(LONG, "everybody is served", crowd.join_all()).await;
    assert_eq!(writes.load(Ordering::Relaxed), 48);
    Ok(())
}

const WRITING: i64 = -1_000_000;

async fn write(locks: &Locks<Efficiency>, inside: &AtomicI64) {
    let mut lease = held(locks.lock("x").ttl(LONG).acquire().await.expect("an answer"));
    assert_eq!(inside.swap(WRITING, Ordering::SeqCst), 0, "a writer beside another holder");
    tokio::time::sleep(ms(1)).await;
    assert_eq!(inside.swap(0, Ordering::SeqCst), WRITING, "somebody came in beside a writer");
    lease.release().await.expect("a release");
}

async fn read(locks: &Locks<Efficiency>, inside: &AtomicI64) {
    let mut lease = held(locks.read_write("x").read().ttl(LONG).acquire().await.expect("an answer"));
    assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0, "a reader beside a writer");
    tokio::time::sleep(ms(1)).await;
    inside.fetch_sub(1, Ordering::SeqCst);
    lease.release().await.expect("a release");
}

fn held<H: Hold>(attempt: Attempt<Lease<Efficiency, H>>) -> Lease<Efficiency, H> {
    attempt.acquired().expect("it must be granted")
}

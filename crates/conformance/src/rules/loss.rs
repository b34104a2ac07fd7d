//! L1 to L4: how a holder hears that it holds no more.

use std::time::Duration;

use fencepost::{Attempt, ErrorKind};
use fencepost_core::{
    claim::LossReason,
    clock::{BootClock, Clock, sleep},
};
use fencepost_servers::Weather;

use crate::{
    clocks::JumpingClock,
    holder::Holder,
    site::{Site, Tampering, Verdict},
    steps::{
        LONG, SHORT, SOON, acquired, eventually, expires, is_busy, locks, locks_at, locks_on, ms, name, nothing_left,
        now, reason_of_loss, start_waiting, take, within,
    },
};

pub async fn l1_the_holder_is_told_at_its_deadline(site: &dyn Site) -> Verdict {
    expires(site)?;
    let locks = locks(site).await;
    let lease = acquired(locks.lock("x").ttl(SHORT).manual_renewal().acquire().await);
    let deadline = lease.deadline().expect("a deadline");
    assert_eq!(reason_of_loss(&lease, SHORT + SOON).await, LossReason::Expired);
    let told = now();
    assert!(told >= deadline && told.since(deadline) < ms(500), "told {:?} late", told.since(deadline));
    let kind = lease.check().expect_err("it is over").kind();
    assert_eq!((kind, lease.remaining()), (ErrorKind::Lost(LossReason::Expired), Some(Duration::ZERO)));
    Ok(())
}

/// A process that was stopped for longer than its TTL knows at its first look. Where the lock does not expire, it
/// still holds and nobody else got in. Source: redis-semaphore 9, 24; ShedLock 132.
pub async fn l1_a_paused_holder_finds_out_at_its_first_look(site: &dyn Site) -> Verdict {
    site.apart()?;
    let mut holder = Holder::start(site).await;
    holder.acquire("x", SHORT).await;
    holder.pause();
    let locks = locks(site).await;
    if site.capabilities().expires {
        let next = within(SHORT + SOON, "the lock passes on", locks.lock("x").ttl(LONG).acquire()).await;
        acquired(next).check().expect("it is ours now");
        assert_eq!(holder.look_after_resuming("x").await, Some("Expired".to_owned()));
        assert_eq!(holder.lost("x").await, "Expired");
    } else {
        sleep(&BootClock, SHORT).await;
        assert!(is_busy(&locks, "x").await, "a stopped process still holds");
        assert_eq!(holder.look_after_resuming("x").await, None);
    }
    Ok(())
}

/// Source: RedLock.net 93; redis-semaphore 175.
pub async fn l1_a_deleted_record_is_a_loss(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let ttl = ms(3000);
    let lease = take(&locks, "x", ttl).await;
    site.tamper(Tampering::Delete(&name("x"))).await?;
    let before = now();
    assert_eq!(reason_of_loss(&lease, ttl + SOON).await, LossReason::Deleted);
    assert!(now().since(before) < ttl, "it is told before the deadline");
    nothing_left(site, SOON).await;
    sleep(&BootClock, ttl / 2).await;
    nothing_left(site, Duration::ZERO).await;
    Ok(())
}

pub async fn l1_a_forced_lock_is_lost_to_its_holder(site: &dyn Site) -> Verdict {
    let (a, admin) = (locks(site).await, locks(site).await);
    let ttl = ms(3000);
    let lease = take(&a, "x", ttl).await;
    let waiting = start_waiting(&admin, "x", LONG).await;
    admin.store().force(&name("x"), None).await.expect("an administrator's answer");
    let reason = reason_of_loss(&lease, ttl).await;
    assert!(matches!(reason, LossReason::Deleted | LossReason::TakenOver), "{reason:?}");
    let next = acquired(within(SOON, "waiters keep their places", waiting).await.expect("no panic"));
    next.check().expect("the cleaning up of the one that lost must not touch the next");
    assert!(is_busy(&a, "x").await);
    Ok(())
}

pub async fn l1_closing_gives_back_and_tells(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let lease = take(&a, "x", LONG).await;
    let foreign = take(&b, "y", LONG).await;
    let waiting = start_waiting(&a, "y", LONG).await;
    within(SOON + SOON, "closing is bounded", a.close()).await;
    assert_eq!(reason_of_loss(&lease, SOON).await, LossReason::Closed);
    let outcome = within(SOON, "a waiting acquire ends", waiting).await.expect("no panic");
    assert!(!matches!(outcome, Ok(Attempt::Acquired(_))));
    let refused = a.lock("z").acquire().await.expect_err("the client was closed");
    assert_eq!(refused.kind(), ErrorKind::Closed);
    drop((lease, foreign));
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn l2_work_is_cancelled_on_loss(site: &dyn Site) -> Verdict {
    let (a, admin) = (locks(site).await, locks(site).await);
    let lease = take(&a, "x", ms(3000)).await;
    assert_eq!(lease.run(async { 7 }).await.expect("held"), 7);
    let (dropped, was_dropped) = tokio::sync::oneshot::channel::<()>();
    let work = async move {
        let _until_dropped = dropped;
        std::future::pending::<()>().await;
    };
    let (outcome, ()) = tokio::join!(within(ms(3000) + SOON, "the work is cancelled", lease.run(work)), async {
        admin.store().force(&name("x"), None).await.expect("an administrator's answer");
    });
    assert!(matches!(outcome.expect_err("cancelled").kind(), ErrorKind::Lost(_)));
    was_dropped.await.expect_err("the work was dropped where it stood");
    Ok(())
}

/// A connection that is cut while a renewal is due: renewed after the reconnect, no loss reported.
/// Source: redisson 775; patroni 3572; etcd 15922.
pub async fn l2_an_outage_is_not_yet_loss(site: &dyn Site) -> Verdict {
    expires(site)?;
    let network = site.network()?;
    let locks = locks_at(site, &site.disturbed_url()?).await;
    let ttl = ms(6000);
    let lease = take(&locks, "x", ttl).await;
    let deadline = lease.deadline().expect("a deadline");
    sleep(&BootClock, ttl / 6).await;
    network.set(Weather::Cut);
    sleep(&BootClock, ttl / 3).await;
    lease.check().expect("an outage is not yet loss");
    assert_eq!(lease.deadline(), Some(deadline), "nothing can have been renewed");
    network.set(Weather::Fair);
    eventually(ttl, "it is renewed after the reconnect", async || lease.deadline() > Some(deadline)).await;
    BootClock.sleep_until(deadline).await;
    lease.check().expect("held past its first deadline");
    Ok(())
}

/// What is lost stays lost, though the store would still renew it; and its record goes.
pub async fn l3_a_lost_grant_is_not_renewed_and_its_record_goes(site: &dyn Site) -> Verdict {
    expires(site)?;
    let clock = JumpingClock::default();
    let locks = locks_on(site, clock.clone()).await;
    let lease = take(&locks, "x", LONG).await;
    clock.jump(LONG); // the store's own clock did not jump: there it would last for long yet
    assert_eq!(reason_of_loss(&lease, SOON).await, LossReason::Expired);
    nothing_left(site, SOON).await;
    assert!(lease.renew().await.is_err(), "no renewal after a loss");
    nothing_left(site, Duration::ZERO).await;
    Ok(())
}

/// Source: redisson 3194, 3714.
pub async fn l3_the_name_can_be_taken_again_by_the_same_client(site: &dyn Site) -> Verdict {
    let (a, admin) = (locks(site).await, locks(site).await);
    let lost = take(&a, "x", SHORT).await;
    admin.store().force(&name("x"), None).await.expect("an administrator's answer");
    reason_of_loss(&lost, SHORT + SOON).await;
    let again = acquired(a.lock("x").ttl(SHORT).wait(SOON).acquire().await);
    drop(lost);
    sleep(&BootClock, SHORT + SHORT / 2).await;
    again.check().expect("the new grant is renewed, and the old guard does not touch it");
    assert!(is_busy(&admin, "x").await);
    Ok(())
}

/// An answer to a renewal alone does not prove that it still holds: with a TTL this long, none is due.
pub async fn l4_a_deletion_is_heard_without_asking(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let lease = take(&locks, "x", Duration::from_secs(3600)).await;
    if !site.capabilities().tells_deletion {
        return Err(crate::site::DoesNotApply("the store tells nobody of a deletion"));
    }
    site.tamper(Tampering::Delete(&name("x"))).await?;
    assert_eq!(reason_of_loss(&lease, SOON).await, LossReason::Deleted);
    Ok(())
}

/// A record without expiry would outlive its holder for ever. Source: redis-py 818.
pub async fn l4_a_record_made_permanent_is_found(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let ttl = ms(3000);
    let lease = take(&locks, "x", ttl).await;
    site.tamper(Tampering::MakePermanent(&name("x"))).await?;
    // Found at the next renewal: either mended there or reported. Endless it must not be.
    sleep(&BootClock, ttl / 2).await;
    drop(lease);
    nothing_left(site, ttl).await;
    let dead = take(&locks, "x", ttl).await;
    site.tamper(Tampering::MakePermanent(&name("x"))).await?;
    eventually(ttl + SOON, "the renewal deals with it", async || {
        let states = locks.store().inspect(Some(&name("x"))).await;
        let shown = states.ok().and_then(|states| states.first()?.holders.first()?.expires_in);
        dead.check().is_err() || shown.is_some_and(|left| left <= ttl)
    })
    .await;
    Ok(())
}

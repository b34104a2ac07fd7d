//! T1 to T3: what deadlines count from, whose clock counts, and how long a caller waits.

use std::time::Duration;

use fencepost::{Attempt, Efficiency, ErrorKind, Locks, Wait};
use fencepost_core::{
    capabilities::FreedOnDeath,
    claim::{Claimed, LossReason, Patience, Renewal},
    clock::{BootClock, sleep},
    limits::Ttl,
    machine::drift_allowance,
};
use fencepost_servers::Weather;

use crate::{
    clocks::JumpingClock,
    site::{Site, Verdict},
    steps::{
        EfficientLease, LONG, SHORT, SOON, acquired, claim, eventually, expires, granted, is_busy, locks, locks_at,
        locks_on, ms, name, now, queued, reason_of_loss, renewed, start_waiting, store, take, within,
    },
};

/// With replies that are slow, what counts shows: the deadline lies one TTL after the sending, not after the answer.
pub async fn t1_a_deadline_counts_from_before_the_request(site: &dyn Site) -> Verdict {
    expires(site)?;
    let network = site.network()?;
    let locks = locks_at(site, &site.disturbed_url()?).await;
    drop(take(&locks, "warm-up", LONG).await);
    network.set(Weather::SlowReplies(ms(700)));
    let ttl = ms(9000); // so long that no renewal is due before the answer, however slow the machine
    let before = now();
    let lease = take(&locks, "x", ttl).await;
    let deadline = lease.deadline().expect("a deadline");
    assert!(now().since(before) >= ms(700), "the replies must have been slow");
    let latest = before.after(ttl - drift_allowance(ttl) + ms(350));
    assert!(deadline <= latest, "the deadline lies {:?} too late", deadline.since(latest));
    network.set(Weather::Fair);
    Ok(())
}

/// Whatever the store shows to remain is more than what the holder believes: after a grant, a renewal, a hand-over.
pub async fn t1_belief_lies_within_the_stores_lease(site: &dyn Site) -> Verdict {
    expires(site)?;
    let (a, b) = (locks(site).await, locks(site).await);
    let lease = acquired(a.lock("x").ttl(SHORT).manual_renewal().acquire().await);
    assert_within(&a, &lease).await;
    sleep(&BootClock, SHORT / 3).await;
    lease.renew().await.expect("a renewal");
    assert_within(&a, &lease).await;
    let waiting = start_waiting(&b, "x", SHORT).await;
    sleep(&BootClock, SHORT / 3).await;
    drop(lease);
    let handed_over = acquired(within(SOON, "the waiter has the lock", waiting).await.expect("no panic"));
    assert_within(&b, &handed_over).await;
    return Ok(());

    async fn assert_within(locks: &Locks<Efficiency>, lease: &EfficientLease) {
        let believed = lease.deadline().expect("a deadline").since(now());
        let read_at = now();
        let states = locks.store().inspect(Some(lease.name())).await.expect("the listing");
        let shown = states[0].holders[0].expires_in.expect("an expiry");
        // The store looked up to one round trip after `read_at`.
        let shown_at_least = shown + now().since(read_at);
        assert!(believed <= shown_at_least, "believed {believed:?}, the store says {shown:?}");
    }
}

/// Source: node-redlock 296.
pub async fn t1_a_late_reply_is_not_a_grant(site: &dyn Site) -> Verdict {
    expires(site)?;
    let network = site.network()?;
    let disturbed = locks_at(site, &site.disturbed_url()?).await;
    drop(take(&disturbed, "warm-up", LONG).await);
    network.set(Weather::SlowReplies(ms(1200))); // a store that counts in seconds grants one
    let outcome = disturbed.lock("x").ttl(ms(300)).wait(Wait::Once).acquire().await;
    let kind = outcome.expect_err("a reply after the deadline is no grant").kind();
    assert!(matches!(kind, ErrorKind::LateGrant), "{kind:?}");
    network.set(Weather::Fair);
    let other = locks(site).await;
    eventually(SOON, "the late grant is given back", async || !is_busy(&other, "x").await).await;
    Ok(())
}

pub async fn t1_an_unknown_answer_never_moves_the_deadline(site: &dyn Site) -> Verdict {
    expires(site)?;
    let network = site.network()?;
    let locks = locks_at(site, &site.disturbed_url()?).await;
    let ttl = ms(3000);
    let lease = take(&locks, "x", ttl).await;
    let deadline = lease.deadline().expect("a deadline");
    // The renewals reach the store and extend the record there; the holder cannot know.
    network.set(Weather::LostReplies);
    let reason = reason_of_loss(&lease, ttl + SOON).await;
    let told_after = now().since(deadline);
    assert_eq!(reason, LossReason::Expired);
    assert!(lease.deadline().expect("a deadline") <= deadline, "the deadline moved");
    assert!(now() >= deadline && told_after < ms(700), "told {told_after:?} after the deadline");
    network.set(Weather::Fair);
    Ok(())
}

/// The grant of a waiter counts from its confirmation, and lasts its whole TTL from then on. Where a session carries all
/// grants alike, it counts from the last that is proven of the session.
pub async fn t1_a_handed_over_grant_counts_from_its_confirmation(site: &dyn Site) -> Verdict {
    expires(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (holder, waiter) = (claim("x", LONG), claim("x", SHORT));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    sleep(&BootClock, SHORT / 2).await;
    let before = now();
    a.release(&holder.holding).await.expect("a release");
    let grant = within(SOON, "the turn comes", b.turn(&waiter)).await.expect("a grant");
    let of_a_session = site.capabilities().freed_on_death == FreedOnDeath::AfterSession;
    assert!(grant.counted_from.moment() >= before || of_a_session);
    assert!(grant.counted_from.moment() <= now() && now().since(grant.counted_from.moment()) < SHORT);
    let given = grant.ttl.expect("a TTL");
    assert!(given >= SHORT, "asked for {SHORT:?}, granted {given:?}");
    let shown = b.inspect(Some(waiter.name())).await.expect("the listing");
    let shown = shown[0].holders[0].expires_in.expect("an expiry");
    assert!(now().after(shown) >= grant.counted_from.moment().after(given - ms(2)), "shorter than it was granted");
    // Confirmed means conditional on the owner: once it is another's, the turn cannot come any more.
    assert!(matches!(renewed(&b, &waiter).await, Ok(Renewal::Renewed { .. })));
    Ok(())
}

/// Clients whose clocks are hours apart exclude each other all the same. Source: ShedLock 231, 1876, 3577.
pub async fn t2_expiry_is_judged_by_the_stores_clock(site: &dyn Site) -> Verdict {
    let fast = locks_on(site, JumpingClock::ahead(Duration::from_secs(7200))).await;
    let slow = locks(site).await;
    let held = take(&slow, "x", LONG).await;
    assert!(is_busy(&fast, "x").await, "a fast clock must not make a lease expire");
    let other = take(&fast, "y", LONG).await;
    assert!(is_busy(&slow, "y").await);
    assert!(held.check().is_ok() && other.check().is_ok());
    if site.capabilities().expires {
        let brief = acquired(fast.lock("z").ttl(SHORT).manual_renewal().acquire().await);
        let next = within(SHORT + SOON, "a lease of a fast clock expires", slow.lock("z").acquire()).await;
        acquired(next).check().expect("it is ours now");
        assert!(brief.check().is_err());
    }
    Ok(())
}

/// A machine that was suspended for longer than the TTL: the first look after the resume tells, and so does the timer.
pub async fn t2_time_asleep_counts(site: &dyn Site) -> Verdict {
    expires(site)?;
    let clock = JumpingClock::default();
    let locks = locks_on(site, clock.clone()).await;
    let (looked_at, waited_for) = (take(&locks, "x", LONG).await, take(&locks, "y", LONG).await);
    clock.jump_unnoticed(LONG);
    let kind = looked_at.check().expect_err("it is over").kind();
    assert_eq!(kind, ErrorKind::Lost(LossReason::Expired));
    assert_eq!(looked_at.remaining(), Some(Duration::ZERO));
    clock.jump(Duration::ZERO);
    assert_eq!(reason_of_loss(&waited_for, SOON).await, LossReason::Expired);
    Ok(())
}

pub async fn t3_zero_waiting_time_tries_once(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    for wait in [Wait::Once, Wait::from(Duration::ZERO), Wait::from(Duration::from_micros(300))] {
        let busy = within(SOON, "one try", b.lock("x").wait(wait).acquire()).await.expect("an answer");
        assert!(matches!(busy, Attempt::Busy(_)), "{wait:?}");
    }
    drop(held);
    let free = b.lock("x").wait(SOON).acquire();
    assert!(matches!(free.await, Ok(Attempt::Acquired(_))));
    Ok(())
}

/// Neither at once nor late, and the holder is named. Source: distributed-lock-rs 0.2 (never waits), bsm/redislock 79.
pub async fn t3_a_waiting_limit_ends_in_busy(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let _held = acquired(a.lock("x").ttl(LONG).label("job", "nightly").acquire().await);
    let before = now();
    let outcome = within(SOON + SOON, "the limit ends it", b.lock("x").wait(ms(500)).acquire()).await;
    let waited = now().since(before);
    let Ok(Attempt::Busy(busy)) = outcome else { panic!("busy is the answer: {outcome:?}") };
    assert!(waited >= ms(450), "gave up after {waited:?}");
    let holder = busy.holder.expect("the holder is named");
    assert_eq!(holder.claimant.pid, std::process::id());
    assert_eq!(holder.claimant.labels, [("job".to_owned(), "nightly".to_owned())]);
    Ok(())
}

pub async fn t3_without_a_limit_it_waits_as_long_as_it_takes(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    // Renewed meanwhile, so that it is held for longer than its TTL.
    let held = take(&a, "x", SHORT).await;
    let waiting = start_waiting(&b, "x", SHORT).await;
    sleep(&BootClock, SHORT + SHORT / 3).await;
    assert!(!waiting.is_finished(), "nobody had released");
    held.check().expect("renewed");
    drop(held);
    drop(acquired(within(SOON, "the lock passes on", waiting).await.expect("no panic")));
    Ok(())
}

/// Source: rslock 0.10; pottery 404; etcd 18082.
pub async fn t3_the_waiting_time_bounds_a_store_that_is_down(site: &dyn Site) -> Verdict {
    let server = site.server()?;
    let locks = locks(site).await;
    server.kill();
    let acquire = locks.lock("x").wait(ms(2000)).acquire();
    let error = within(ms(2000) + SOON, "the waiting time bounds it", acquire).await.expect_err("the server is down");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    Ok(())
}

/// A server that accepts connections and never answers. Source: etcd 18082.
pub async fn t3_the_waiting_time_bounds_a_store_that_is_silent(site: &dyn Site) -> Verdict {
    let network = site.network()?;
    let disturbed = locks_at(site, &site.disturbed_url()?).await;
    network.set(Weather::Silence);
    let before = now();
    let acquire = disturbed.lock("x").wait(ms(1000)).acquire();
    let error = within(ms(1000) + SOON, "the waiting time bounds it", acquire).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(now().since(before) >= ms(900), "it kept trying until the limit");
    Ok(())
}

/// Source: symfony (rounding to 0); vitess 8309.
pub async fn t3_a_ttl_is_neither_zero_nor_truncated(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    for bad in [Duration::ZERO, ms(1), Ttl::MAX + ms(1)] {
        let error = locks.lock("x").ttl(bad).acquire().await.expect_err("outside the limits");
        assert_eq!(error.kind(), ErrorKind::InvalidInput, "{bad:?}");
    }
    if !site.capabilities().expires {
        return Ok(());
    }
    let store = store(site).await;
    // A session's timeout has narrower limits than a lease.
    let of_a_session = site.capabilities().freed_on_death == FreedOnDeath::AfterSession;
    let longest = if of_a_session { Duration::from_secs(24 * 24 * 60 * 60) } else { Ttl::MAX };
    for ttl in [Duration::from_micros(999_500), ms(1_999), longest] {
        let claim = claim("x", ttl);
        let grant = granted(&store, &claim).await;
        let states = store.inspect(Some(&name("x"))).await.expect("the listing");
        let shown = states[0].holders[0].expires_in.expect("an expiry");
        let given = grant.ttl.expect("a TTL");
        assert!(given >= ttl, "asked for {ttl:?}, granted {given:?}");
        assert!(shown + ms(600) >= ttl, "asked for {ttl:?}, the store keeps {shown:?}");
        store.release(&claim.holding).await.expect("a release");
    }
    // The shortest one works, or is refused as late on a machine this busy; it is never endless.
    let shortest = claim("x", Ttl::MIN);
    assert!(matches!(store.claim(&shortest, Patience::Once).await, Ok(Claimed::Granted(_))));
    eventually(SOON, "the shortest lease ends", async || !is_busy(&locks, "x").await).await;
    Ok(())
}

//! O1 to O4: whose a grant is, and what somebody else can do to it.

use std::collections::HashSet;

use fencepost::{Acquired, Attempt, ErrorKind, Wait};
use fencepost_core::{
    claim::{Claimed, Forced, LossReason, Patience, Release, Renewal},
    error::Applied,
};
use fencepost_servers::Weather;

use crate::{
    site::{Site, Verdict},
    steps::{
        LONG, SHORT, SOON, acquired, claim, eventually, expires, granted, is_busy, locks, locks_at, ms, name,
        nothing_left, queued, renewed, store, take, within,
    },
};

pub async fn o1_every_grant_has_an_owner_value_of_its_own(site: &dyn Site) -> Verdict {
    fn assert_send<T: Send>(_: &T) {}
    let locks = locks(site).await;
    let mut owners = HashSet::new();
    for _ in 0..50 {
        let mut lease = acquired(locks.lock("x").acquire().await);
        assert_send(&lease);
        assert!(owners.insert(*lease.owner()), "an owner value came twice");
        lease.release().await.expect("a release");
    }
    Ok(())
}

/// Two tasks that share a client are strangers to each other. Source: redis-py asyncio; aredis 119.
pub async fn o1_tasks_of_one_client_exclude_each_other(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let mut a = take(&locks, "x", LONG).await;
    assert!(is_busy(&locks, "x").await);
    locks.store().force(&name("x"), None).await.expect("an administrator's answer");
    let b = acquired(locks.lock("x").ttl(LONG).wait(SOON).acquire().await);
    let late = a.release().await.expect("an answer");
    assert_eq!(late, Release::HeldByOther);
    b.check().expect("a late release of one task must not touch another's grant");
    assert!(is_busy(&locks, "x").await);
    Ok(())
}

/// Source: redisson 4869; redis-py 3532; laravel 26213.
pub async fn o2_a_stale_release_changes_nothing(site: &dyn Site) -> Verdict {
    let (a, b) = (store(site).await, store(site).await);
    let (stale, holder) = (claim("x", LONG), claim("x", LONG));
    granted(&a, &stale).await;
    assert!(matches!(b.force(&name("x"), None).await, Ok(Forced::Broken(_))));
    granted(&b, &holder).await;
    assert_eq!(a.release(&stale.holding).await.expect("an answer"), Release::HeldByOther);
    let third = claim("x", LONG);
    assert!(matches!(a.claim(&third, Patience::Once).await, Ok(Claimed::Busy(_))), "the other keeps it");
    assert_eq!(b.release(&holder.holding).await.expect("an answer"), Release::Released);
    Ok(())
}

/// Nineteen days of two leaders came of this. Source: oban 1488.
pub async fn o2_a_stale_renewal_changes_nothing(site: &dyn Site) -> Verdict {
    expires(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (stale, holder) = (claim("x", LONG), claim("x", SHORT));
    granted(&a, &stale).await;
    b.force(&name("x"), None).await.expect("an administrator's answer");
    let given = granted(&b, &holder).await.ttl.expect("a TTL");
    let answer = renewed(&a, &stale).await.expect("an answer");
    assert_eq!(answer, Renewal::Lost(LossReason::TakenOver));
    let states = b.inspect(Some(&name("x"))).await.expect("the listing");
    let left = states[0].holders[0].expires_in.expect("an expiry");
    assert!(left <= given, "the stale renewal extended another's grant to {left:?}");
    Ok(())
}

pub async fn o2_a_renewal_never_creates(site: &dyn Site) -> Verdict {
    expires(site)?;
    let store = store(site).await;
    let released = claim("x", LONG);
    granted(&store, &released).await;
    store.release(&released.holding).await.expect("a release");
    let never_held = claim("y", LONG);
    for claim in [released, never_held] {
        let answer = renewed(&store, &claim).await.expect("an answer");
        assert!(matches!(answer, Renewal::Lost(_)), "{answer:?}");
    }
    let left = site.leftovers().await;
    assert!(left.is_empty(), "a renewal created {left:?}");
    Ok(())
}

/// That is how an answer of unknown outcome is cleared up.
pub async fn o2_a_repeated_claim_answers_as_the_first(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    let first = granted(&store, &holder).await;
    let again = granted(&store, &holder).await;
    assert_eq!(first.fence, again.fence, "the same grant has the same fence");
    queued(&store, &waiter).await;
    queued(&store, &waiter).await;
    let states = store.inspect(Some(&name("x"))).await.expect("the listing");
    assert_eq!((states[0].holders.len(), states[0].waiters.len()), (1, 1));
    assert_eq!(store.release(&holder.holding).await.expect("an answer"), Release::Released);
    within(SOON, "the turn comes", store.turn(&waiter)).await.expect("a grant");
    Ok(())
}

pub async fn o3_a_release_says_what_it_found(site: &dyn Site) -> Verdict {
    let store = store(site).await;
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    granted(&store, &holder).await;
    queued(&store, &waiter).await;
    assert_eq!(store.release(&waiter.holding).await.expect("an answer"), Release::Released, "it left the queue");
    assert_eq!(store.release(&waiter.holding).await.expect("an answer"), Release::HeldByOther);
    assert_eq!(store.release(&holder.holding).await.expect("an answer"), Release::Released);
    assert_eq!(store.release(&holder.holding).await.expect("an answer"), Release::AlreadyExpired);
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn o3_a_release_after_expiry_says_so(site: &dyn Site) -> Verdict {
    expires(site)?;
    let locks = locks(site).await;
    let mut lease = acquired(locks.lock("x").ttl(ms(300)).manual_renewal().acquire().await);
    assert_eq!(within(SOON, "it expires", lease.lost()).await, LossReason::Expired);
    nothing_left(site, SOON).await;
    let answer = lease.release().await.expect("an expired lease is no error");
    assert_eq!(answer, Release::AlreadyExpired);
    Ok(())
}

/// Source: redis-py 3847; ncps 913.
pub async fn o3_a_cancelled_release_can_be_repeated(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    for polls in 0..8 {
        let mut lease = take(&locks, "x", LONG).await;
        poll_and_drop(lease.release(), polls).await;
        let answer = lease.release().await.expect("an answer");
        assert!(matches!(answer, Release::Released | Release::AlreadyExpired), "{answer:?}");
        eventually(SOON, "the lock is free long before its TTL", async || !is_busy(&locks, "x").await).await;
    }
    return Ok(());

    async fn poll_and_drop(future: impl Future, polls: u32) {
        let mut future = std::pin::pin!(future);
        for _ in 0..polls {
            let done = std::future::poll_fn(|context| std::task::Poll::Ready(future.as_mut().poll(context).is_ready()));
            if done.await {
                return;
            }
            tokio::task::yield_now().await;
        }
    }
}

pub async fn o3_a_release_without_an_answer_is_unknown(site: &dyn Site) -> Verdict {
    let network = site.network()?;
    let locks = locks_at(site, &site.disturbed_url()?).await;
    let mut lease = take(&locks, "x", LONG).await;
    network.set(Weather::LostReplies);
    let limit = fencepost::RELEASE_WITHIN + SOON;
    let error = within(limit, "a release has a limit of its own", lease.release()).await.expect_err("no answer came");
    assert_eq!((error.kind(), error.applied()), (ErrorKind::Unavailable, Applied::Unknown), "{error}");
    network.set(Weather::Fair);
    // A connection that swallowed replies is given up after a few of them; then the answer comes.
    let mut answer = None;
    eventually(limit * 2, "a repeated release is answered", async || {
        answer = lease.release().await.ok();
        answer.is_some()
    })
    .await;
    assert!(matches!(answer, Some(Release::Released | Release::AlreadyExpired)), "{answer:?}");
    Ok(())
}

pub async fn o4_a_lock_is_not_reentrant_unless_asked(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let lease = take(&locks, "x", LONG).await;
    assert!(is_busy(&locks, "x").await, "the holder's own client is a stranger too");
    drop(lease);
    let reentrant = locks.reentrant();
    let first = enter(&reentrant).await;
    let second = enter(&reentrant).await;
    assert_eq!(first.lease().owner(), second.lease().owner());
    assert_eq!(first.leave().await.expect("an answer"), None, "one entry is left");
    assert!(is_busy(&locks, "x").await);
    assert_eq!(second.leave().await.expect("an answer"), Some(Release::Released));
    assert!(!is_busy(&locks, "x").await);
    return Ok(());

    async fn enter(reentrant: &fencepost::Reentrant<fencepost::Efficiency>) -> fencepost::Entry<fencepost::Efficiency> {
        match reentrant.enter("x", LONG, Wait::from(SOON)).await {
            Ok(Acquired(entry)) => entry,
            Ok(Attempt::Busy(busy)) => panic!("busy: {busy:?}"),
            Err(error) => panic!("{error}"),
        }
    }
}

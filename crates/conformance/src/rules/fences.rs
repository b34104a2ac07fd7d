//! F1 to F4: numbers that only rise.

use std::time::Duration;

use fencepost::{Acquired, Attempt, Correctness, ErrorKind, Fence, Lease, Locks};
use fencepost_core::{
    claim::{Forced, Mode, Renewal},
    clock::{BootClock, sleep},
};
use tokio::task::JoinSet;

use crate::{
    holder::Holder,
    ledger::{self, Ledger},
    site::{DoesNotApply, Server, Site, Tampering, Verdict},
    steps::{
        LONG, SHORT, SOON, claim, claim_as, eventually, fence_of, granted, issues_fences, ms, name, queued, renewed,
        store, within,
    },
};

pub async fn f1_fences_rise_and_stay_for_the_lease(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    let (a, b) = (fenced(site).await, fenced(site).await);
    let mut last = 0;
    for round in 0..20 {
        let locks = if round % 2 == 0 { &a } else { &b };
        let mut lease = taken(locks, SHORT).await;
        let fence = lease.fence().get();
        assert!(fence > last && fence <= Fence::MAX, "{fence} after {last}");
        last = fence;
        if round == 0 {
            sleep(&BootClock, SHORT + SHORT / 2).await;
            lease.check().expect("renewed");
            let states = b.store().inspect(Some(lease.name())).await.expect("the listing");
            assert_eq!(states[0].holders[0].fence, Some(lease.fence()), "the same after a renewal");
        }
        lease.release().await.expect("an answer");
    }
    Ok(())
}

pub async fn f1_fences_rise_in_the_order_of_holding(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    let log = tempfile::NamedTempFile::new().expect("a file");
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (locks, log) = (fenced(site).await, log.path().to_owned());
        clients.spawn(async move { ledger::log_fences(&locks, "x", 50, &log).await });
    }
    within(Duration::from_secs(60), "all are served", clients.join_all()).await;
    assert_eq!(ledger::assert_rising(log.path()), 400);
    Ok(())
}

/// Eight processes, two hundred grants each; two are killed and replaced on the way.
/// Source: etcd (header revision under contention); pglock.
pub async fn f1_fences_rise_across_processes_and_kills(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    site.apart()?;
    let log = tempfile::NamedTempFile::new().expect("a file");
    let lines = || std::fs::read(log.path()).expect("the log").iter().filter(|byte| **byte == b'\n').count();
    let mut doomed = Vec::new();
    let mut live = JoinSet::new();
    for number in 0..10 {
        let mut holder = Holder::start(site).await;
        if number < 2 {
            holder.start_logging("x", u64::MAX, log.path()).await; // until it is killed
            doomed.push(holder);
        } else {
            let path = log.path().to_owned();
            live.spawn(async move { holder.log_fences("x", 200, &path).await });
        }
    }
    for holder in doomed {
        let before = lines();
        eventually(SOON * 3, "grants go on", async || lines() > before + 20).await;
        holder.kill();
    }
    within(Duration::from_secs(60), "all are served", live.join_all()).await;
    assert!(ledger::assert_rising(log.path()) >= 8 * 200);
    Ok(())
}

pub async fn f1_a_store_without_fences_refuses_correctness(site: &dyn Site) -> Verdict {
    if issues_fences(site).is_ok() {
        return Err(DoesNotApply("the store issues fences"));
    }
    let opened = Locks::builder(&site.url()).namespace(site.namespace()).open().await.expect("the store opens");
    let error = opened.fenced().expect_err("never a silent downgrade");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains(site.capabilities().store) && text.contains("file:"), "names the store and others: {text}");
    Ok(())
}

/// Eight holders add to one number while an administrator breaks their lock at random: what was written by a holder
/// that had lost it is refused by the resource, and the sum is exact. Source: Jepsen on etcd 3.4.3.
pub async fn f1_no_update_is_lost_when_the_resource_checks(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let ledger = Ledger::at(file.path());
    // What the fence prevents, step by step.
    let (a, b) = (fenced(site).await, fenced(site).await);
    let stale = taken(&a, LONG).await;
    let read = ledger.advance(stale.fence()).expect("the first fence");
    b.store().force(&name("x"), None).await.expect("an administrator's answer");
    let mut next = taken(&b, LONG).await;
    let value = ledger.advance(next.fence()).expect("a newer fence");
    ledger.write(next.fence(), value + 1).expect("the newest fence");
    ledger.write(stale.fence(), read + 1).expect_err("a stale holder's write must be refused");
    next.release().await.expect("an answer");
    drop(stale);

    let mut workers = JoinSet::new();
    for _ in 0..8 {
        let path = file.path().to_owned();
        if site.apart().is_ok() {
            let mut holder = Holder::start(site).await;
            workers.spawn(async move { holder.increment("x", 25, &path).await });
        } else {
            let locks = fenced(site).await;
            workers.spawn(async move { ledger::increment(&locks, "x", 25, &Ledger::at(&path)).await });
        }
    }
    let breaking = tokio::spawn({
        let store = store(site).await;
        async move {
            loop {
                tokio::time::sleep(ms(23)).await;
                store.force(&name("x"), None).await.expect("an administrator's answer");
            }
        }
    });
    let refused: u64 = within(Duration::from_secs(60), "all are done", workers.join_all()).await.iter().sum();
    breaking.abort();
    assert_eq!(ledger.read(), 8 * 25 + 1, "an update was lost or came twice; {refused} stale writes were refused");
    Ok(())
}

pub async fn f2_the_fence_comes_with_the_grant(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    let (a, b) = (store(site).await, store(site).await);
    let (holder, waiter, third) = (claim("x", LONG), claim("x", LONG), claim("x", LONG));
    let first = fence_of(&granted(&a, &holder).await);
    queued(&b, &waiter).await;
    let shown = a.inspect(Some(&name("x"))).await.expect("the listing")[0].holders[0].fence;
    assert_eq!(shown, Some(first), "a claim in the queue does not change the holder's fence");
    a.release(&holder.holding).await.expect("a release");
    let second = fence_of(&within(SOON, "the turn comes", b.turn(&waiter)).await.expect("a grant"));
    let shown = a.inspect(Some(&name("x"))).await.expect("the listing")[0].holders[0].fence;
    assert_eq!(shown, Some(second), "what the holder was told is what the store recorded");
    assert!(second > first);
    b.release(&waiter.holding).await.expect("a release");
    assert!(fence_of(&granted(&a, &third).await) > second);
    Ok(())
}

pub async fn f3_readers_never_advance_a_fence(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    if !site.capabilities().shared {
        return Err(DoesNotApply("the store has no shared claims"));
    }
    let store = store(site).await;
    let mut written = Vec::new();
    for _ in 0..2 {
        let writer = claim("x", LONG);
        written.push(fence_of(&granted(&store, &writer).await).get());
        store.release(&writer.holding).await.expect("a release");
    }
    // Fences that count one lock's writers, or numbers of the store's whole history.
    let counts = written[1] == written[0] + 1;
    let mut read = Vec::new();
    for _ in 0..3 {
        let reader = claim_as("x", LONG, Mode::Shared);
        read.push(fence_of(&granted(&store, &reader).await).get());
        store.release(&reader.holding).await.expect("a release");
    }
    let next = fence_of(&granted(&store, &claim("x", LONG)).await).get();
    for reader in read {
        assert!(written[1] <= reader && reader < next, "{reader} lies between {written:?} and {next}");
        assert!(!counts || reader == written[1], "the last writer's");
    }
    assert!(!counts || next == written[1] + 1);
    Ok(())
}

/// Released, forced, deleted, restarted. Source: consul (restarts at 1); redisson 6510.
pub async fn f4_a_fence_never_goes_back(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    let mut last = 0;
    for round in 0..8 {
        let store = store(site).await; // as after a restart of the application
        let holder = claim("x", LONG);
        let grant = granted(&store, &holder).await;
        let fence = fence_of(&grant).get();
        assert!(fence > last, "{fence} after {last}, in round {round}");
        last = fence;
        match round % 4 {
            0 => drop(store.release(&holder.holding).await.expect("a release")),
            1 => {
                let wrong = store.force(&name("x"), Fence::new(fence + 1)).await.expect("an answer");
                assert!(matches!(wrong, Forced::OtherFence(_)), "{wrong:?}");
                let broken = store.force(&name("x"), grant.fence).await.expect("an answer");
                assert!(matches!(broken, Forced::Broken(Some(_))), "{broken:?}");
                assert!(matches!(renewed(&store, &holder).await, Ok(Renewal::Lost(_)) | Err(_)));
            }
            2 => site.tamper(Tampering::Delete(&name("x"))).await?,
            _ => {
                store.release(&holder.holding).await.expect("a release");
                if let Ok(server) = site.server() {
                    restart(server);
                }
            }
        }
    }
    return Ok(());

    fn restart(server: &dyn Server) {
        server.kill();
        server.start();
    }
}

/// To go on could repeat a number: refuse, and say how to repair it.
pub async fn f4_an_unreadable_fence_is_not_started_again(site: &dyn Site) -> Verdict {
    issues_fences(site)?;
    let locks = fenced(site).await;
    taken(&locks, LONG).await.release().await.expect("an answer");
    site.tamper(Tampering::CorruptFence(&name("x"))).await?;
    let fresh = fenced(site).await;
    for locks in [&locks, &fresh] {
        let error = within(SOON, "no endless wait", locks.lock("x").acquire()).await.expect_err("never again from 1");
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::ForeignValue), "{error}");
        assert!(error.advice().is_some(), "it says how to repair it: {error}");
    }
    Ok(())
}

async fn fenced(site: &dyn Site) -> Locks<Correctness> {
    let opened = Locks::builder(&site.url()).namespace(site.namespace()).open().await.expect("the store opens");
    opened.fenced().expect("a store that issues fences")
}

async fn taken(locks: &Locks<Correctness>, ttl: Duration) -> Lease<Correctness> {
    match locks.lock("x").ttl(ttl).wait(SOON).acquire().await {
        Ok(Acquired(lease)) => lease,
        Ok(Attempt::Busy(busy)) => panic!("busy: {busy:?}"),
        Err(error) => panic!("{error}"),
    }
}

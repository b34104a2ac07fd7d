//! W1 to W3: how a waiter wakes, how many do, and in which order.

use std::time::Duration;

use fencepost_bench::passed_over;
use fencepost_core::{
    capabilities::{FreedOnDeath, Order},
    claim::Patience,
};
use tokio::task::JoinSet;

use crate::{
    crowd::{self, Crowd},
    holder::Holder,
    site::{DoesNotApply, Site, Tampering, Verdict},
    steps::{
        LONG, SHORT, SOON, acquired, claim, eventually, expires, granted, locks, ms, name, now, queued, start_waiting,
        store, take, waiters, within,
    },
};

/// The release falls between the failed try and the wait. Source: redisson 1763.
pub async fn w1_a_release_before_the_wait_is_not_missed(site: &dyn Site) -> Verdict {
    let (a, b) = (store(site).await, store(site).await);
    let (holder, waiter) = (claim("x", LONG), claim("x", LONG));
    granted(&a, &holder).await;
    queued(&b, &waiter).await;
    a.release(&holder.holding).await.expect("a release");
    within(SOON, "a lost wake-up does not cost a TTL", b.turn(&waiter)).await.expect("a grant");
    Ok(())
}

/// Source: redisson 3891, 5762.
pub async fn w1_a_cut_message_connection_costs_little(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    let waiting = start_waiting(&b, "x", LONG).await;
    site.tamper(Tampering::CutMessages).await?;
    drop(held);
    drop(acquired(within(SOON, "the hand-over finds another way", waiting).await.expect("no panic")));
    Ok(())
}

pub async fn w1_a_waiter_wakes_when_the_holder_dies(site: &dyn Site) -> Verdict {
    site.apart()?;
    let mut holder = Holder::start(site).await;
    let locks = locks(site).await;
    holder.acquire("x", SHORT).await;
    let waiting = start_waiting(&locks, "x", LONG).await;
    holder.kill();
    let bound = match site.capabilities().freed_on_death {
        FreedOnDeath::AtOnce => SOON,
        FreedOnDeath::AfterTtl | FreedOnDeath::AfterSession => SHORT + SOON,
    };
    drop(acquired(within(bound, "a dead holder's lock passes on", waiting).await.expect("no panic")));
    Ok(())
}

/// The head of the queue is killed, then the holder releases. Source: redisson 1104, 3004; etcd 19597.
pub async fn w1_a_dead_waiter_is_passed_over(site: &dyn Site) -> Verdict {
    site.apart()?;
    let mut dead = Holder::start(site).await;
    let (a, b) = (locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    // Where places hang on a session, that of a dead one lasts as long.
    let ttl = if site.capabilities().freed_on_death == FreedOnDeath::AfterSession { SHORT } else { LONG };
    dead.start_acquiring("x", ttl).await;
    eventually(SOON, "it waits", async || waiters(a.store(), "x").await == 1).await;
    let next = start_waiting(&b, "x", LONG).await;
    dead.kill();
    drop(held);
    drop(acquired(within(SOON * 2, "the next live waiter has it", next).await.expect("no panic")));
    Ok(())
}

/// A waiter that is handed the lock and does not confirm it holds nothing.
pub async fn w1_a_waiter_that_forgot_its_turn_is_passed_over(site: &dyn Site) -> Verdict {
    expires(site)?;
    let store = store(site).await;
    let (holder, forgetful, next) = (claim("x", LONG), claim("x", LONG), claim("x", LONG));
    granted(&store, &holder).await;
    queued(&store, &forgetful).await;
    queued(&store, &next).await;
    store.release(&holder.holding).await.expect("a release");
    within(SOON * 2, "the next live waiter has it", store.turn(&next)).await.expect("a grant");
    Ok(())
}

pub async fn w2_one_release_wakes_one_waiter(site: &dyn Site) -> Verdict {
    let (a, b, c) = (locks(site).await, locks(site).await, locks(site).await);
    let held = take(&a, "x", LONG).await;
    let mut waiting = JoinSet::new();
    for number in 0..20 {
        let request = if number % 2 == 0 { b.lock("x") } else { c.lock("x") };
        waiting.spawn(request.ttl(LONG).acquire());
    }
    eventually(SOON, "all wait", async || waiters(a.store(), "x").await == 20).await;
    drop(held);
    while !waiting.is_empty() {
        let next = within(SOON, "each release wakes a waiter", waiting.join_next()).await.expect("one is left");
        let lease = acquired(next.expect("no panic"));
        tokio::time::sleep(ms(5)).await;
        assert!(waiting.try_join_next().is_none(), "one release woke two");
        drop(lease);
    }
    Ok(())
}

pub async fn w2_waiters_share_one_connection(site: &dyn Site) -> Verdict {
    let server = site.server()?;
    let (a, b) = (locks(site).await, locks(site).await);
    let mut held = Vec::new();
    for number in 0..50 {
        held.push(take(&a, &format!("{number}"), LONG).await);
    }
    let mut waiting = JoinSet::new();
    for number in 0..50 {
        waiting.spawn(b.lock(format!("{number}")).ttl(LONG).acquire());
    }
    eventually(SOON, "all wait", async || {
        let states = b.store().inspect(None).await.expect("the listing");
        states.iter().map(|state| state.waiters.len()).sum::<usize>() == 50
    })
    .await;
    let connections = server.connections();
    assert!(connections <= 4, "two clients, each with one for commands and one for messages: {connections}");
    drop(held);
    within(SOON * 2, "all are served", waiting.join_all())
        .await
        .into_iter()
        .for_each(|outcome| drop(acquired(outcome)));
    Ok(())
}

/// Five hundred tasks of four processes on twenty names: nobody starves, nobody overlaps, no connection fails.
/// Source: redsync 102; DistributedLock 263.
pub async fn w2_a_crowd_is_served(site: &dyn Site) -> Verdict {
    let arena = tempfile::tempdir().expect("a directory");
    let crowd = Crowd { tasks: 125, names: 20, millis: 4000, arena: arena.path().to_owned() };
    let mut processes = JoinSet::new();
    for _ in 0..4 {
        if site.apart().is_ok() {
            let mut holder = Holder::start(site).await;
            let crowd = crowd.clone();
            processes.spawn(async move { holder.crowd(crowd).await });
        } else {
            let (locks, crowd) = (locks(site).await, crowd.clone());
            processes.spawn(async move { crowd::serve(&locks, &crowd).await });
        }
    }
    for outcome in within(Duration::from_secs(60), "the crowd ends", processes.join_all()).await {
        assert!(outcome.errors.is_empty(), "{:?}", outcome.errors);
        assert!(outcome.least >= 1, "a task starved while {} grants were made", outcome.grants);
    }
    Ok(())
}

pub async fn w3_first_come_first_served(site: &dyn Site) -> Verdict {
    first_come(site)?;
    let a = locks(site).await;
    let held = take(&a, "x", LONG).await;
    let mut waiting = Vec::new();
    for _ in 0..6 {
        let client = locks(site).await;
        let task = start_waiting(&client, "x", LONG).await;
        waiting.push((client, task));
    }
    // A newcomer that tries while the lock passes on must not get in between.
    let newcomer = claim("x", LONG);
    drop(held);
    for place in 0..waiting.len() {
        let (earlier, later) = waiting.split_at_mut(place + 1);
        let turn = &mut earlier[place].1;
        let lease = acquired(within(SOON, "the next in the queue has it", turn).await.expect("no panic"));
        assert!(later.iter().all(|(_, task)| !task.is_finished()), "somebody overtook number {place}");
        let tried = a.store().claim(&newcomer, Patience::Once).await.expect("an answer");
        assert!(matches!(tried, fencepost_core::claim::Claimed::Busy(_)));
        drop(lease);
    }
    Ok(())
}

pub async fn w3_first_come_first_served_across_processes(site: &dyn Site) -> Verdict {
    first_come(site)?;
    site.apart()?;
    let a = locks(site).await;
    let held = take(&a, "x", LONG).await;
    let mut processes = Vec::new();
    for place in 1..=4 {
        let mut holder = Holder::start(site).await;
        holder.start_acquiring("x", LONG).await;
        eventually(SOON, "it waits", async || waiters(a.store(), "x").await == place).await;
        processes.push(holder);
    }
    drop(held);
    for (place, process) in processes.iter_mut().enumerate() {
        process.acquired("x").await;
        eventually(SOON, "the rest waits", async || waiters(a.store(), "x").await == 3 - place).await;
        process.release("x").await;
    }
    Ok(())
}

/// Whoever waits may be passed over while it cannot be reached; on a busy machine that happens to a task that is not run.
pub async fn w3_in_a_crowd_nobody_is_passed(site: &dyn Site) -> Verdict {
    first_come(site)?;
    let clients = [store(site).await, store(site).await, store(site).await, store(site).await];
    let (lock, until) = (name("x"), now().after(ms(1500)));
    let crowd = passed_over(&clients, &lock, 16, until);
    let passed = within(LONG, "everybody is served", crowd).await.expect("answers");
    assert!(passed.waited > 0 && passed.most <= 2, "{passed:?}");
    Ok(())
}

fn first_come(site: &dyn Site) -> Verdict {
    match site.capabilities().order {
        Order::FirstCome(_) => Ok(()),
        Order::None => Err(DoesNotApply("the store promises no order")),
    }
}

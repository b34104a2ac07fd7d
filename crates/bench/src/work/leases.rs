//! Many leases held by one client: what renewing and remembering them costs.

use std::{sync::Arc, time::Duration};

use fencepost::{
    Acquired, Efficiency, Error, Lease, Locks,
    clock::{self, BootClock},
    store::Store,
};
use futures_util::future::join_all;

use crate::{
    counted::Counted,
    floor::Commands,
    ground::Ground,
    process,
    report::{Figure, Goal, Outcome},
    samples::now,
};

/// Takers at once.
const TAKERS: usize = 64;
/// The usual TTL, and the longest used here.
const TTL: Duration = Duration::from_secs(30);

pub(super) async fn measure(ground: &Ground, mut outcome: Outcome, span: Duration) -> Result<Outcome, Error> {
    let began = now();
    let store = Arc::new(Counted::new(ground.store().await?));
    let expires = store.capabilities().expires;
    let wanted = outcome.size;
    if !expires {
        outcome.size = wanted.min(process::files_to_spare());
    }
    if outcome.size < wanted {
        outcome.notes.push(format!("the limit of open files allows {} leases instead of {wanted}", outcome.size));
    }
    let locks = Locks::with_store(store.clone(), BootClock::shared())?;
    // A renewal comes after a third of the TTL: every lease is renewed about once in the time that is left.
    let ttl = span.mul_f64(2.0).clamp(Duration::from_millis(500), TTL);
    // What is there once for all leases must not count for each.
    // Given back before it goes on: releases in the background would be counted as renewals.
    give_back(&mut take(ground, &locks, TAKERS, ttl).await?).await?;
    let memory = process::resident_kib();
    let mut leases = take(ground, &locks, outcome.size, ttl).await?;
    if let Some((before, after)) = memory.zip(process::resident_kib()) {
        let each = after.saturating_sub(before) as f64 * 1024.0 / outcome.size as f64;
        outcome.figures.push(Figure::new("memory per lease", each, "bytes").with(Goal::AtMost(1024.0)));
    }
    // A store may grant more than was asked for, whole seconds for instance.
    let granted = leases.iter().filter_map(Lease::remaining).max().map_or(ttl, |left| left.max(ttl));
    let window = span.saturating_sub(now().since(began)).max(granted.mul_f64(0.5));
    let watched = watch(ground, &store, window).await?;
    let share = watched.cpu.as_secs_f64() / window.as_secs_f64() * 100.0;
    outcome.figures.push(Figure::new("processor", share, "% of a core").with(Goal::AtMost(2.0)));
    if expires {
        renewals(&mut outcome, &watched, granted, window);
    } else {
        outcome.notes.push("nothing to renew: its grants do not expire".into());
    }
    let lost = leases.iter().filter(|lease| lease.check().is_err()).count();
    outcome.figures.push(Figure::new("leases lost", lost as f64, "").with(Goal::AtMost(0.0)));
    give_back(&mut leases).await?;
    locks.close().await;
    Ok(outcome)
}

fn renewals(outcome: &mut Outcome, watched: &Watched, ttl: Duration, window: Duration) {
    outcome.figures.push(Figure::new("renewals", watched.renewed as f64, ""));
    outcome.notes.push(format!("watched for {window:.1?} at a TTL of {ttl:.1?}"));
    if watched.not_renewed > 0 {
        outcome.notes.push(format!("{} renewals failed or came too late", watched.not_renewed));
    }
    if let Some(commands) = watched.commands {
        let each = commands.scripts as f64 / watched.renewed as f64 * 100.0;
        outcome.figures.push(Figure::new("commands sent per 100 renewals", each, "").with(Goal::AtMost(1.0)));
    }
}

struct Watched {
    renewed: u64,
    not_renewed: u64,
    cpu: Duration,
    commands: Option<Commands>,
}

/// Looks on while the client does nothing but renew.
async fn watch(ground: &Ground, store: &Counted, window: Duration) -> Result<Watched, Error> {
    let before = ground.commands().await?;
    let (renewed, not_renewed, cpu) = (store.renewed(), store.not_renewed(), process::cpu_time());
    clock::sleep(&BootClock, window).await;
    let (cpu, renewed) = (process::cpu_time().saturating_sub(cpu), store.renewed() - renewed);
    let not_renewed = store.not_renewed() - not_renewed;
    let commands = ground.commands().await?.zip(before).map(|(after, before)| after.since(before));
    Ok(Watched { renewed, not_renewed, cpu, commands })
}

async fn take(
    ground: &Ground,
    locks: &Locks<Efficiency>,
    count: usize,
    ttl: Duration,
) -> Result<Vec<Lease<Efficiency>>, Error> {
    let mut leases = Vec::with_capacity(count);
    while leases.len() < count {
        let names = ground.names(TAKERS.min(count - leases.len()));
        for attempt in join_all(names.iter().map(|name| locks.lock(name).ttl(ttl).acquire())).await {
            // Nobody else uses the name.
            if let Acquired(lease) = attempt? {
                leases.push(lease);
            }
        }
    }
    Ok(leases)
}

async fn give_back(leases: &mut [Lease<Efficiency>]) -> Result<(), Error> {
    for some in leases.chunks_mut(TAKERS) {
        for released in join_all(some.iter_mut().map(|lease| lease.release())).await {
            released?;
        }
    }
    Ok(())
}

//! Latches and barriers, and work that is due once in a period.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fencepost::{Due, Efficiency, ErrorKind, Locks, Passage, Wait};
use tokio::task::JoinSet;

use crate::{
    site::{DoesNotApply, Site, Verdict},
    steps::{LONG, SOON, locks, ms, now, within},
};

/// Whole seconds, which is as fine as some stores count.
const PERIOD: Duration = Duration::from_secs(2);

async fn with_cells(site: &dyn Site) -> Verdict<Locks<Efficiency>> {
    let locks = locks(site).await;
    locks.store().cells().ok_or(DoesNotApply("the store has no cells"))?;
    Ok(locks)
}

pub async fn a_latch_opens_when_all_have_arrived(site: &dyn Site) -> Verdict {
    let (a, b) = (with_cells(site).await?, with_cells(site).await?);
    let (here, there) = (a.latch("l", 3).expect("a latch"), b.latch("l", 3).expect("a latch"));
    assert!(!there.wait(Wait::Once).await.expect("an answer"));
    assert!(!there.wait(Wait::AtMost(ms(100))).await.expect("an answer"));
    let waiting = {
        let there = there.clone();
        tokio::spawn(async move { there.wait(Wait::Forever).await })
    };
    assert_eq!(here.arrive("a").await.expect("arrived"), 2);
    assert_eq!(here.arrive("a").await.expect("arrived"), 2, "arriving twice counts once");
    assert_eq!(there.arrive("b").await.expect("arrived"), 1);
    assert!(!waiting.is_finished());
    assert_eq!(here.arrive("c").await.expect("arrived"), 0);
    assert!(within(SOON, "it opens", waiting).await.expect("no panic").expect("an answer"));
    assert_eq!(here.arrive("late").await.expect("arrived"), 0, "and stays open");
    let other = a.latch("l", 4).expect("a latch").arrive("d").await.expect_err("another number");
    assert_eq!(other.kind(), ErrorKind::Mismatch, "{other}");
    there.remove().await.expect("removed");
    assert_eq!(here.missing().await.expect("an answer"), 3);
    for parties in [0, u32::MAX] {
        assert_eq!(a.latch("l", parties).expect_err("no sense").kind(), ErrorKind::InvalidInput);
    }
    Ok(())
}

pub async fn nobody_passes_a_barrier_alone(site: &dyn Site) -> Verdict {
    let came = Arc::new(AtomicU32::new(0));
    let mut parties = JoinSet::new();
    for _ in 0..4 {
        let (locks, came) = (with_cells(site).await?, came.clone());
        parties.spawn(async move {
            let barrier = locks.barrier("b", 4).expect("a barrier");
            let mut last = 0;
            for round in 1..=3 {
                came.fetch_add(1, Ordering::SeqCst);
                let passage = barrier.wait(Wait::Forever).await.expect("an answer");
                assert!(came.load(Ordering::SeqCst) >= 4 * round, "somebody passed before all had come");
                last += u32::from(passage == Passage::Open { last: true });
            }
            last
        });
    }
    let last = within(LONG, "all pass", parties.join_all()).await;
    assert_eq!(last.iter().sum::<u32>(), 3, "one opens it in each round");
    Ok(())
}

/// Who gives up is not counted, or the next one would pass alone.
pub async fn c1_who_leaves_a_barrier_is_not_counted(site: &dyn Site) -> Verdict {
    let locks = with_cells(site).await?;
    let barrier = locks.barrier("b", 2).expect("a barrier");
    assert_eq!(barrier.wait(Wait::AtMost(ms(100))).await.expect("an answer"), Passage::TimedOut);
    assert!(tokio::time::timeout(ms(200), barrier.wait(Wait::Forever)).await.is_err(), "dropped in the midst");
    tokio::time::sleep(ms(300)).await; // it gives up in the background
    assert_eq!(barrier.wait(Wait::AtMost(ms(200))).await.expect("an answer"), Passage::TimedOut);
    let both = async { tokio::join!(barrier.wait(Wait::Forever), barrier.wait(Wait::Forever)) };
    let (one, other) = within(SOON, "both pass", both).await;
    assert!(matches!((one, other), (Ok(Passage::Open { .. }), Ok(Passage::Open { .. }))));
    Ok(())
}

/// No run at the edges that another began: the period counts on the store's clock. Source: ShedLock.
pub async fn t2_work_is_due_once_in_a_period(site: &dyn Site) -> Verdict {
    let mut clients = Vec::new();
    for _ in 0..6 {
        clients.push(with_cells(site).await?);
    }
    let mut crowd = JoinSet::new();
    let until = now().after(PERIOD * 3 - PERIOD / 4);
    for locks in clients {
        crowd.spawn(async move {
            let work = locks.once_per("w", PERIOD).expect("a period");
            let mut runs = Vec::new();
            while now() < until {
                let asked = now();
                if let Due::Now(_) = work.claim().await.expect("an answer") {
                    runs.push((asked, now()));
                }
                tokio::time::sleep(ms(40)).await;
            }
            runs
        });
    }
    let mut runs: Vec<_> = within(LONG, "the periods pass", crowd.join_all()).await.into_iter().flatten().collect();
    runs.sort();
    // A store that ends things late lets less of them happen. That there are not more is what the time between them shows.
    assert!(runs.len() >= 2, "once in each period: {runs:?}");
    for pair in runs.windows(2) {
        // From before the first was asked for to after the second was answered.
        let apart = pair[1].1.since(pair[0].0);
        assert!(apart >= PERIOD - Duration::from_millis(50), "two runs within {apart:?}");
    }
    Ok(())
}

pub async fn a_turn_that_is_given_back_is_due_again(site: &dyn Site) -> Verdict {
    let locks = with_cells(site).await?;
    let work = locks.once_per("w", LONG).expect("a period");
    let Due::Now(turn) = work.claim().await.expect("an answer") else { panic!("it is due") };
    let Due::Later { by, .. } = work.claim().await.expect("an answer") else { panic!("it was done") };
    assert_eq!(by.pid, std::process::id());
    turn.give_back().await.expect("given back");
    assert!(matches!(work.claim().await.expect("an answer"), Due::Now(_)));
    Ok(())
}

//! Several locks at once: all or nothing, on every store.

use std::time::Duration;

use fencepost::{Attempt, Efficiency, Error, ErrorKind, MOST_NAMES, Several};
use fencepost_core::claim::{LossReason, Release};
use tokio::task::JoinSet;

use crate::{
    site::{Site, Verdict},
    steps::{LONG, SOON, is_busy, locks, ms, name, nothing_left, now, take, within},
};

/// A,B against B,A. Source: redisson 1160, 4050.
pub async fn opposite_orders_do_not_deadlock(site: &dyn Site) -> Verdict {
    let mut crowd = JoinSet::new();
    for task in 0..6 {
        let locks = locks(site).await;
        crowd.spawn(async move {
            for _ in 0..8 {
                let names = if task % 2 == 0 { ["a", "b", "c"] } else { ["c", "b", "a"] };
                let mut several = held(locks.several(names).ttl(LONG).acquire().await);
                several.check().expect("all are held");
                // Everybody else gets into a queue meanwhile, from either end of the names.
                tokio::time::sleep(ms(2)).await;
                let answers = several.release().await.expect("a release");
                assert!(answers.iter().all(|(_, answer)| *answer == Release::Released), "{answers:?}");
            }
        });
    }
    within(LONG, "no circle of waiters", crowd.join_all()).await;
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn all_or_nothing(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let mut other = take(&b, "b", LONG).await;
    for limit in [Duration::ZERO, ms(300)] {
        let started = now();
        let attempt = a.several(["c", "b", "a"]).ttl(LONG).wait(limit).acquire().await.expect("an answer");
        let Attempt::Busy(busy) = attempt else { panic!("b is held") };
        assert_eq!(busy.lock, Some(name("b")), "which of them it is");
        assert!(now().since(started) < limit + SOON, "one waiting time for all");
        for free in ["a", "c"] {
            within(SOON, "what was taken is given back", async { while is_busy(&b, free).await {} }).await;
        }
    }
    other.release().await.expect("a release");
    let several = held(a.several(["c", "b", "a"]).ttl(LONG).wait(SOON).acquire().await);
    assert_eq!(several.names().map(|name| name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    for held in ["a", "b", "c"] {
        assert!(is_busy(&b, held).await);
    }
    drop(several);
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn c1_a_cancelled_request_leaves_nothing(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let mut other = take(&b, "b", LONG).await;
    for delay in [0, 1, 5, 20, 80] {
        let request = a.several(["a", "b", "c"]).ttl(LONG).acquire();
        assert!(tokio::time::timeout(ms(delay), request).await.is_err(), "b is held");
    }
    other.release().await.expect("a release");
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn the_first_loss_is_the_loss_of_all(site: &dyn Site) -> Verdict {
    let (a, b) = (locks(site).await, locks(site).await);
    let several = held(a.several(["a", "b", "c"]).ttl(LONG).acquire().await);
    b.store().force(&name("b"), None).await.expect("an answer");
    let work = several.run(std::future::pending::<()>());
    let lost = within(LONG, "the work ends", work).await.expect_err("b was broken");
    assert_eq!(lost.kind(), ErrorKind::Lost(LossReason::Deleted), "{lost}");
    assert_eq!(several.check().expect_err("lost").kind(), lost.kind());
    drop(several);
    nothing_left(site, SOON).await;
    Ok(())
}

pub async fn senseless_lists_are_refused(site: &dyn Site) -> Verdict {
    let locks = locks(site).await;
    let many: Vec<String> = (0..=MOST_NAMES).map(|number| format!("x{number}")).collect();
    let lists = [vec![], vec!["a", "b", "a"], vec!["a", ""], many.iter().map(String::as_str).collect()];
    for list in lists {
        let refused = locks.several(&list).acquire().await.expect_err("no sense in it");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
    nothing_left(site, SOON).await;
    Ok(())
}

fn held(outcome: Result<Attempt<Several<Efficiency>>, Error>) -> Several<Efficiency> {
    outcome.expect("an answer").acquired().expect("all must be granted")
}

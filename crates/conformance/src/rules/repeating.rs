//! Work that is done once for its key, however often it is asked for.

use std::{convert::Infallible, time::Duration};

use fencepost::{Efficiency, Kept, Locks, NotKept, Once, Ran, Refusal};
use fencepost_core::cells::MAX_CELL_BYTES;
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    holder::Holder,
    repeats::{self, is_other_payload},
    site::{DoesNotApply, Site, Verdict},
    steps::{LONG, SOON, eventually, locks, ms, within},
};

/// Whole seconds, which is as fine as some stores count.
const BRIEF: Duration = Duration::from_secs(2);

async fn client(site: &dyn Site) -> Verdict<Locks<Efficiency>> {
    let locks = locks(site).await;
    if locks.store().cells().is_none() {
        return Err(DoesNotApply("the store has no cells"));
    }
    Ok(locks)
}

fn once(locks: &Locks<Efficiency>) -> Once<Efficiency> {
    locks.once("payment").fingerprint("100").ttl(LONG)
}

async fn ran(once: Once<Efficiency>, value: &str) -> Ran<String, Infallible> {
    let work = async { Ok(value.to_owned()) };
    within(SOON, "it is answered", once.run(work)).await.expect("an answer")
}

pub async fn a_result_is_kept_and_told_to_all_who_repeat(site: &dyn Site) -> Verdict {
    let (a, b) = (client(site).await?, client(site).await?);
    assert!(matches!(ran(once(&a), "first").await, Ran::Now(value) if value == "first"));
    for locks in [&a, &b] {
        let told = ran(once(locks), "second").await;
        assert!(matches!(&told, Ran::Repeated(Kept { value, .. }) if value == "first"), "{told:?}");
    }
    assert!(is_other_payload(&ran(once(&b).fingerprint("200"), "other").await));
    // Who brings no payload is not compared; who brings one for a key without one cannot be.
    assert!(matches!(ran(b.once("payment"), "second").await, Ran::Repeated(_)));
    assert!(matches!(ran(b.once("unnamed"), "first").await, Ran::Now(_)));
    assert!(is_other_payload(&ran(b.once("unnamed").fingerprint("100"), "second").await));
    Ok(())
}

pub async fn who_comes_meanwhile_is_told_who_is_at_it_or_waits(site: &dyn Site) -> Verdict {
    let (a, b) = (client(site).await?, client(site).await?);
    let (begin, begun) = oneshot::channel();
    let (finish, finished) = oneshot::channel::<()>();
    let first = once(&a);
    let first = tokio::spawn(async move {
        let work = async {
            begin.send(()).expect("the test listens");
            finished.await.map(|()| "first".to_owned())
        };
        first.run(work).await
    });
    within(SOON, "the work begins", begun).await.expect("a beginning");
    let Ran::Refused(refusal) = ran(once(&b), "second").await else { panic!("done twice") };
    assert_eq!(refusal.status(), 409);
    assert!(refusal.to_string().contains(&format!("pid {}", std::process::id())), "{refusal}");
    assert!(is_other_payload(&ran(once(&b).fingerprint("200"), "other").await));
    let waiting = once(&b).wait(LONG);
    let waiting = tokio::spawn(async move { waiting.run(async { Ok::<_, Infallible>("second".to_owned()) }).await });
    eventually(SOON, "it waits", async || {
        let states = b.store().inspect(None).await.expect("a listing");
        states.iter().any(|state| state.name.as_str() == "once/payment" && !state.waiters.is_empty())
    })
    .await;
    finish.send(()).expect("the work waits");
    let first = within(SOON, "the first one ends", first).await.expect("no panic").expect("an answer");
    assert!(matches!(first, Ran::Now(_)), "{first:?}");
    let waited = within(SOON, "who waits is told", waiting).await.expect("no panic").expect("an answer");
    assert!(matches!(&waited, Ran::Repeated(Kept { value, .. }) if value == "first"), "{waited:?}");
    Ok(())
}

pub async fn a_failure_and_a_dropped_run_leave_the_key_free(site: &dyn Site) -> Verdict {
    let (a, b) = (client(site).await?, client(site).await?);
    let failing = once(&a).run::<String, _>(async { Err("declined") });
    assert!(matches!(within(SOON, "it is answered", failing).await, Ok(Ran::Failed("declined"))));
    let (begin, begun) = oneshot::channel();
    let endless = once(&a);
    let endless = tokio::spawn(async move {
        let work = async {
            begin.send(()).expect("the test listens");
            std::future::pending::<Result<String, Infallible>>().await
        };
        endless.run(work).await.map(drop)
    });
    within(SOON, "the work begins", begun).await.expect("a beginning");
    endless.abort();
    eventually(SOON, "the key comes free", async || match ran(once(&b), "first").await {
        Ran::Now(_) => true,
        Ran::Refused(Refusal::InProgress(_)) => false,
        other => panic!("{other:?}"),
    })
    .await;
    Ok(())
}

/// The work was done: that its result is too long must not have it done again.
pub async fn a_result_that_is_too_long_is_noted_and_its_work_not_repeated(site: &dyn Site) -> Verdict {
    let locks = client(site).await?;
    let long = "x".repeat(MAX_CELL_BYTES);
    let first = ran(once(&locks), &long).await;
    assert!(matches!(&first, Ran::NotKept { value, why: NotKept::Unfit(_) } if *value == long));
    let second = ran(once(&locks), "again").await;
    assert!(matches!(&second, Ran::Refused(refusal @ Refusal::ResultNotKept { .. }) if refusal.status() == 410));
    Ok(())
}

pub async fn t2_a_key_is_new_when_its_time_is_over(site: &dyn Site) -> Verdict {
    let locks = client(site).await?;
    assert!(matches!(ran(once(&locks).keep_for(BRIEF), "first").await, Ran::Now(_)));
    assert!(matches!(ran(once(&locks), "second").await, Ran::Repeated(_)));
    eventually(BRIEF + SOON, "its time is over", async || matches!(ran(once(&locks), "third").await, Ran::Now(_)))
        .await;
    Ok(())
}

/// Eight processes work through the same keys; three are killed on the way and replaced by none.
pub async fn each_key_is_done_once_by_processes_of_which_some_are_killed(site: &dyn Site) -> Verdict {
    const KEYS: u64 = 40;
    client(site).await?;
    site.apart()?;
    let log = tempfile::NamedTempFile::new().expect("a file");
    let lines = || std::fs::read_to_string(log.path()).expect("the log").lines().count();
    let (mut doomed, mut live) = (Vec::new(), JoinSet::new());
    for number in 0..8 {
        let mut holder = Holder::start(site).await;
        if number < 3 {
            holder.start_working_once(KEYS, log.path()).await;
            doomed.push(holder);
        } else {
            let path = log.path().to_owned();
            live.spawn(async move { holder.work_once(KEYS, &path).await });
        }
    }
    let mut killed = Vec::new();
    for (number, holder) in (1..).zip(doomed) {
        // Far from all of the work: the fast ones shall not be done with it.
        eventually(SOON * 3, "work goes on", async || lines() >= 8 * number).await;
        killed.push(holder.pid());
        holder.kill();
        tokio::time::sleep(ms(1)).await;
    }
    within(Duration::from_secs(60), "all are served", live.join_all()).await;
    repeats::assert_once(log.path(), KEYS, &killed);
    Ok(())
}

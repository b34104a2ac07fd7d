//! Elections: one leader at a time, whose term and word everybody hears.

use std::time::Duration;

use fencepost::{Acquired, Attempt, Efficiency, Election, ErrorKind, Leader, Leadership, Locks, Observer};
use fencepost_core::{
    claim::LossReason,
    clock::{BootClock, sleep},
};

use crate::{
    holder::Holder,
    site::{DoesNotApply, Site, Verdict},
    steps::{Doomed, LONG, SHORT, SOON, eventually, locks, ms, name, nothing_held, waiters, within},
};

async fn election(site: &dyn Site) -> Verdict<(Locks<Efficiency>, Election<Efficiency>)> {
    let locks = locks(site).await;
    locks.store().cells().ok_or(DoesNotApply("the store has no cells"))?;
    let election = locks.election("e").expect("an election");
    Ok((locks, election))
}

async fn lead(election: &Election<Efficiency>, word: &str, ttl: Duration) -> Leadership<Efficiency> {
    match election.campaign(word).ttl(ttl).wait(SOON).acquire().await.expect("an answer") {
        Acquired(leadership) => leadership,
        Attempt::Busy(busy) => panic!("nobody else leads: {busy:?}"),
    }
}

async fn heard(watching: &mut Observer, what: &str) -> Option<Leader> {
    within(SHORT + SOON, what, watching.next()).await.expect("news")
}

pub async fn everybody_hears_who_leads(site: &dyn Site) -> Verdict {
    let ((_a, here), (_b, there)) = (election(site).await?, election(site).await?);
    let mut watching = there.observe();
    assert_eq!(heard(&mut watching, "nobody leads yet").await, None);
    let leadership = lead(&here, "one", LONG).await;
    let leader = heard(&mut watching, "one leads").await.expect("a leader");
    assert_eq!((leader.word.as_str(), leader.claimant.pid), ("one", std::process::id()));
    leadership.proclaim("two").await.expect("told");
    let told = heard(&mut watching, "the leader says something else").await.expect("a leader");
    assert_eq!((told.word.as_str(), told.term), ("two", leader.term));
    leadership.resign().await.expect("resigned");
    assert_eq!(heard(&mut watching, "nobody leads").await, None);
    let _next = lead(&there, "three", LONG).await;
    assert!(heard(&mut watching, "the next one").await.is_some_and(|next| next.word == "three"));
    Ok(())
}

pub async fn a_resigned_leadership_passes_at_once(site: &dyn Site) -> Verdict {
    let ((_a, here), (b, there)) = (election(site).await?, election(site).await?);
    let first = lead(&here, "one", LONG).await;
    let waiting = tokio::spawn(there.campaign("two").ttl(LONG).acquire());
    eventually(SOON, "the second one waits", async || waiters(b.store(), "e").await == 1).await;
    first.resign().await.expect("resigned");
    let second = within(SOON, "without waiting for a TTL", waiting).await.expect("no panic").expect("an answer");
    assert!(matches!(second, Acquired(_)));
    drop(second);
    nothing_held(site, SOON).await;
    Ok(())
}

/// The deposed leader hears of it, and its late words change nothing. Source: LeaderLatch, phantom leadership.
pub async fn l1_a_deposed_leader_says_nothing_more(site: &dyn Site) -> Verdict {
    let ((_a, here), (b, there)) = (election(site).await?, election(site).await?);
    let old = lead(&here, "old", LONG).await;
    b.store().force(&name("e"), None).await.expect("an answer");
    let new = lead(&there, "new", LONG).await;
    let mut watching = there.observe();
    let leader = heard(&mut watching, "the new one leads").await.expect("a leader");
    let refused = within(LONG, "the old one is told", old.proclaim("old again")).await.expect_err("it leads no more");
    assert!(matches!(refused.kind(), ErrorKind::Lost(LossReason::Deleted | LossReason::TakenOver)), "{refused}");
    drop(old);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(heard(&mut there.observe(), "it is still the new one").await, Some(leader));
    new.lease().check().expect("it still leads");
    Ok(())
}

/// Where grants expire, a paused leader is followed by another and finds out at its first look; where they do not, it
/// still leads.
pub async fn l1_a_paused_leader_finds_out_at_its_first_look(site: &dyn Site) -> Verdict {
    let (_locks, election) = election(site).await?;
    site.apart()?;
    let mut paused = Holder::start(site).await;
    paused.lead("e", SHORT).await;
    let before = heard(&mut election.observe(), "it leads").await.expect("a leader");
    assert_eq!(before.word, paused.pid().to_string());
    paused.pause();
    if site.capabilities().expires {
        let campaign = election.campaign("next").ttl(LONG).acquire();
        let next = within(SHORT + SOON, "another leads", campaign).await.expect("an answer").acquired();
        assert!(next.is_some_and(|next| next.term() > before.term));
        assert_eq!(paused.look_after_resuming("e").await, Some("Expired".to_owned()));
        assert_eq!(paused.lost("e").await, "Expired");
    } else {
        sleep(&BootClock, SHORT).await;
        let attempt = election.campaign("next").wait(ms(0)).acquire().await.expect("an answer");
        assert!(matches!(attempt, Attempt::Busy(_)), "a stopped process still leads");
        assert_eq!(paused.look_after_resuming("e").await, None);
    }
    Ok(())
}

/// What a leader said ends with it, on the store's clock.
pub async fn the_word_of_a_dead_leader_ends(site: &dyn Site) -> Verdict {
    let ((_b, there), doomed) = (election(site).await?, Doomed::new());
    let dead = doomed.run(async { Ok(lead(&election(site).await?.1, "dead", SHORT).await) }).await?;
    let mut watching = there.observe();
    assert!(heard(&mut watching, "it leads").await.is_some());
    tokio::time::sleep(SHORT * 2).await;
    dead.lease().check().expect("it is renewed");
    assert!(heard(&mut there.observe(), "its word is told again").await.is_some());
    doomed.die();
    assert_eq!(heard(&mut watching, "nobody leads").await, None);
    Ok(())
}

/// Its TTL would keep the word for long.
pub async fn who_closes_its_locks_takes_its_word_back(site: &dyn Site) -> Verdict {
    let ((a, here), (_b, there)) = (election(site).await?, election(site).await?);
    let _closed = lead(&here, "soon closed", LONG).await;
    let mut watching = there.observe();
    assert!(heard(&mut watching, "it leads").await.is_some());
    within(SOON, "the closing", a.close()).await;
    assert_eq!(heard(&mut watching, "nobody leads").await, None);
    Ok(())
}

pub async fn the_highest_priority_that_waits_leads_next(site: &dyn Site) -> Verdict {
    let ((_a, here), (b, there)) = (election(site).await?, election(site).await?);
    let first = lead(&here, "first", LONG).await;
    let mut candidates = Vec::new();
    for priority in [1, 3, 2] {
        let campaign = there.campaign(priority.to_string()).priority(priority).ttl(LONG);
        candidates.push((priority, tokio::spawn(campaign.acquire())));
        let count = candidates.len();
        eventually(SOON, "it waits", async || waiters(b.store(), "e").await == count).await;
    }
    first.resign().await.expect("resigned");
    candidates.sort_by_key(|(priority, _)| -priority);
    for (priority, candidate) in candidates {
        let attempt = within(SOON * 2, "its turn comes", candidate).await.expect("no panic").expect("an answer");
        let leadership = attempt.acquired().expect("without a limit it waits");
        let leader = heard(&mut here.observe(), "it leads").await.expect("a leader");
        assert_eq!(leader.word, priority.to_string());
        leadership.resign().await.expect("resigned");
    }
    Ok(())
}

pub async fn f1_terms_rise(site: &dyn Site) -> Verdict {
    let (_locks, election) = election(site).await?;
    let mut last = 0;
    for round in 0..4 {
        let leadership = lead(&election, "word", LONG).await;
        let leader = heard(&mut election.observe(), "it leads").await.expect("a leader");
        assert!(leader.term > last, "{} after {last} in round {round}", leader.term);
        last = leader.term;
        leadership.resign().await.expect("resigned");
    }
    Ok(())
}

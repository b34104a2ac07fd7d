//! Members that share work: who is there, and which shards are whose.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fencepost::{Efficiency, ErrorKind, Lease, Locks, Member, ShardEvent, owner_of};

use crate::{
    holder::Holder,
    site::{DoesNotApply, Site, Verdict},
    steps::{Doomed, LONG, SHORT, SOON, eventually, locks, within},
};

const SHARDS: u32 = 12;

async fn with_cells(site: &dyn Site) -> Verdict<Locks<Efficiency>> {
    let locks = locks(site).await;
    locks.store().cells().ok_or(DoesNotApply("the store has no cells"))?;
    Ok(locks)
}

async fn join(locks: &Locks<Efficiency>, id: &str) -> Member<Efficiency> {
    let members = locks.members("g").expect("a group");
    within(SOON * 2, "it joins", members.join(id, SHORT)).await.expect("a member")
}

async fn sees(member: &Member<Efficiency>, ids: &[&str], limit: Duration) {
    let wanted: BTreeSet<String> = ids.iter().map(|id| (*id).to_owned()).collect();
    let what = format!("{} sees {wanted:?}", member.id());
    eventually(limit, &what, async || member.present() == wanted).await;
}

pub async fn members_see_who_comes_and_goes(site: &dyn Site) -> Verdict {
    let (here, there, doomed) = (with_cells(site).await?, with_cells(site).await?, Doomed::new());
    let (a, b) = (join(&here, "a").await, join(&there, "b").await);
    sees(&a, &["a", "b"], SOON).await;
    sees(&b, &["a", "b"], SOON).await;
    let twice = there.members("g").expect("a group").join("a", SHORT).await.expect_err("it is there");
    assert_eq!(twice.kind(), ErrorKind::Mismatch, "{twice}");
    drop(a);
    sees(&b, &["b"], SOON).await;
    let a = doomed.run(async { Ok(join(&with_cells(site).await?, "a").await) }).await?;
    sees(&b, &["a", "b"], SOON).await;
    doomed.die();
    sees(&b, &["b"], SHORT * 3).await;
    drop(a);
    Ok(())
}

/// A paused member is gone as a dead one is, until it wakes.
pub async fn a_paused_member_is_gone_until_it_wakes(site: &dyn Site) -> Verdict {
    let here = with_cells(site).await?;
    site.apart()?;
    let (a, mut paused) = (join(&here, "a").await, Holder::start(site).await);
    paused.join("g", "b", SHORT).await;
    sees(&a, &["a", "b"], SOON).await;
    paused.pause();
    sees(&a, &["a"], SHORT * 3).await;
    paused.resume();
    sees(&a, &["a", "b"], SHORT + SOON).await;
    Ok(())
}

/// Its TTL would keep it in the group for long.
pub async fn who_closes_its_locks_leaves_the_group(site: &dyn Site) -> Verdict {
    let (here, there) = (with_cells(site).await?, with_cells(site).await?);
    let _a = within(SOON, "it joins", here.members("g").expect("a group").join("a", LONG)).await.expect("a member");
    let b = join(&there, "b").await;
    sees(&b, &["a", "b"], SOON).await;
    within(SOON, "the closing", here.close()).await;
    sees(&b, &["b"], SOON).await;
    Ok(())
}

pub async fn groups_are_listed_with_their_members(site: &dyn Site) -> Verdict {
    let (here, there, doomed) = (with_cells(site).await?, with_cells(site).await?, Doomed::new());
    let listed = async || {
        let groups = here.groups().await.expect("a listing").into_iter();
        groups
            .map(|group| (group.name, group.members.into_iter().map(|member| member.id).collect()))
            .collect::<Vec<_>>()
    };
    let shows = async |what: &str, groups: &[(&str, &[&str])], limit: Duration| {
        let wanted: Vec<_> = groups
            .iter()
            .map(|(name, ids)| ((*name).to_owned(), ids.iter().map(|id| (*id).to_owned()).collect::<Vec<String>>()))
            .collect();
        eventually(limit, what, async || listed().await == wanted).await;
    };
    let (a, b) = (join(&here, "a").await, join(&there, "b").await);
    let other = there.members("h").expect("a group").join("c", SHORT).await.expect("a member");
    shows("both groups are listed", &[("g", &["a", "b"]), ("h", &["c"])], SOON).await;
    drop(other);
    shows("a group ends with its last member", &[("g", &["a", "b"])], SOON).await;
    drop((a, b));
    let dead = doomed.run(async { Ok(join(&with_cells(site).await?, "d").await) }).await?;
    shows("it begins again", &[("g", &["d"])], SOON).await;
    doomed.die();
    drop(dead);
    shows("a group whose members all died ends", &[], SHORT * 4 + SOON).await;
    Ok(())
}

/// Each shard has exactly one owner; when a member goes, its shards move and no others, with higher fences.
pub async fn each_shard_has_one_owner(site: &dyn Site) -> Verdict {
    let locks = [with_cells(site).await?, with_cells(site).await?, with_cells(site).await?];
    let owners: Owners = Arc::default();
    let mut workers = BTreeMap::new();
    for (locks, id) in locks.iter().zip(["a", "b", "c"]) {
        let member = join(locks, id).await;
        workers.insert(id, tokio::spawn(work(member, owners.clone())));
    }
    divided(&owners, &["a", "b", "c"]).await;
    let before = owners.lock().unwrap_or_else(PoisonError::into_inner).clone();
    workers.remove("b").expect("a worker").abort();
    divided(&owners, &["a", "c"]).await;
    let after = owners.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for (shard, owner) in &before {
        assert!(owner == "b" || after[shard] == *owner, "shard {shard} moved from {owner} for no reason");
    }
    workers.values().for_each(|worker| worker.abort());
    Ok(())
}

/// Who works on which shard.
type Owners = Arc<Mutex<BTreeMap<u32, String>>>;

/// A lease and the entry that says who works under it, which goes before the lease does.
struct AtWork {
    owners: Owners,
    shard: u32,
    _lease: Lease<Efficiency>,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.shard);
    }
}

async fn work(member: Member<Efficiency>, owners: Owners) {
    let mut at_work = BTreeMap::new();
    let mut shards = member.shards(SHARDS, LONG).expect("shards");
    loop {
        match shards.next().await.expect("an event") {
            ShardEvent::Gained { shard, lease } => {
                let id = member.id().to_owned();
                let before = owners.lock().unwrap_or_else(PoisonError::into_inner).insert(shard, id);
                assert_eq!(before, None, "two own shard {shard}");
                at_work.insert(shard, AtWork { owners: owners.clone(), shard, _lease: lease });
            }
            ShardEvent::Leave { shard } => drop(at_work.remove(&shard)),
        }
    }
}

async fn divided(owners: &Owners, ids: &[&str]) {
    let wanted: BTreeMap<u32, String> = (0..SHARDS)
        .map(|shard| (shard, owner_of(ids.iter().copied(), &shard.to_string()).expect("a member").to_owned()))
        .collect();
    eventually(SOON * 5, "the shards are divided", async || {
        *owners.lock().unwrap_or_else(PoisonError::into_inner) == wanted
    })
    .await;
}

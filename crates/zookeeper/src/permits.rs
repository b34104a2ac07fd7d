//! Permits: a node for each one that is held, called by its number, below `slots` in the lock's container.
//!
//! Two claims cannot make the same node, so that no permit is held twice, whatever they believe of the queue; the queue only
//! says whose turn it is. The transaction that makes the nodes is the grant, and its number the fence of each of them (F2).
//! The claim's own node stays in the queue and shows which slots it has; writing that wakes the next in line.

use std::{collections::BTreeSet, sync::Arc};

use fencepost_core::{
    claim::{Grant, Mode},
    refusal::Refusal,
};
use tokio::sync::oneshot;

use crate::{
    failure::Failure,
    layout::slots,
    notes::{self, Container, Notes},
    places::{Given, Node, Place},
    queue::{Leaving, Queue, remove},
    record::Record,
    session::{Session, Watcher},
    store::ZooKeeperStore,
    taking::{Bid, outlives_everybody},
    wire::{self, Children, Code, Done, Lifetime, Request, Step},
};

/// How often a change of the limit is tried while the semaphore's users come and go.
const USERS_CHANGE: usize = 100;

/// How many permits there are, as it was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    pub(crate) of: u32,
    /// Of which version of the container.
    pub(crate) version: i32,
}

impl ZooKeeperStore {
    /// How many permits there are. When the first in the queue leaves before it could be looked at, the queue is read anew:
    /// so it ends, for whoever has a node there.
    pub(crate) async fn limit(&self, session: &Session, lock: &str, queue: &mut Queue) -> Result<Option<u32>, Failure> {
        loop {
            match self.limit_in(session, lock, queue).await {
                Err(failure) if failure.is(Code::NO_NODE) => *queue = Queue::read(&self.layout, session, lock).await?,
                limit => return limit,
            }
        }
    }

    /// How many permits there are. A change of the limit counts for as long as somebody is in the queue who was there when
    /// it was made; after that, what the first one said when it came. [`Code::NO_NODE`] when that one has left.
    async fn limit_in(&self, session: &Session, lock: &str, queue: &Queue) -> Result<Option<u32>, Failure> {
        let Some(first) = queue.contenders().first() else { return Ok(None) };
        let Some(Mode::Permits { of, .. }) = first.mode else { return Ok(None) };
        if !queue.is_noted() {
            return Ok(Some(of));
        }
        let exists = Request::exists(&format!("{lock}/{}", first.name));
        let (container, came) = session.ask_both::<wire::Node, wire::Stat>(Request::get(lock, false), exists).await?;
        let container = Container::of(&container?)?;
        let (changed, came) = (container.stat.modified, came?.created);
        Ok(Some(match container.notes.limit {
            Some(limit) if changed > came => limit,
            _ => of,
        }))
    }

    /// Tries to have the permits of a claim that nobody who waits stands before. `None` when too few are free.
    pub(crate) async fn take_permits(&self, bid: Bid<'_>, node: &Node, limit: Limit) -> Result<Option<Given>, Failure> {
        loop {
            let taken = match bid.session.ask::<Children>(Request::children(&slots(bid.lock), false)).await {
                Ok(children) => numbers(&children),
                Err(failure) if failure.is(Code::NO_NODE) => BTreeSet::new(),
                Err(failure) => return Err(failure),
            };
            match self.take_slots(bid, node, limit, &taken).await? {
                Took::Given(given) => return Ok(Some(given)),
                Took::TooFew => return Ok(None),
                Took::LookAgain => {}
            }
        }
    }

    async fn take_slots(
        &self,
        bid: Bid<'_>,
        node: &Node,
        limit: Limit,
        taken: &BTreeSet<u32>,
    ) -> Result<Took, Failure> {
        let Bid { claim, session, lock } = bid;
        let Mode::Permits { count, .. } = bid.mode() else { return Ok(Took::TooFew) };
        let held = u32::try_from(taken.len()).unwrap_or(u32::MAX);
        if held.saturating_add(count) > limit.of {
            return Ok(Took::TooFew);
        }
        let free: Arc<[u32]> = (0..).filter(|slot| !taken.contains(slot)).take(count as usize).collect();
        let own = bid.path(&node.name);
        let record = Record::new(&claim.claimant, session.timeout).with_slots(&free).to_bytes();
        let paths: Vec<_> = free.iter().map(|slot| format!("{}/{slot}", slots(lock))).collect();
        let owner = claim.owner().to_string();
        let mut steps = vec![
            Step::Check { path: lock, version: Some(limit.version) },
            Step::Write { path: &own, data: &record, version: None },
        ];
        steps.extend(paths.iter().map(|path| Step::Create {
            path,
            data: owner.as_bytes(),
            access: self.access,
            lifetime: Lifetime::Ephemeral,
        }));
        match session.ask(Request::transaction(&steps)).await? {
            Done::All(Some(written)) => Ok(Took::Given(Given { fence: notes::fence(written.modified)?, slots: free })),
            Done::All(None) => Err(Failure::puzzling()),
            Done::None(Code::NODE_EXISTS) => Ok(Took::LookAgain),
            // The limit was changed meanwhile: whoever looks again finds that out.
            Done::None(Code::BAD_VERSION) => Ok(Took::TooFew),
            Done::None(Code::NO_NODE) => match session.ask::<wire::Stat>(Request::exists(&own)).await {
                Ok(_) => self.make_containers(session, &slots(lock)).await.map(|()| Took::LookAgain),
                Err(failure) if failure.is(Code::NO_NODE) => Err(self.place_lost(claim)),
                // It may well be there. It stays known, so that somebody takes it out of the queue.
                Err(failure) => Err(failure),
            },
            Done::None(code) => Err(Failure::refused(code)),
        }
    }

    /// What an earlier try of the same claim was given, its answer lost.
    pub(crate) async fn given_before(&self, bid: Bid<'_>, node: &Node) -> Result<Option<Given>, Failure> {
        let Bid { session, lock, .. } = bid;
        let own = session.ask::<wire::Node>(Request::get(&bid.path(&node.name), false)).await?;
        let taken = Record::read(&own.data).slots;
        let Some(first) = taken.first() else { return Ok(None) };
        let made = session.ask::<wire::Stat>(Request::exists(&format!("{}/{first}", slots(lock)))).await?;
        Ok(Some(Given { fence: notes::fence(made.created)?, slots: taken.into() }))
    }

    /// Waits for the turn of a claim of permits. Behind one that waits itself, for that one's grant or leaving; at the head of
    /// those who wait, for permits that come back, or a change of the limit.
    /// `again` when an earlier try may have been granted them.
    pub(crate) async fn wait_for_permits(
        &self,
        bid: Bid<'_>,
        place: &Place,
        node: &Node,
        again: bool,
    ) -> Result<Grant, Failure> {
        let Bid { claim, session, lock } = bid;
        if again && let Some(given) = self.given_before(bid, node).await? {
            return self.grant(bid, given);
        }
        // Whoever is the first in the queue, and finds permits taken all the same, waits for nobody there.
        let mut before = place.before.clone().filter(|before| *before != node.name);
        loop {
            let ahead = match before.take() {
                Some(ahead) => ahead,
                None => {
                    let queue = Queue::read(&self.layout, session, lock).await?;
                    let Some(position) = queue.position(&node.name) else { return Err(self.place_lost(claim)) };
                    match position.checked_sub(1) {
                        None => break,
                        Some(ahead) => queue.contenders()[ahead].name.as_str().into(),
                    }
                }
            };
            let (watcher, changed) = oneshot::channel();
            match session.watch(&format!("{lock}/{ahead}"), Watcher::Waiter(watcher)).await {
                Ok(found) if !found.stat.is_ephemeral() => return Err(outlives_everybody(&ahead)),
                Ok(found) if !Record::read(&found.data).slots.is_empty() => break,
                // Without an answer the connection is gone, and the watch with it.
                Ok(_) => drop(changed.await),
                Err(failure) if failure.is(Code::NO_NODE) => {}
                Err(failure) => return Err(failure),
            }
        }
        self.wait_at_the_head(bid, node).await
    }

    async fn wait_at_the_head(&self, bid: Bid<'_>, node: &Node) -> Result<Grant, Failure> {
        let Bid { claim, session, lock } = bid;
        let Mode::Permits { count, of } = bid.mode() else { return Err(self.place_lost(claim)) };
        loop {
            let (watcher, mut resized) = oneshot::channel();
            let container = session.watch(lock, Watcher::Waiter(watcher)).await?;
            let limit = match container.stat.version {
                0 => Some(of), // nobody has changed it since it was compared with the first one's
                _ => self.limit(session, lock, &mut Queue::read(&self.layout, session, lock).await?).await?,
            };
            let limit = match limit {
                // Whoever wants more than there are stands in everybody's way for nothing; his next claim is told why.
                Some(limit) if count <= limit => limit,
                _ => {
                    let lost = self.place_lost(claim);
                    remove(session, &bid.path(&node.name)).await?;
                    return Err(lost);
                }
            };
            let limit = Limit { of: limit, version: container.stat.version };
            loop {
                let (watcher, returned) = oneshot::channel();
                let taken = match session.watch_children(&slots(lock), Watcher::Waiter(watcher)).await {
                    Ok(children) => numbers(&children),
                    Err(failure) if failure.is(Code::NO_NODE) => {
                        self.make_containers(session, &slots(lock)).await?;
                        continue;
                    }
                    Err(failure) => return Err(failure),
                };
                match self.take_slots(bid, node, limit, &taken).await? {
                    Took::Given(given) => return self.grant(bid, given),
                    Took::LookAgain => {}
                    Took::TooFew => tokio::select! {
                        _ = returned => {}
                        _ = &mut resized => break,
                    },
                }
            }
        }
    }

    /// Changes the limit of a semaphore in use, and answers the former one. Never sent twice: it would tell the new limit as
    /// the former one.
    pub(crate) async fn change_limit(&self, lock: &str, of: u32) -> Result<Option<u32>, Failure> {
        if of == 0 {
            return Err(Failure::mismatch(Refusal::NoPermits));
        }
        let session = self.any_session().await?;
        session.ask::<()>(Request::sync(self.layout.chroot())).await?;
        for _ in 0..USERS_CHANGE {
            let queue = Queue::read(&self.layout, &session, lock).await?;
            let Some(first) = queue.contenders().first() else { return Ok(None) };
            let before = match self.limit_in(&session, lock, &queue).await {
                Ok(Some(limit)) => limit,
                Ok(None) => return Err(Failure::mismatch(Refusal::LockInUse)),
                Err(failure) if failure.is(Code::NO_NODE) => continue,
                Err(failure) => return Err(failure),
            };
            // Any user will do, and whoever came last is there for longest.
            let agrees = |mode| matches!(mode, Some(Mode::Permits { of, .. }) if of == before);
            let user = queue.contenders().iter().rfind(|contender| agrees(contender.mode)).unwrap_or(first);
            let (user, data) = (format!("{lock}/{}", user.name), Notes::of_limit(of).to_bytes());
            let steps = [
                Step::Check { path: &user, version: None },
                Step::Write { path: lock, data: &data, version: Some(queue.version()) },
            ];
            match session.ask(Request::transaction(&steps)).await? {
                Done::All(_) => return Ok(Some(before)),
                Done::None(Code::NO_NODE | Code::BAD_VERSION) => {} // used otherwise meanwhile
                Done::None(code) => return Err(Failure::refused(code)),
            }
        }
        Err(Failure::unreachable("the semaphore's users come and go faster than its limit can be changed"))
    }
}

enum Took {
    Given(Given),
    TooFew,
    LookAgain,
}

/// Takes a claim of permits out of the queue and gives its permits back, in one step. Answers whether its node was there.
pub(crate) async fn give_back(leaving: Leaving<'_>, node: &str) -> Result<bool, Failure> {
    let Leaving { session, lock, .. } = leaving;
    let path = format!("{lock}/{node}");
    let taken: Box<[u32]> = match leaving.slots {
        Some(slots) => slots.into(),
        None => match session.ask::<wire::Node>(Request::get(&path, false)).await {
            Ok(node) => Record::read(&node.data).slots,
            Err(failure) if failure.is(Code::NO_NODE) => Box::default(),
            Err(failure) => return Err(failure),
        },
    };
    let paths: Vec<_> = taken.iter().map(|slot| format!("{}/{slot}", slots(lock))).collect();
    let mut steps = vec![Step::Delete { path: &path }];
    steps.extend(paths.iter().map(|path| Step::Delete { path }));
    match session.ask(Request::transaction(&steps)).await? {
        Done::All(_) => Ok(true),
        Done::None(Code::NO_NODE) => {
            // Somebody removed it, or a part of it, by hand.
            let was_there = remove(session, &path).await?;
            sweep(leaving).await.map(|()| was_there)
        }
        Done::None(code) => Err(Failure::refused(code)),
    }
}

/// Gives back the permits of an owner whose node in the queue is gone.
pub(crate) async fn sweep(Leaving { session, lock, owner, .. }: Leaving<'_>) -> Result<(), Failure> {
    let children = match session.ask::<Children>(Request::children(&slots(lock), false)).await {
        Ok(children) => children,
        Err(failure) if failure.is(Code::NO_NODE) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    let paths: Vec<_> = children.names.iter().map(|slot| format!("{}/{slot}", slots(lock))).collect();
    let asked = paths.iter().map(|path| Request::get(path, false)).collect();
    let owner = owner.to_string();
    for (path, slot) in paths.iter().zip(session.ask_all::<wire::Node>(asked).await) {
        match slot {
            Ok(slot) if slot.data == owner.as_bytes() => drop(remove(session, path).await?),
            Ok(_) => {}
            Err(failure) if failure.is(Code::NO_NODE) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn numbers(children: &Children) -> BTreeSet<u32> {
    children.names.iter().filter_map(|name| name.parse().ok()).collect()
}

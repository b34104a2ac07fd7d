//! Looking at all servers together, breaking a lock on all of them, and hearing of losses from them.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, PoisonError},
    time::Duration,
};

use fencepost_core::{
    claim::{Claimant, Forced, Holder, LockState, Waiter},
    error::{Error, Operation},
    fence::Fence,
    name::LockName,
    owner::Owner,
    store::LossReporter,
};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use tokio::sync::mpsc;

use super::{RedlockStore, keeping::TRIES, node::Node};
use crate::{failure::Failure, survey};

/// Reports of losses kept until a quorum has told the same.
const REPORTS: usize = 1024;

impl RedlockStore {
    /// What a quorum agrees on: a lock is held by whom so many servers name, for as long as the last of those will.
    pub(super) async fn list(&self, only: Option<&LockName>) -> Result<Vec<LockState>, Error> {
        let (answers, needed) = (self.listed(only).await, self.quorum.needed());
        let failures = answers.iter().enumerate();
        let failures: Vec<_> = failures.filter_map(|(node, answer)| Some((node, answer.as_ref().err()?))).collect();
        if answers.len() - failures.len() < needed {
            return Err(self.failed(Operation::Inspect, only, &failures));
        }
        let states: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        let mut by_name: BTreeMap<LockName, Vec<LockState>> = BTreeMap::new();
        for state in states.into_iter().flatten() {
            by_name.entry(state.name.clone()).or_default().push(state);
        }
        Ok(by_name.into_iter().filter_map(|(name, states)| merged(name, &states, needed)).collect())
    }

    /// What each server lists. A long list takes a busy server longer than its limit, and who waits for it would rather have it
    /// late: those that do not answer are asked again until a quorum has.
    async fn listed(&self, only: Option<&LockName>) -> Vec<Result<Vec<LockState>, Failure>> {
        let ask = |node: &Arc<Node>| {
            let node = node.clone();
            async move { survey::inspect(&node.room.nodes, &node.room.keys, only).await }
        };
        let mut answers = join_all(self.nodes.iter().map(&ask)).await;
        for _ in 1..TRIES {
            if answers.iter().filter(|answer| answer.is_ok()).count() >= self.quorum.needed() {
                break;
            }
            let again = self.nodes.iter().zip(answers).map(|(node, answer)| async {
                match answer {
                    Ok(listed) => Ok(listed),
                    Err(_) => ask(node).await,
                }
            });
            answers = join_all(again).await;
        }
        answers
    }

    pub(super) async fn break_lock(&self, name: &LockName, if_fence: Option<Fence>) -> Result<Forced, Error> {
        if if_fence.is_some() {
            return Ok(Forced::OtherFence(None)); // no grant of Redis has a fence
        }
        let mut asked: FuturesUnordered<_> = self
            .nodes
            .iter()
            .map(|node| {
                let (node, name, limit) = (node.clone(), name.clone(), self.quorum.node_limit);
                async move { (node.index, within(limit, node.force(&name)).await) }
            })
            .collect();
        let (mut broken, mut answered, mut failures) = (Vec::new(), 0, Vec::new());
        while let Some((node, answer)) = asked.next().await {
            match answer {
                Ok(holder) => {
                    answered += 1;
                    broken.extend(holder.filter(is_grant));
                }
                Err(failure) => failures.push((node, failure)),
            }
        }
        let needed = self.quorum.needed();
        if answered < needed {
            let failures: Vec<_> = failures.iter().map(|(node, failure)| (*node, failure)).collect();
            return Err(self.failed(Operation::Force, Some(name), &failures));
        }
        // Who was recorded at fewer servers held nothing; that record is gone now too.
        Ok(agreed(&broken, needed).map_or(Forced::NotHeld, |holder| Forced::Broken(Some(holder))))
    }

    /// A server tells of a lock broken there; it is lost once no quorum can have it any more.
    pub(super) fn gather_losses(&self, to: &LossReporter) {
        let (sender, mut receiver) = mpsc::channel(REPORTS);
        let mut ears = self.ears.lock().unwrap_or_else(PoisonError::into_inner);
        for node in &self.nodes {
            let (reporter, mut reports) = LossReporter::channel();
            node.room.report_losses(reporter.clone());
            let (sender, index, to) = (sender.clone(), node.index, to.clone());
            let doubts = reporter.clone();
            ears.spawn(async move {
                loop {
                    tokio::select! {
                        report = reports.recv() => match report {
                            Some((owner, reason)) if sender.send((index, owner, reason)).await.is_ok() => {}
                            _ => return,
                        },
                        () = doubts.doubted() => to.doubt(),
                    }
                }
            });
        }
        let (to, spare) = (to.clone(), self.quorum.spare());
        ears.spawn(async move {
            let mut told = Told::default();
            while let Some((node, owner, reason)) = receiver.recv().await {
                if told.by(node, owner) > spare {
                    to.lost(owner, reason);
                }
            }
        });
    }
}

async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(Failure::silent(limit)))
}

/// Which servers have told of which loss. What a quorum never confirms is forgotten in time.
#[derive(Default)]
struct Told {
    nodes: HashMap<Owner, HashSet<usize>>,
    order: VecDeque<Owner>,
}

impl Told {
    /// How many servers have told of it by now.
    fn by(&mut self, node: usize, owner: Owner) -> usize {
        if !self.nodes.contains_key(&owner) {
            if self.order.len() == REPORTS
                && let Some(oldest) = self.order.pop_front()
            {
                self.nodes.remove(&oldest);
            }
            self.order.push_back(owner);
        }
        let nodes = self.nodes.entry(owner).or_default();
        nodes.insert(node);
        nodes.len()
    }
}

/// A vote is no grant: it is held since 0.
fn is_grant(holder: &Holder) -> bool {
    holder.since_unix_ms != Some(0)
}

fn merged(name: LockName, states: &[LockState], needed: usize) -> Option<LockState> {
    let holders: Vec<_> = states.iter().flat_map(|state| state.holders.iter().cloned()).filter(is_grant).collect();
    let holders: Vec<_> = agreed(&holders, needed).into_iter().collect();
    let waiters = waiters(states, needed.min(states.len()));
    (!holders.is_empty() || !waiters.is_empty()).then_some(LockState { name, holders, waiters })
}

/// The holder that so many servers name, for as long as the quorum's shortest record lasts, since the first of them.
fn agreed(holders: &[Holder], needed: usize) -> Option<Holder> {
    holders.iter().find_map(|holder| {
        let mut same: Vec<_> = holders.iter().filter(|other| other.owner == holder.owner).collect();
        same.sort_by_key(|same| std::cmp::Reverse(same.expires_in));
        // A record that was put back is younger than the grant.
        let since_unix_ms = same.iter().filter_map(|same| same.since_unix_ms).min();
        Some(Holder { expires_in: same.get(needed - 1)?.expires_in, since_unix_ms, ..holder.clone() })
    })
}

/// Those who wait at a quorum of servers, by when they came. Two that cannot be told apart are counted.
fn waiters(states: &[LockState], needed: usize) -> Vec<Waiter> {
    let mut seen: BTreeMap<(Option<u64>, String), (Waiter, Vec<usize>)> = BTreeMap::new();
    for (node, state) in states.iter().enumerate() {
        for waiter in &state.waiters {
            let key = (waiter.since_unix_ms, identity(&waiter.claimant));
            let (_, counts) = seen.entry(key).or_insert_with(|| (waiter.clone(), vec![0; states.len()]));
            counts[node] += 1;
        }
    }
    let mut waiters = Vec::new();
    for (waiter, mut counts) in seen.into_values() {
        counts.sort_unstable_by_key(|count| std::cmp::Reverse(*count));
        let times = counts.get(needed.saturating_sub(1)).copied().unwrap_or_default();
        waiters.extend(std::iter::repeat_n(waiter, times));
    }
    waiters
}

fn identity(claimant: &Claimant) -> String {
    claimant.to_string()
}

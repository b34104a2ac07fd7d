//! Waiting: places at every server, votes as they come, and a round of confirmations once they are a quorum.

use std::{sync::Arc, time::Duration};

use fencepost_core::{
    backoff::jitter,
    claim::{Claim, Grant},
    clock::Moment,
    error::{Error, ErrorKind, Operation},
    name::LockName,
};
use futures_util::{StreamExt, stream::FuturesUnordered};

use super::{
    RedlockStore,
    node::Place,
    only_exclusive,
    seat::{Seat, Standing},
    voting::Asked,
};
use crate::{
    failure::Failure,
    room::{Bell, News},
};

/// Waiters are not troubled by an outage as short as this.
const BRIDGED: Duration = Duration::from_secs(1);

impl RedlockStore {
    pub(super) async fn wait(&self, claim: &Claim) -> Result<Grant, Error> {
        let name = only_exclusive(&claim.holding)?;
        let rooms = self.nodes.iter().map(|node| heard(node.index, node.room.enter(*claim.owner(), name)));
        let mut bells: FuturesUnordered<_> = rooms.collect();
        let mut turn = Turn::new(self, claim, name);
        loop {
            turn.ask_where_due();
            if turn.may_confirm() {
                match self.confirm(claim, name, &mut turn.seat).await {
                    Some(grant) => return Ok(grant),
                    None => turn.round_lost(),
                }
                continue;
            }
            if let Some(error) = turn.outage() {
                return Err(error);
            }
            let wake_at = turn.wake_at();
            tokio::select! {
                Some((node, bell, news)) = bells.next() => {
                    bells.push(heard(node, bell));
                    turn.hear(node, news);
                }
                Some((node, answer)) = turn.asked.next(), if !turn.asked.is_empty() => turn.answered(node, answer),
                () = self.clock.sleep_until(wake_at) => {}
            }
        }
    }
}

async fn heard(node: usize, bell: Arc<Bell>) -> (usize, Arc<Bell>, News) {
    let news = bell.news().await;
    (node, bell, news)
}

/// A waiter on its way to its turn.
struct Turn<'a> {
    store: &'a RedlockStore,
    claim: &'a Claim,
    name: &'a LockName,
    seat: Seat,
    asked: FuturesUnordered<Asked<'a>>,
    servers: Vec<Asking>,
    pause_until: Moment,
    failing_since: Option<Moment>,
}

/// What is under way to one server.
#[derive(Debug, Default)]
struct Asking {
    under_way: bool,
    /// Why the last question failed.
    failure: Option<Failure>,
}

impl<'a> Turn<'a> {
    fn new(store: &'a RedlockStore, claim: &'a Claim, name: &'a LockName) -> Self {
        let known = store.seats().get(claim.owner()).cloned();
        Self {
            store,
            claim,
            name,
            seat: known.unwrap_or_else(|| store.seat_of(claim, 0)),
            asked: FuturesUnordered::new(),
            servers: store.nodes.iter().map(|_| Asking::default()).collect(),
            pause_until: Moment::default(),
            failing_since: None,
        }
    }

    /// Asks every server that gave no place, and whose vote is about to lapse.
    fn ask_where_due(&mut self) {
        let now = self.store.clock.now();
        for (node, (asking, standing)) in self.servers.iter_mut().zip(&self.seat.standings).enumerate() {
            if !asking.under_way && standing.due().is_some_and(|due| due <= now) {
                asking.under_way = true;
                self.asked.push(self.store.ask_for_place(node, self.claim, self.name, &self.seat));
            }
        }
    }

    fn has_quorum(&self, now: Moment) -> bool {
        self.seat.votes(now) >= self.store.quorum.needed()
    }

    fn may_confirm(&self) -> bool {
        let now = self.store.clock.now();
        now >= self.pause_until && self.has_quorum(now)
    }

    /// Votes that were split come together by tickets; the pause keeps two from trying in step.
    fn round_lost(&mut self) {
        self.pause_until = self.store.clock.now().after(self.store.quorum.node_limit.mul_f64(jitter()));
        if let Some(known) = self.store.seats().get_mut(self.claim.owner()) {
            *known = self.seat.clone();
        }
    }

    /// The error to end with when no quorum has been in reach for longer than is worth bridging. What time does not
    /// mend, such as a closed store or missing rights, is told at once (C4).
    fn outage(&mut self) -> Option<Error> {
        let failures: Vec<_> = self
            .servers
            .iter()
            .enumerate()
            .filter_map(|(node, asking)| Some((node, asking.failure.as_ref()?)))
            .collect();
        if failures.len() <= self.store.quorum.spare() {
            self.failing_since = None;
            return None;
        }
        let now = self.store.clock.now();
        let since = *self.failing_since.get_or_insert(now);
        let passes = failures.iter().all(|(_, failure)| failure.kind == ErrorKind::Unavailable);
        (!passes || now.since(since) >= BRIDGED).then(|| self.store.failed(Operation::Wait, Some(self.name), &failures))
    }

    fn wake_at(&self) -> Moment {
        let idle = self.servers.iter().zip(&self.seat.standings).filter(|(asking, _)| !asking.under_way);
        let due = idle.filter_map(|(_, standing)| standing.due()).min();
        let bridged = self.failing_since.map(|since| since.after(BRIDGED));
        let paused = self.has_quorum(self.store.clock.now()).then_some(self.pause_until);
        [due, bridged, paused].into_iter().flatten().min().unwrap_or(Moment::END)
    }

    fn hear(&mut self, node: usize, news: News) {
        self.seat.standings[node] = match news {
            News::Handed => self.store.vote_of(node, self.claim),
            News::AskAgain => Standing::Out(self.store.clock.now()),
        };
    }

    fn answered(&mut self, node: usize, answer: Result<Place, Failure>) {
        self.store.note(&mut self.seat, self.claim, node, answer.as_ref());
        self.servers[node] = Asking { under_way: false, failure: answer.err() };
    }
}
